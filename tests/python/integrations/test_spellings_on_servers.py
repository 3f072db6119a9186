"""Each framework under each server, with raw requests: where a route ran, its rule has counted.

Servers make paths of request targets in different ways, and routers of some frameworks match what
others do not, so neither is imitated here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from polling import eventually
from servers import NO_ROOTS_IN_PATHS, environment, finds_roots_in_paths

SERVICES = Path(__file__).parent / "services"
ASGI = ["starlette", "fastapi", "litestar", "quart", "falcon-asgi", "blacksheep", "django-asgi"]
WSGI = ["flask", "flask-extension", "bottle", "falcon", "pyramid", "django"]
PACKAGES = {name: name.partition("-")[0] for name in (*ASGI, *WSGI)}
UVICORN = ["-m", "uvicorn", "spelled_services:asgi", "--fd={fd}", "--ws=none", "--log-level=error"]
GUNICORN = ["-m", "gunicorn", "spelled_services:wsgi", "--bind=fd://{fd}", "--no-control-socket"]
# Without processes of its own, whose semaphores it would leave in /dev/shm when it is killed.
HYPERCORN = ["-m", "hypercorn", "--workers=0"]
WAITRESS = (
    "import socket, waitress, spelled_services; "
    "waitress.serve(spelled_services.wsgi, sockets=[socket.socket(fileno={fd})], threads=8)"
)
WERKZEUG = (
    "import spelled_services; from werkzeug.serving import make_server; "
    "make_server('127.0.0.1', 0, spelled_services.wsgi, threaded=True, fd={fd}).serve_forever()"
)
SERVERS = {
    "uvicorn-h11": [*UVICORN, "--http=h11"],
    "uvicorn-httptools": [*UVICORN, "--http=httptools"],
    "uvicorn-root-path": [*UVICORN, "--http=h11", "--root-path=/api"],
    "hypercorn": [*HYPERCORN, "spelled_services:asgi", "--bind=fd://{fd}"],
    "gunicorn": [*GUNICORN, "--worker-class=gthread", "--threads=8"],
    "waitress": ["-c", WAITRESS],
    "werkzeug": ["-c", WERKZEUG],
}
EACH = [
    (server, framework)
    for server in SERVERS
    for framework in (ASGI if re.match("uvicorn|hypercorn", server) else WSGI)
    # Falcon finds no route below the root path that uvicorn puts before paths.
    if (server, framework) != ("uvicorn-root-path", "falcon-asgi")
]
TARGETS = [
    target
    for path in ("/login", "/items/7", "/files/a/b")
    for target in (
        path,
        path[1:],
        path.upper(),
        path.title(),
        *(path + more for more in ("/", "//", "%0a", "%0d%0a", "%0a%0a", "%00", "%20", ";x=1")),
        *(path + more for more in ("/.", "%2f", "%ff", "%85", "%c0%af", "%c2%85", "?a", "%3f")),
        *(path[1:] + more for more in ("%0a", ";x", "%3fa", "%23a", "%ff")),
        *(more + path for more in ("/", "//", "/.", "/x/..", "%00", "%0a", "%20%09", "%ff", "x")),
        *(more + path for more in ("http://other", "http:", "HTTP://u@other:80", "//other", "*")),
        path.replace("/", "%2f"),
        path.replace("i", "%69"),
        path.replace("i", "%2569"),
        path.replace("/", "/./"),
        path.replace("/", "\\"),
    )
]


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, Any]]:
    """All servers, which start while the first of them answers."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, arguments in SERVERS.items():
            if "--http=httptools" in arguments and not importlib.util.find_spec("httptools"):
                continue
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            process = processes.start(
                [sys.executable, *(each.format(fd=listener.fileno()) for each in arguments)],
                cwd=SERVICES,
                env=environment(SERVICES, PYTHONWARNINGS="ignore"),
                pass_fds=[listener.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(processes.stop, process)
            found[name] = listener.getsockname(), process
        yield found


def asked(address: Any, host: str, target: str) -> tuple[int, str, str]:
    """The status, the body, and the policies of the answer; zero if the server closes instead."""
    request = f"GET {target} HTTP/1.1\r\nHost: {host}.example\r\nConnection: close\r\n\r\n"
    received = b""
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(request.encode("latin-1"))
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                received += data
    head, _, body = received.partition(b"\r\n\r\n")
    policies = re.findall(rb"^ratelimit-policy: *(.*?)\r?$", head, re.MULTILINE | re.IGNORECASE)
    status = re.match(rb"HTTP/1\.\d (\d+)", head)
    return int(status[1]) if status else 0, body.decode(), b", ".join(policies).decode()


@pytest.mark.parametrize(("server", "framework"), EACH, ids=lambda name: name)
def test_a_route_that_ran_was_counted(server: str, framework: str, addresses: Any) -> None:
    if server not in addresses:
        pytest.skip("httptools is not installed: no list of this Python has it")
    if importlib.util.find_spec(PACKAGES[framework]) is None:
        pytest.skip(f"{framework} is not installed: no list of this Python has it")
    of_starlette = framework in ("starlette", "fastapi")
    if server == "uvicorn-root-path" and of_starlette and not finds_roots_in_paths():
        pytest.skip(NO_ROOTS_IN_PATHS)
    address, process = addresses[server]

    def accepts() -> bool:
        assert process.poll() is None, "the server has ended"
        return asked(address, framework, "/login")[0] == 200

    eventually(accepts, 60, despite=ConnectionError)
    ran, uncounted = set(), []
    for target in TARGETS:
        status, body, policies = asked(address, framework, target)
        route = re.search(r"\b(login|items|files)\b", body)
        if status == 200 and route:
            ran.add(target)
            if f'"{route[1]}"' not in policies:
                uncounted.append(target)
    assert uncounted == []
    assert ran >= {"/login", "/items/7", "/files/a/b"}
    assert len(ran) >= 10
