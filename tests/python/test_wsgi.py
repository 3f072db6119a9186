"""The WSGI middleware: by the protocol, and under the servers that people run."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from wsgiref.validate import validator

import pytest
import tidegate as tg
from servers import Answer, Client
from tidegate.keys import header
from tidegate.wsgi import RateLimitMiddleware


def hello(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]


def limited(limit: Any = "2/minute", app: Any = hello, **options: Any) -> RateLimitMiddleware:
    options.setdefault("clock", tg.ManualClock(1_700_000_000 * 10**9))
    return RateLimitMiddleware(app, limit=limit, **options)


def call(app: Any, method: str = "GET", peer: str = "203.0.113.9", **fields: str) -> Answer:
    """One call, checked for what PEP 3333 demands."""
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        started[:] = [status, headers]
        return lambda data: None

    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": "/",
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": peer,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        **fields,
    }
    body = validator(app)(environ, start_response)
    try:
        content = b"".join(body)
    finally:
        body.close()  # type: ignore[attr-defined]
    return Answer(
        int(started[0][:3]), [(name.lower(), value) for name, value in started[1]], content
    )


def test_200s_turn_into_429s() -> None:
    app = limited()
    answers = [call(app) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert [answer["x-ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
    assert answers[0]["ratelimit-policy"] == '"2/minute";q=2;w=60'
    assert answers[0].body == b"hello"
    assert "retry-after" not in answers[1]
    assert answers[2]["retry-after"] == "30"
    assert answers[2]["content-type"] == "application/problem+json"
    assert answers[2].json()["violated-policies"] == ["2/minute"]


def test_clients_are_told_apart() -> None:
    app = limited("1/minute")
    assert [call(app, peer=peer).status for peer in ("203.0.113.1", "203.0.113.2")] == [200, 200]
    v6 = [call(app, peer=peer).status for peer in ("2001:db8::1", "2001:db8::2")]
    assert v6 == [200, 429]


def test_a_key_of_ones_own() -> None:
    app = limited("1/minute", key=header("x-tenant"))
    assert call(app, HTTP_X_TENANT="a").status == 200
    assert call(app, HTTP_X_TENANT="b").status == 200
    assert call(app, HTTP_X_TENANT="a").status == 429


def test_a_head_request_has_no_body() -> None:
    app = limited("1/minute")
    call(app)
    answer = call(app, "HEAD")
    assert (answer.status, answer.body) == (429, b"")
    assert int(answer["content-length"]) > 0


def test_exempt_methods_and_requests() -> None:
    app = limited("1/minute", exempt_when=lambda environ: "HTTP_X_FREE" in environ)
    assert [call(app, "OPTIONS").status for _ in range(3)] == [200] * 3
    assert [call(app, HTTP_X_FREE="1").status for _ in range(3)] == [200] * 3
    assert [call(app).status for _ in range(2)] == [200, 429]


def test_what_the_application_sets_stays() -> None:
    def own(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), ("X-RateLimit-Limit", "7")])
        return [environ["tidegate.decision"].rule.encode()]

    answer = call(limited(app=own))
    assert answer["x-ratelimit-limit"] == "7"
    assert answer["x-ratelimit-remaining"] == "1"
    assert answer.body == b"2/minute"


def test_another_answer_to_refusals() -> None:
    def teapot(environ: dict[str, Any], decision: tg.Decision) -> Any:
        def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
            start_response("418 I'm a teapot", [("Content-Type", "text/plain")])
            return [b"short and stout"]

        return application

    app = limited("1/minute", on_refused=teapot)
    call(app)
    answer = call(app)
    assert (answer.status, answer.body) == (418, b"short and stout")
    assert answer["retry-after"] == "60"


def test_a_broken_on_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = limited("1/minute", on_refused=lambda environ, decision: 1 / 0)
    call(app)
    assert call(app).status == 429
    assert "on_refused raised" in caplog.text


def test_async_functions_are_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    async def key(environ: dict[str, Any]) -> str:
        return "k"

    app = limited("1/minute", key=key)
    assert [call(app).status for _ in range(2)] == [200, 429]
    assert "the key function raised" in caplog.text


# ------------------------------------------------------------------ real servers

APP = """
from tidegate.wsgi import RateLimitMiddleware

def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]

app = RateLimitMiddleware(hello, limit="40/hour", storage={storage!r})
"""


@contextlib.contextmanager
def served(tmp_path: Path, storage: str, *command: str) -> Iterator[tuple[str, int]]:
    """The application in processes of its own, started as an operator would."""
    (tmp_path / "limited_app.py").write_text(APP.format(storage=storage))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [word.format(port=port) for word in command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            assert time.monotonic() < deadline, "the server does not start"
            assert process.poll() is None, "the server ended"
            time.sleep(0.02)
        yield "127.0.0.1", port
    finally:
        process.terminate()
        process.wait(20)


def counted(address: tuple[str, int], requests: int) -> Counter[int]:
    def one(_: int) -> int:
        with contextlib.closing(Client(address)) as client:
            return client("/").status

    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(one, range(requests)))


@pytest.mark.parametrize("worker", ["sync", "gthread", "gevent"])
def test_workers_of_gunicorn_share_one_limit(tmp_path: Path, worker: str) -> None:
    with served(
        tmp_path,
        f"shm://{tmp_path}/limits?capacity=1000",
        *(sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:{port}"),
        *("--workers", "2", "--worker-class", worker, "--graceful-timeout", "1", "limited_app:app"),
    ) as address:
        assert counted(address, 80) == {200: 40, 429: 40}


def test_waitress(tmp_path: Path) -> None:
    with served(
        tmp_path,
        "memory://",
        *(sys.executable, "-m", "waitress", "--listen=127.0.0.1:{port}", "limited_app:app"),
    ) as address:
        assert counted(address, 60) == {200: 40, 429: 20}
