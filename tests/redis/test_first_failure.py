"""A wrong port, password or database is said at once, without a call, and by every integration."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import fastapi
import flask
import pytest
import starlette.applications
import tidegate as tg
import tidegate.asgi
import tidegate.fastapi
import tidegate.flask
import tidegate.wsgi
from polling import eventually
from redis_server import PATIENT, RedisServer
from tidegate.limiter.storage import redis_uri


@pytest.fixture
def nowhere(caplog: pytest.LogCaptureFixture) -> str:
    """The URI of a port at which nobody listens, new for each test."""
    redis_uri._shared.clear()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    caplog.set_level(logging.WARNING, "tidegate")
    return f"redis://:s3cret@127.0.0.1:{port}/0?{PATIENT}"


@pytest.fixture(scope="module")
def guarded(server_directory: Path) -> Iterator[RedisServer]:
    with RedisServer(server_directory, "--requirepass", "right", "--databases", "4") as server:
        yield server


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "Redis failed" in line]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("redis://:wrong@HOST", "WRONGPASS"),
        ("redis://HOST", "NOAUTH"),
        ("redis://:right@HOST/7", "SELECT was refused"),
        ("redis://:right@127.0.0.1:1", "Connection refused"),
        ("redis+cluster://:right@127.0.0.1:1,127.0.0.1:1", "127.0.0.1:1: cannot connect"),
        ("redis+sentinel://127.0.0.1:1/limits", "no sentinel knows the master"),
        ("redis://no-such-host.invalid", "cannot resolve no-such-host.invalid"),
    ],
)
def test_the_first_call_says_what_is_wrong(
    guarded: RedisServer, place: str, why: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    uri = place.replace("HOST", f"127.0.0.1:{guarded.port}")
    # A name that cannot be resolved takes as long as the resolver likes.
    with tg.Limiter("5/hour", storage=f"{uri}?{PATIENT}") as limiter:
        for _ in range(2):  # one call a minute is as good as this
            assert (asyncio.run(limiter.hit_async("k")) if is_async else limiter.hit("k")).degraded
        (said,) = eventually(lambda: warnings(caplog))
    assert why in said
    assert "right" not in said
    assert "wrong" not in said


def test_a_password_function_that_fails_is_said(
    guarded: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def password() -> str:
        raise LookupError("s3cret")

    uri = f"redis://127.0.0.1:{guarded.port}?{PATIENT}"
    with tg.Limiter("5/hour", storage=uri, password=password):
        (said,) = eventually(lambda: warnings(caplog))
    assert "the password function raised LookupError" in said
    assert "s3cret" not in said


def _limiter(uri: str) -> Any:
    return tg.Limiter("5/hour", storage=uri)


def _decorator(uri: str) -> Any:
    @tg.rate_limit("5/hour", storage=uri)
    def view() -> str:
        return "hello"

    return view


def _dependency(uri: str) -> Any:
    return fastapi.FastAPI(
        dependencies=[fastapi.Depends(tidegate.fastapi.RateLimit("5/hour", storage=uri))]
    )


def _flask_extension(uri: str) -> Any:
    app = flask.Flask("app")
    tidegate.flask.RateLimiter(app, "5/hour", storage=uri)
    return app


def _flask_decorator(uri: str) -> Any:
    app = flask.Flask("app")
    limiter = tidegate.flask.RateLimiter(app, storage=uri)

    @app.get("/")
    @limiter.limit("5/hour")
    def view() -> str:
        return "hello"

    return app


def _wsgi(uri: str) -> Any:
    return tidegate.wsgi.RateLimitMiddleware(lambda *_: [], limit="5/hour", storage=uri)


def _asgi(uri: str) -> Any:
    app = starlette.applications.Starlette()
    return tidegate.asgi.RateLimitMiddleware(app, limit="5/hour", storage=uri)


@pytest.mark.parametrize(
    "make",
    [_limiter, _decorator, _dependency, _flask_extension, _flask_decorator, _wsgi, _asgi],
    ids=lambda make: make.__name__.lstrip("_"),
)
def test_the_storage_is_checked_at_the_start(
    nowhere: str, make: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = make(nowhere)
    (said,) = eventually(lambda: warnings(caplog))
    assert "Connection refused" in said
    assert "s3cret" not in caplog.text
    del made
