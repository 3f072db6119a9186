"""A streaming response is settled when its stream ends, even if the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from polling import eventually
from servers import asgi_server, uvicorn_at, wsgi_server
from streams import KEY, START, limited, request_to

fastapi = pytest.importorskip("fastapi")
flask = pytest.importorskip("flask")
pytest.importorskip("uvicorn")

from fastapi.responses import StreamingResponse  # noqa: E402


def test_the_cost_of_a_stream_is_settled_when_it_ends() -> None:
    decorator, left = limited()
    app = fastapi.FastAPI()
    seen = []

    @app.get("/")
    @decorator
    async def stream(request: fastapi.Request, used: int) -> StreamingResponse:
        async def items() -> AsyncIterator[str]:
            for _ in range(used):
                request.state.used = getattr(request.state, "used", 0) + 1
                seen.append(left())
                yield "x"

        return StreamingResponse(items())

    with asgi_server(app) as client:
        answer = client("/?used=20")
        assert (answer.status, answer.body) == (200, b"x" * 20)
        assert set(seen) == {50}  # not before
        assert answer["x-ratelimit-remaining"] == "50"
        eventually(lambda: left() == 80)
        assert client("/?used=60").status == 200
        eventually(lambda: left() == 20)


def test_an_overrun_is_charged_as_far_as_there_is_room() -> None:
    decorator, left = limited(cost_after=lambda request, response: 5000)
    app = fastapi.FastAPI()

    @app.get("/")
    @decorator
    def stream() -> StreamingResponse:
        return StreamingResponse(iter(["x"]))

    with asgi_server(app) as client:
        assert client("/").status == 200
        eventually(lambda: left() == 0)
        assert client("/").status == 429


@pytest.mark.parametrize("kind", ["async", "plain", "noted when it is closed"])
def test_a_stream_is_settled_if_the_client_leaves(kind: str) -> None:
    decorator, left = limited(cost_after=lambda request, response: response.used)
    app = fastapi.FastAPI()
    began, gone = threading.Event(), threading.Event()

    def answer(items: Any) -> StreamingResponse:
        response = StreamingResponse(items)
        response.used = 0
        return response

    async def forever(response: list[Any]) -> AsyncIterator[bytes]:
        used = 0
        try:
            while True:
                used += 1
                if kind == "async":
                    response[0].used = 30
                yield b"x" * 1000
                began.set()
                await asyncio.sleep(0.001)
        finally:
            response[0].used = 30

    def forever_plain(response: list[Any]) -> Iterator[bytes]:
        response[0].used = 30
        while True:
            yield b"x" * 1000
            began.set()
            gone.wait(0.001)

    if kind == "plain":

        @app.get("/")
        @decorator
        def stream() -> StreamingResponse:
            response: list[Any] = []
            response.append(answer(forever_plain(response)))
            return response[0]

    else:

        @app.get("/")
        @decorator
        async def stream() -> StreamingResponse:
            response: list[Any] = []
            response.append(answer(forever(response)))
            return response[0]

    with uvicorn_at(app) as address:
        with request_to(address) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            assert began.wait(20)
            assert left() == 50
        gone.set()
        eventually(lambda: left() == 70, 20)


def test_a_stream_is_settled_behind_starlettes_middleware_if_the_client_leaves() -> None:
    from starlette.middleware.base import BaseHTTPMiddleware

    decorator, left = limited(cost_after=cost_later)
    app = fastapi.FastAPI()
    began = threading.Event()

    @app.get("/")
    @decorator
    async def stream() -> StreamingResponse:
        async def items() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 1000
                began.set()
                await asyncio.sleep(0.001)

        return StreamingResponse(items())

    async def passing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    with uvicorn_at(app) as address:
        with request_to(address):
            assert began.wait(20)
            assert left() == 50
        eventually(lambda: left() == 90, 20)


def test_a_cancelled_task_settles_its_stream() -> None:
    decorator, left = limited(cost_after=cost_later)
    entered: list[asyncio.Event] = []

    async def stalled() -> AsyncIterator[str]:
        yield "x"
        entered[0].set()
        await asyncio.Event().wait()

    app = fastapi.FastAPI()

    @app.get("/")
    @decorator
    async def stream() -> StreamingResponse:
        return StreamingResponse(stalled())

    async def call() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        scope |= {"asgi": {"version": "3.0", "spec_version": "2.4"}, "client": ("::1", 1)}

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            pass

        entered.append(asyncio.Event())
        task = asyncio.ensure_future(app(scope, receive, send))
        await entered[0].wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(call())
    assert left() == 90


async def cost_later(request: Any, response: Any) -> int:
    await asyncio.sleep(0)
    return 10


def test_other_responses_are_settled_before_they_are_sent() -> None:
    decorator, left = limited(cost_after=lambda request, response: 10)
    app = fastapi.FastAPI()

    @app.get("/")
    @decorator
    async def one() -> dict[str, int]:
        return {}

    with asgi_server(app) as client:
        assert client("/")["x-ratelimit-remaining"] == "90"
        assert left() == 90


def test_a_response_of_flask_is_settled_when_it_is_closed() -> None:
    decorator, left = limited(cost_after=lambda request, result: request.used)
    app = flask.Flask(__name__)
    shapes = {
        "generator": lambda items: items,
        "tuple": lambda items: (items, 200, {"x-shape": "tuple"}),
        "response": flask.Response,
    }

    @app.get("/<shape>")
    @decorator
    def stream(shape: str) -> Any:
        request = flask.request._get_current_object()

        def items() -> Iterator[str]:
            for used in range(1, 21):
                request.used = used
                assert left() in (50, 30, 0)
                yield "x"

        return shapes[shape](items())

    with wsgi_server(app) as client:
        for shape, expected in (("generator", 80), ("tuple", 60)):
            assert client(f"/{shape}").body == b"x" * 20
            eventually(lambda expected=expected: left() == expected)


def test_a_response_of_flask_is_settled_if_the_client_disconnects() -> None:
    decorator, left = limited(cost_after=lambda request, result: 30)
    app = flask.Flask(__name__)
    began = threading.Event()

    @app.get("/")
    @decorator
    def stream() -> Any:
        def items() -> Iterator[bytes]:
            while True:
                yield b"x" * 10000
                began.set()

        return flask.Response(items())

    with wsgi_server(app) as client:
        address = (client._connection.host, client._connection.port)
        with request_to(address):
            assert began.wait(20)
            assert left() == 50
        eventually(lambda: left() == 70, 20)


@pytest.mark.parametrize("how", ["decorator", "extension"])
@pytest.mark.parametrize("later", ["keeps", "takes the stream", "reads the stream", "raises"])
def test_a_stream_of_flask_is_settled_whatever_later_code_makes_of_it(how: str, later: str) -> None:
    from tidegate.flask import RateLimiter

    app = flask.Flask(__name__)
    clock = tg.ManualClock(START)
    limit: Any = RateLimiter(app, clock=clock).limit
    if how == "decorator":
        limit = functools.partial(tg.rate_limit, clock=clock)
    settled: list[Any] = []

    def cost_after(request: Any, answer: Any) -> int:
        settled.append(answer)
        return 20

    @app.after_request
    def change(response: Any) -> Any:
        if response.status_code != 200 or later == "keeps":
            return response
        if later == "raises":
            raise LookupError(later)
        if later == "reads the stream":
            response.get_data()
            return response
        return flask.Response(response.response, headers=response.headers)

    @limit("1 at once")
    def inner() -> Any:
        return flask.Response(iter(["x", "y"]))

    @app.get("/")
    @limit("100/minute", cost=50, cost_after=cost_after)
    def outer() -> Any:
        return inner()

    client = app.test_client()
    for number in (1, 2, 3):
        with client.get("/") as answer:
            assert answer.status_code == (500 if later == "raises" else 200)
            assert later == "raises" or answer.data == b"xy"
        assert len(settled) == number
    clock.advance(60)
    with client.get("/") as answer:
        assert '"100/minute";r=50' in answer.headers["RateLimit"]


def test_a_file_that_flask_sends_gives_its_place_back(tmp_path: Path) -> None:
    (tmp_path / "tides.csv").write_text("04:12")
    app = flask.Flask(__name__)

    @app.get("/")
    @tg.rate_limit("1 at once")
    def tides() -> Any:
        return flask.send_file(tmp_path / "tides.csv")

    for _ in range(3):
        with app.test_client().get("/") as answer:
            assert (answer.status_code, answer.data) == (200, b"04:12")


def test_the_extension_settles_when_the_response_is_closed() -> None:
    from tidegate.flask import RateLimiter

    app = flask.Flask(__name__)
    clock = tg.ManualClock(START)
    limits = RateLimiter(app, clock=clock, key=lambda request: KEY)

    @app.get("/")
    @limits.limit("100/minute", cost=50, cost_after=lambda request, result: 20)
    def stream() -> Any:
        return flask.Response(iter([b"x", b"y"]))

    @app.get("/all")
    @limits.limit("100/minute", cost=50, cost_after=lambda request, result: 20)
    def at_once() -> Any:
        return "xy"

    client = app.test_client()
    told = []
    for path in ("/", "/all"):
        for _ in range(2):
            answer = client.get(path)
            assert answer.get_data() == b"xy"
            answer.close()
            told.append(int(answer.headers["X-RateLimit-Remaining"]))
    assert told == [50, 30, 80, 60]  # before it is settled, and after


def test_the_charge_stays_if_cost_after_fails() -> None:
    decorator, left = limited(cost_after=lambda request, response: 1 // 0)
    app = fastapi.FastAPI()
    sent = []

    @app.get("/")
    @decorator
    async def stream() -> StreamingResponse:
        async def items() -> AsyncIterator[str]:
            yield "x"
            sent.append(True)

        return StreamingResponse(items())

    with asgi_server(app) as client:
        assert client("/").body == b"x"
        assert sent == [True]
        assert left() == 50


def test_a_response_returned_twice_is_settled_once_for_each_request() -> None:
    class Endless:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> str:
            raise StopAsyncIteration

    decorator, left = limited(cost_after=lambda request, response: 10)
    app = fastapi.FastAPI()
    one = StreamingResponse(Endless())

    @app.get("/")
    @decorator
    async def stream() -> StreamingResponse:
        return one

    with asgi_server(app) as client:
        for expected in (90, 80, 70):
            assert client("/").status == 200
            eventually(lambda expected=expected: left() == expected)
