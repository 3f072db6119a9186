"""How processes end whose threads are inside calls of tidegate, and what they end with.

Used by test_exit.py and by tests/faults/exit_campaign.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from signal import SIGINT
from time import monotonic, sleep

import trustme
from ports import free_port
from proxy import Proxy
from redis_server import PATIENT, RedisServer, speaks_tls

HERE = Path(__file__).parent
# The interpreter that runs the processes: with tidegate, Flask and uvloop.
PYTHON = os.environ.get("TIDEGATE_EXIT_PYTHON", sys.executable)
PASSWORD = "secret"
CALLS = (
    "hit", "hit of a long key", "allow", "peek", "refund", "reset", "hit_many", "plan", "slot",
    "acquire", "ping", "command", "release", "open",
)  # fmt: skip
# What the storage is while threads are inside calls.
STORAGES = (
    "plain", "tls", "password", "client clock", "refused", "hole", "stopped", "stopped tls",
)  # fmt: skip
# How the main thread ends, and the exit code that comes of it.
ENDS = {
    "return": 0, "close": 0, "exit": 3, "_exit": 3, "sigterm": 3, "terminated": -15, "atexit": 0,
    "del": 0, "gil held": 0, "os.fork": 0, "multiprocessing-fork": 0, "multiprocessing-spawn": 0,
}  # fmt: skip
# Where a thread is in Python code that the core, or a method of the extension, has called.
CALLBACKS = tuple(
    f"{callback}-{how}"
    for callback in (
        "password", "clock", "hook", "corehook", "create_future", "call_soon", "set_result",
    )
    for how in ("sleeps", "spins")
)  # fmt: skip
LOOPS = ("asyncio", "uvloop")
# Far beyond what any takes that ends at all.
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Case:
    """One process. `calls` are those that its threads repeat."""

    end: str
    storage: str = "plain"
    calls: tuple[str, ...] = CALLS
    threads: int = 2  # for each of the calls

    def __str__(self) -> str:
        calls = "all calls" if self.calls == CALLS else " ".join(self.calls)
        return f"{self.end}, {self.storage}, {calls}"


class Storages:
    """Servers of all sorts; also those that do not answer."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._directory = directory
        self._servers = {"plain": self._started(stack)}
        self._servers["password"] = self._started(stack, "--requirepass", PASSWORD)
        hole = Proxy(self._servers["plain"].port)
        hole.mode = "hole"
        stack.callback(hole.close)
        self._hole_port = hole.port
        self.names = tuple(name for name in STORAGES if "tls" not in name or speaks_tls())
        # Those that answer.
        self.quick_names = tuple(name for name in ("plain", "tls") if name in self.names)
        if speaks_tls():
            self._certify()
            self._servers["tls"] = self._started(stack, *self._tls_options())

    def _started(self, stack: contextlib.ExitStack, *arguments: str) -> RedisServer:
        server = RedisServer(self._directory, *arguments)
        server.start()
        stack.callback(server.kill)
        return server

    def _certify(self) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(str(self._directory / "ca.pem"))
        certificate.private_key_pem.write_to_path(str(self._directory / "key.pem"))
        certificate.cert_chain_pems[0].write_to_path(str(self._directory / "cert.pem"))

    def _tls_options(self) -> list[str]:
        self._tls_port = free_port()
        file = self._directory.joinpath
        return [
            *("--tls-port", str(self._tls_port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(file("cert.pem")), "--tls-key-file", str(file("key.pem"))),
            *("--tls-ca-cert-file", str(file("ca.pem"))),
        ]

    def _tls_uri(self) -> str:
        return (
            f"rediss://localhost:{self._tls_port}/0?{PATIENT}"
            f"&ssl_ca_certs={self._directory / 'ca.pem'}"
        )

    @contextlib.contextmanager
    def given(self, case: Case) -> Iterator[dict[str, object]]:
        """What a child is told of the storage of `case`."""
        with contextlib.ExitStack() as stack:
            uri = self._servers["plain"].uri()
            stops = 0
            if case.storage == "tls":
                uri = self._tls_uri()
            elif case.storage == "password":
                uri = self._servers["password"].uri()
            elif case.storage == "client clock":
                uri += "&clock=client"
            elif case.storage == "hole":
                uri = f"redis://127.0.0.1:{self._hole_port}/0?{PATIENT}"
            elif case.storage == "refused" or "hook" in case.end:
                uri = f"redis://127.0.0.1:{free_port()}/0"
            elif case.storage == "stopped":
                server = self._started(stack)
                uri = server.uri("timeout=0.002&connect_timeout=20")
                stops = _pid(server)
            elif case.storage == "stopped tls":
                port = self._tls_port
                server = self._started(stack, *self._tls_options())
                uri = self._tls_uri()
                self._tls_port = port
                stops = _pid(server)
            yield {
                "uri": uri,
                "password": PASSWORD if case.storage == "password" else None,
                "client_clock": case.storage == "client clock",
                "stops": stops,
            }


@contextlib.contextmanager
def storages() -> Iterator[Storages]:
    # Paths of Unix sockets are short; those of pytest are not.
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="tg"))
        yield Storages(Path(directory), stack)


def problem(case: Case, servers: Storages) -> str | None:
    """The fault in how the process ended; None if there was none."""
    with servers.given(case) as given:
        given |= {"end": case.end, "calls": case.calls, "threads": case.threads}
        child = _started(HERE / "exit_child.py", json.dumps(given))
        return _problem(child, ENDS.get(case.end, 0))


def problem_of_flask(servers: Storages) -> str | None:
    """As problem(), of Flask's development server that is stopped by Ctrl-C under load."""
    port = free_port()
    with servers.given(Case("return")) as given:
        child = _started(HERE / "exit_flask.py", str(given["uri"]), str(port))
    answered = threading.Semaphore(0)

    def load() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        while child.poll() is None:
            try:
                connection.request("GET", "/")
                if connection.getresponse().read() == b"hello":
                    answered.release()
            except (OSError, HTTPException):
                connection.close()
                sleep(0.01)

    team = [threading.Thread(target=load) for _ in range(8)]
    for thread in team:
        thread.start()
    for _ in range(50):
        if not answered.acquire(timeout=DEADLINE_S):
            child.kill()
    if child.poll() is None:
        child.send_signal(SIGINT)
    found = _problem(child, 0)
    for thread in team:
        thread.join()
    return found


def _started(program: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [PYTHON, str(program), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Memory that is used after it was freed holds rubbish.
        env={**os.environ, "MALLOC_PERTURB_": "165"},
    )


def _problem(child: subprocess.Popen[bytes], expected: int) -> str | None:
    begun = monotonic()
    try:
        output = child.communicate(timeout=DEADLINE_S)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        child.kill()
        output = child.communicate()[0].decode(errors="replace")
        return f"it hangs; it printed {output!r}"
    if child.returncode == expected and not output:
        return None
    return f"exit code {child.returncode} after {monotonic() - begun:.1f} s; it printed {output!r}"


def _pid(server: RedisServer) -> int:
    assert server.process is not None
    return server.process.pid
