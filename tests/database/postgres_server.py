"""A PostgreSQL server for tests."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import psycopg
from polling import eventually
from ports import free_port
from tidegate.rules.sql import upgrade

_numbers = itertools.count(1)


def program(name: str) -> str:
    # Debian installs the programs outside of the path, in a folder for each version.
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    program = found[-1] if found else shutil.which(name)
    assert program is not None, f"there is no {name}; expected that of the package postgresql"
    return program


def _not_as_root() -> dict[str, Any]:
    """Options of Popen for another user than root, as whom PostgreSQL refuses to run."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise AssertionError("no user can run PostgreSQL; expected one named postgres or nobody")


class PostgresServer(processes.Server):
    """A PostgreSQL on a free port; ``with`` starts and kills it.

    `start` after `kill` keeps the port and the data.
    """

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        # Not named by the port, which another server of the folder may have had.
        self.data = Path(tempfile.mkdtemp(prefix="postgres-", dir=directory))
        self._user = _not_as_root()
        self._template: str | None = None
        if self._user:
            os.chown(self.data, self._user["user"], self._user["group"])
        made = subprocess.run(
            [
                *(program("initdb"), "--pgdata", str(self.data), "--username", "tests"),
                *("--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
            ],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=240,
            **self._user,
        )
        assert made.returncode == 0, made.stderr

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            # A crash of the machine may lose the data, a crash of the server may not.
            "fsync": "off",
            "full_page_writes": "off",
            "wal_level": "minimal",
            "max_wal_senders": "0",
            "shared_buffers": "8MB",
            "autovacuum": "off",
        }
        self.process = processes.start(
            [
                *(program("postgres"), "-D", str(self.data), "-p", str(self.port)),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._user,
        )
        try:
            eventually(self._accepts, 120, despite=psycopg.OperationalError)
        except BaseException:
            self.kill()
            raise

    def _accepts(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "PostgreSQL has ended"
        self.connect("postgres").close()
        return True

    def connect(self, database: str) -> psycopg.Connection[Any]:
        """A connection that commits each statement."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="tests",
            dbname=database,
            autocommit=True,
            connect_timeout=20,
        )

    def create_database(self, template: str = "template1") -> str:
        """Creates a copy of a database to which nobody is connected, and returns its name.

        Without `template` it is empty.
        """
        name = f"test_{next(_numbers)}"
        with self.connect("postgres") as connection:
            # Of files, as before PostgreSQL 15, which by default writes a log of each page.
            how = "STRATEGY FILE_COPY" if connection.info.server_version >= 150000 else ""
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} {how}")
        return name

    def drop_database(self, name: str) -> None:
        """Drops a database, with the connections to it."""
        with self.connect("postgres") as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @contextlib.contextmanager
    def migrated(self) -> Iterator[str]:
        """A database with the newest tables, which are made once and copied; its name."""
        if self._template is None:
            template = self.create_database()
            upgrade(self.url(template))
            self._template = template
        name = self.create_database(self._template)
        yield name
        self.drop_database(name)

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgresql://tests@127.0.0.1:{port or self.port}/{database}"

    def kill(self) -> None:
        """Kills the server at once, with all its connections."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            # Each of its processes leads its own group. The server ends them on this signal.
            self.process.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        super().kill()
