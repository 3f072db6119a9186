"""Redis servers of the campaign's own, alone, watched by sentinels, in a cluster or behind TLS."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
import trustme
from ports import free_port
from redis.backoff import NoBackoff
from redis.retry import Retry

PROGRAM = os.environ.get("TIDEGATE_REDIS_SERVER", "redis-server")
# A password that the campaign sets must not lock the campaign out.
ADMIN = ("chaos-admin", "chaos-admin-secret")


def eventually(what: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits until `what` returns a true value; an error of a server counts as "not yet"."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if what():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected within {seconds:g} s, and it did not happen: {what}")
        time.sleep(0.02)


@functools.cache
def version(program: str = PROGRAM) -> tuple[str, int]:
    """Its text, and the major number."""
    text = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\bv=((\d+)\S*)", text)
    if found is None:
        raise RuntimeError(f"expected a version from {program} --version, got {text!r}")
    return found[1], int(found[2])


@contextlib.contextmanager
def killed(servers: Sequence[Server]) -> Iterator[None]:
    """Kills servers, and starts them again at the end of the block."""
    for server in servers:
        server.kill()
    yield
    for server in servers:
        server.start()


class Server:
    """One redis-server. `start` after `kill` keeps the port, and the data only if it is on disk."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        sentinel: Path | None = None,
    ) -> None:
        self.port = free_port()
        self.directory = directory
        self.arguments = list(arguments)
        self.environment = {**os.environ, **(environment or {})}
        self.program = PROGRAM
        self.process: subprocess.Popen[bytes] | None = None
        self._sentinel = sentinel
        self._admin: redis.Redis | None = None

    def start(self, *, wait: bool = True) -> None:
        if self._sentinel is not None:
            command = [self.program, str(self._sentinel), "--sentinel"]
        else:
            command = [
                *(self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
                *("--daemonize", "no", "--dir", str(self.directory)),
                *("--dbfilename", f"dump-{self.port}.rdb"),
                *("--user", ADMIN[0], "on", f">{ADMIN[1]}", "~*", "&*", "+@all"),
            ]
            if version(self.program)[1] >= 7:
                command += ["--enable-debug-command", "yes", "--enable-protected-configs", "yes"]
            command += self.arguments
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment
        )
        if wait:
            try:
                eventually(lambda: self.do("PING"), 20)
            except TimeoutError:
                self.kill()
                raise

    @property
    def admin(self) -> redis.Redis:
        if self._admin is None:
            user, secret = ADMIN if self._sentinel is None else (None, None)
            self._admin = redis.Redis(
                host="127.0.0.1",
                port=self.port,
                username=user,
                password=secret,
                protocol=2,
                socket_timeout=20,
                retry=Retry(NoBackoff(), 1),
                client_name="chaos-admin",
            )
            self._admin.response_callbacks.clear()
        return self._admin

    def do(self, *words: object) -> Any:
        """The reply to one command, sent by a user of the campaign's own."""
        return self.admin.execute_command(*words)

    def set(self, **settings: object) -> None:
        for name, value in settings.items():
            self.do("CONFIG", "SET", name.replace("_", "-"), value)

    def cut(self) -> None:
        """Ends the connections of everybody but the campaign."""
        with contextlib.suppress(redis.RedisError):
            self.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def info(self, section: str) -> str:
        text = self.do("INFO", section)
        return text.decode() if isinstance(text, bytes) else str(text)

    def role(self) -> str:
        return str(self.do("ROLE")[0].decode())

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Standalone:
    """One server. `uri` is how clients reach it."""

    def __init__(
        self, directory: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.server = Server(directory, *arguments, environment=environment)
        self.server.start()

    def uri(self) -> str:
        return f"redis://{self.server.address}/0"

    def close(self) -> None:
        self.server.kill()


# ------------------------------------------------------------------------- TLS


class Tls:
    """A server that speaks TLS on a second port, and the authority that its clients trust."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / f"tls-{free_port()}"
        self.home.mkdir()
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(self.home / "ca.pem"))
        self.port = free_port()
        self.certify("first")
        self.server = Server(
            directory,
            *("--tls-port", str(self.port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(self.home / "first.pem")),
            *("--tls-key-file", str(self.home / "first.key")),
            *("--tls-ca-cert-file", str(self.home / "ca.pem")),
        )
        self.server.start()

    def certify(
        self,
        name: str,
        *hosts: str,
        authority: trustme.CA | None = None,
        expired: bool = False,
    ) -> None:
        """Writes a certificate of 127.0.0.1, or of `hosts`, and its key."""
        ends = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
        issued = (authority or self.authority).issue_cert(
            *(hosts or ("localhost", "127.0.0.1")), not_after=ends if expired else None
        )
        issued.private_key_pem.write_to_path(str(self.home / f"{name}.key"))
        with open(self.home / f"{name}.pem", "wb") as chain:
            chain.writelines(blob.bytes() for blob in issued.cert_chain_pems)

    def use(self, name: str) -> None:
        """The server shows this certificate from now on."""
        # Both at once: one without the other would not fit.
        self.server.do(
            *("CONFIG", "SET", "tls-cert-file", str(self.home / f"{name}.pem")),
            *("tls-key-file", str(self.home / f"{name}.key")),
        )

    def uri(self) -> str:
        return f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={self.home / 'ca.pem'}"

    def close(self) -> None:
        self.server.kill()


@contextlib.contextmanager
def stranger(port: int, answer: bytes) -> Iterator[None]:
    """Something else listens on `port`, and says `answer` to each request."""
    import threading

    with socket.create_server(("127.0.0.1", port)) as listener:
        open_now: list[socket.socket] = []

        def serve(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while connection.recv(1 << 16):
                    connection.sendall(answer)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    open_now.append(connection)
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield
        finally:
            for each in [listener, *open_now]:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
