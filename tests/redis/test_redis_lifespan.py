"""The middleware opens and closes its Redis with the application, under a real server."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import tidegate as tg
import uvicorn
from polling import eventually
from redis_server import PATIENT, RedisServer
from servers import Client, hello, uvicorn_at
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from tidegate.asgi import RateLimitMiddleware

ANSWERS = "rate limiting: the storage answers"


class Counted:
    """A server, and how many connections this test has to it."""

    _tests = itertools.count()

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._name = f"test-{next(self._tests)}-"
        self.uri = server.uri(f"{PATIENT}&client_name={self._name}")

    def connections(self) -> int:
        return self._server.command("CLIENT", "LIST").count(f"name={self._name}".encode())


@pytest.fixture
def redis(server: RedisServer) -> Counted:
    return Counted(server)


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def app(events: list[str]) -> Starlette:
    """An application that says when it begins and ends."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> Any:
        events.append("begins")
        yield
        events.append("ends")

    async def home(request: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    return Starlette(routes=[Route("/", home)], lifespan=lifespan)


@contextlib.contextmanager
def served(app: Any, lifespan: str) -> Iterator[Client]:
    with (
        uvicorn_at(app, lifespan=lifespan, ws="none", log_config=None) as address,
        contextlib.closing(Client(address)) as client,
    ):
        yield client


@pytest.mark.parametrize("lifespan", ["on", "auto"])
def test_it_is_connected_before_the_first_request_and_closed_after_the_last(
    redis: Counted,
    app: Starlette,
    events: list[str],
    lifespan: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    middleware = RateLimitMiddleware(app, limit="2/hour", storage=redis.uri)
    with caplog.at_level(logging.INFO, "tidegate"), served(middleware, lifespan) as client:
        eventually(lambda: redis.connections() == 1)
        assert [client("/").status for _ in range(3)] == [200, 200, 429]
        assert redis.connections() == 1
    eventually(lambda: redis.connections() == 0)
    assert caplog.messages.count(ANSWERS) == 1
    assert events == ["begins", "ends"]


def test_it_may_be_started_anew(redis: Counted, app: Starlette, events: list[str]) -> None:
    middleware = RateLimitMiddleware(app, limit=iter(["2/hour"]), storage=redis.uri)
    answers = []
    for _ in range(3):
        with TestClient(middleware) as client:
            answers.append(client.get("/").status_code)
    assert answers == [200, 200, 429]
    assert events == ["begins", "ends"] * 3
    eventually(lambda: redis.connections() == 0)
    # And asked without being started.
    assert TestClient(middleware).get("/").status_code == 429


@pytest.mark.parametrize("lifespan", ["off", "auto"])
def test_without_a_lifespan_the_first_request_connects(redis: Counted, lifespan: str) -> None:
    # `hello` answers every scope as if it were a request, which is no support of lifespans.
    middleware = RateLimitMiddleware(hello, limit="1/hour", storage=redis.uri)
    with served(middleware, lifespan) as client:
        assert [client("/").status for _ in range(2)] == [200, 429]
        assert redis.connections() == 1


def test_an_application_without_lifespan_fails_where_that_is_demanded(redis: Counted) -> None:
    middleware = RateLimitMiddleware(hello, limit="1/hour", storage=redis.uri)
    server = uvicorn.Server(uvicorn.Config(middleware, lifespan="on", port=0, log_config=None))
    with pytest.raises(SystemExit):
        server.run()
    assert not server.started


def test_a_mounted_one_needs_no_lifespan(redis: Counted, app: Starlette) -> None:
    inner = RateLimitMiddleware(app, limit="1/hour", storage=redis.uri)
    with served(Starlette(routes=[Mount("/inner", inner)]), "on") as client:
        assert [client("/inner/").status for _ in range(2)] == [200, 429]


def test_two_of_them(redis: Counted, app: Starlette, events: list[str]) -> None:
    inner = RateLimitMiddleware(app, limit="1/hour", storage=redis.uri, prefix="inner")
    outer = RateLimitMiddleware(inner, limit="3/hour", storage=redis.uri, prefix="outer")
    with served(outer, "on") as client:
        eventually(lambda: redis.connections() == 1)  # for both
        assert [client("/").status for _ in range(2)] == [200, 429]
    eventually(lambda: redis.connections() == 0)
    assert events == ["begins", "ends"]


def test_what_was_given_open_is_its_owners(redis: Counted, app: Starlette) -> None:
    with tg.Limiter("9/hour", storage=redis.uri) as limiter:
        given = RateLimitMiddleware(app, limiter=limiter)
        shared = RateLimitMiddleware(given, limit="8/hour", storage=limiter.storage)
        with served(shared, "on") as client:
            assert client("/").status == 200
        assert given.limiter is limiter
        assert limiter.hit("k").allowed
        assert redis.connections() == 1


def test_a_storage_that_is_not_there_is_said_once_and_stops_nothing(
    app: Starlette, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = listener.getsockname()[1]
    storage = f"redis://:secret@127.0.0.1:{gone}"
    middleware = RateLimitMiddleware(app, limit="1/hour", storage=storage)
    with caplog.at_level(logging.INFO, "tidegate"), served(middleware, "on") as client:
        assert [client("/").status for _ in range(2)] == [200, 429]
    said = [line for line in caplog.messages if "the storage does not answer" in line]
    assert len(said) == 1
    assert "secret" not in caplog.text
    assert events == ["begins", "ends"]


def test_a_failing_start_lets_go_too(redis: Counted) -> None:
    @contextlib.asynccontextmanager
    async def failing(app: Any) -> Any:
        raise RuntimeError("no database")
        yield

    middleware = RateLimitMiddleware(Starlette(lifespan=failing), limit="1/hour", storage=redis.uri)
    with pytest.raises(RuntimeError, match="no database"), TestClient(middleware):
        pass
    eventually(lambda: redis.connections() == 0)
    assert middleware.limiter.hit("k").allowed
