"""The middleware in every framework, under every server, with real processes and requests."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import django
import processes
import pytest
from polling import eventually
from servers import Client, environment

SERVICES = Path(__file__).parent / "services"

UVICORN = ["-m", "uvicorn", "asgi_services:app", "--fd={fd}", "--ws=none", "--log-level=error"]
GUNICORN = ["-m", "gunicorn", "wsgi_services:app", "--bind=fd://{fd}", "--no-control-socket"]
# Without processes of its own, whose semaphores it would leave in /dev/shm when it is killed.
HYPERCORN = ["-m", "hypercorn", "--workers=0"]
GRANIAN = ["-m", "granian", "asgi_services:app", "--interface=asgi", "--port={port}", "--no-ws"]
WAITRESS = (
    "import socket, waitress, wsgi_services; "
    "waitress.serve(wsgi_services.app, sockets=[socket.socket(fileno={fd})], threads=8)"
)
SERVERS = {
    "uvicorn": [*UVICORN, "--loop=asyncio", "--http=h11"],
    "uvicorn-uvloop": [*UVICORN, "--loop=uvloop"],
    "hypercorn": [*HYPERCORN, "asgi_services:app", "--bind=fd://{fd}"],
    "granian": GRANIAN,
    "gunicorn-gthread": [*GUNICORN, "--worker-class=gthread", "--threads=8"],
    "gunicorn-gevent": [*GUNICORN, "--worker-class=gevent"],
    "waitress": ["-c", WAITRESS],
}
ASGI = ["starlette", "fastapi", "litestar", "quart", "django"]
WSGI = ["plain", "flask", "bottle", "django"]
MOUNTED = ["starlette", "fastapi", "litestar"]
IS_WSGI = re.compile("gunicorn|waitress")
EACH = [
    (server, framework)
    for server in SERVERS
    for framework in (WSGI if IS_WSGI.match(server) else ASGI)
]

clients = itertools.count(1)


@pytest.fixture(scope="module")
def addresses():
    """All servers, which start while the first of them answers."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, arguments in SERVERS.items():
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = listener.getsockname()
            if name == "granian":
                listener.close()  # granian opens the port itself
            named = [each.format(fd=listener.fileno(), port=address[1]) for each in arguments]
            process = processes.start(
                [sys.executable, *named],
                cwd=SERVICES,
                env=environment(SERVICES, PYTHONWARNINGS="ignore"),
                pass_fds=[] if listener.fileno() < 0 else [listener.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(processes.stop, process)
            found[name] = address, process
        yield found


@pytest.fixture
def ask(request, addresses):
    """Sends requests to a service as a new client."""
    server, framework = request.param
    address, process = addresses[server]
    me = f"client {next(clients)}"

    def accepts():
        assert process.poll() is None, "the server has ended"
        socket.create_connection(address).close()
        return True

    eventually(accepts, 60, despite=ConnectionError)
    with contextlib.closing(Client(address, timeout=60)) as client:

        def ask(path="", method="GET"):
            return client(f"/{framework}/{path}", method, headers={"x-client": me})

        ask.framework, ask.address, ask.me, ask.client = framework, address, me, client
        yield ask


def each(pairs):
    return pytest.mark.parametrize(
        "ask", pairs, indirect=True, ids=["-".join(pair) for pair in pairs]
    )


POLICY = '"5/hour";q=5;w=3600, "100/day";q=100;w=86400'


@each(EACH)
def test_a_burst_is_admitted_and_then_refused(ask):
    answers = [ask() for _ in range(7)]
    assert [answer.status for answer in answers] == [200] * 5 + [429] * 2
    assert answers[0].body.strip(b'"') == b"hello"
    for number, answer in enumerate(answers):
        left = max(4 - number, 0)
        assert answer["x-ratelimit-limit"] == "5"
        assert answer["x-ratelimit-remaining"] == str(left)
        assert -1 < int(answer["x-ratelimit-reset"]) - time.time() <= 3602
        assert answer["ratelimit-policy"] == POLICY
        assert answer["ratelimit"].startswith(f'"5/hour";r={left};t=')
    refused = answers[-1]
    assert refused["content-type"] == "application/problem+json"
    assert 715 <= int(refused["retry-after"]) <= 720
    assert refused.json()["violated-policies"] == ["5/hour"]
    assert refused.json()["retry_after"] == int(refused["retry-after"])
    assert "retry-after" not in answers[0]


@each(EACH)
def test_a_stream_carries_the_fields_once(ask):
    answer = ask("stream")
    assert answer.body == b"piece 0\npiece 1\npiece 2\n"
    assert answer["x-ratelimit-remaining"] == "4"
    assert answer["ratelimit-policy"] == POLICY


@each(EACH)
def test_head_is_charged_and_its_refusal_has_no_body(ask):
    answers = [ask(method="HEAD") for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 5 + [429]
    assert {answer.body for answer in answers} == {b""}
    assert answers[0]["x-ratelimit-remaining"] == "4"
    assert int(answers[5]["retry-after"]) > 0
    # The connection can be used again: the answer to HEAD had no body.
    assert ask().status == 429


@each(EACH)
def test_a_client_that_leaves_during_a_stream_is_charged_once(ask):
    with socket.create_connection(ask.address, timeout=20) as left:
        request = f"GET /{ask.framework}/stream?forever=1 HTTP/1.1\r\nHost: x\r\n"
        left.sendall(f"{request}X-Client: {ask.me}\r\n\r\n".encode())
        received = b""
        while b"piece 3\n" not in received:
            data = left.recv(1 << 16)
            assert data, received
            received += data
        assert received.lower().count(b"ratelimit-policy") == 1
    # Django notices this since version 5.0.
    if ask.framework != "django" or django.VERSION >= (5, 0):
        eventually(lambda: ask.client(f"/open/{ask.framework}").body == b"0")
    assert ask()["x-ratelimit-remaining"] == "3"


@each([pair for pair in EACH if pair[1] in MOUNTED])
def test_a_mounted_application_has_its_own_limits(ask):
    answers = [ask("inner/") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    # Fields with one value show the limit nearer to the route; the lists show both limits.
    assert answers[2]["x-ratelimit-limit"] == "2"
    policies = [value for name, value in answers[2].fields if name == "ratelimit-policy"]
    assert sorted(", ".join(policies).split(", ")) == sorted(
        ['"2/hour";q=2;w=3600', *POLICY.split(", ")]
    )
    # A request that the inner limit refused was charged by the outer one.
    assert ask()["x-ratelimit-remaining"] == "1"
