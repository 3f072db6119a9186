"""Malformed requests of clients and incomplete ones of servers, through real servers."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import processes
import pytest
import tidegate as tg
from polling import eventually
from servers import asgi_server, ask, environment, hello, limited
from tidegate import keys

SERVICE = """
from servers import hello
from tidegate.asgi import RateLimitMiddleware

app = RateLimitMiddleware(hello, limit="2/hour")
"""


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def listens(path: Path) -> bool:
    """Returns whether a server listens at `path`, which exists before it does."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_clients_of_a_unix_socket_have_no_address_and_share_one_limit():
    # Paths of Unix sockets are short; those of pytest are not.
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        directory = Path(name)
        (directory / "service.py").write_text(SERVICE)
        path = directory / "socket"
        command = [sys.executable, "-m", "uvicorn", "service:app", f"--uds={path}"]
        with processes.running(
            [*command, "--log-level=error"],
            cwd=directory,
            env=environment(Path(__file__).parents[1]),
            stderr=subprocess.PIPE,
            text=True,
        ) as server:
            eventually(lambda: server.poll() is not None or listens(path), 60)
            found = []
            for _ in range(3):
                with contextlib.closing(UnixConnection(path)) as connection:
                    connection.request("GET", "/", headers={"X-Forwarded-For": "198.51.100.1"})
                    found.append(connection.getresponse().status)
            server.terminate()
            assert server.stderr is not None
            said = server.stderr.read()
    assert found == [200, 200, 429]
    assert "the client has no address; all such clients share one limit" in said


@pytest.mark.parametrize(
    "lines",
    [
        ["198.51.100.1"],
        ["198.51.100.1, 203.0.113.9", "198.51.100.2"],
        ["\u00e9t\u00e9"],
        [", ," * 2000],
        ["1.2.3.4, " * 900],
        ['for="[::1'],
        ["999.1.1.1"],
    ],
)
def test_forwarding_headers_of_strangers_change_nothing_through_a_server(lines):
    key = keys.client_ip(trusted_proxies=["10.0.0.0/8"])
    with asgi_server(limited("3/minute", key=key)) as client:
        connection = client._connection
        found = []
        for number in range(4):
            connection.putrequest("GET", "/")
            for line in lines:
                connection.putheader("X-Forwarded-For", f"{number}.0.0.1, {line}".encode("latin-1"))
            connection.endheaders()
            response = connection.getresponse()
            response.read()
            found.append(response.status)
    assert found == [200, 200, 200, 429]


def test_all_paths_share_one_limit():
    limiter = tg.Limiter("5/minute", clock=tg.ManualClock())
    app = limited(None, limiter=limiter, clock=None)
    found = {ask(app, f"/{number}").status for number in range(1000)}
    assert found == {200, 429}
    assert limiter.stats().allowed == 5
    assert limiter.stats().keys == 1


def test_a_key_with_line_breaks_reaches_no_header():
    app = limited("1/minute", hello, key=lambda scope: "a\r\nset-cookie: b")
    for _ in range(2):
        answer = ask(app)  # checks every header for line breaks
        assert "set-cookie" not in answer
    assert answer.status == 429
    assert b"set-cookie" not in answer.body
