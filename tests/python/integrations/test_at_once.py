"""Limits on the requests in flight: `5 at once`, on routes, dependencies and whole applications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import tidegate as tg
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.responses import StreamingResponse
from flask import Flask, Response
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tidegate import rate_limit
from tidegate.asgi import RateLimitMiddleware
from tidegate.fastapi import DefaultRateLimit, RateLimit
from tidegate.flask import RateLimiter as FlaskRateLimit

pytest.importorskip("django")

from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from tidegate.django import throttle

CLOCK = tg.ManualClock(10**18)


def test_a_limit_at_once_is_a_concurrency_limit_of_that_name() -> None:
    limit = tg.parse("5 at once")
    assert (limit.algorithm, limit.count, limit.name) == ("concurrency", 5, "5 at once")
    several = tg.parse_many("5 at once; 100/minute")
    assert [each.algorithm for each in several] == ["concurrency", "token-bucket"]


@pytest.mark.parametrize("text", ["0 at once", "many at once", "-1 at once", "1.5 at once"])
def test_a_limit_at_once_needs_a_count(text: str) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected a whole number"):
        tg.Limiter(text)


class Calls:
    """Requests to an application, which answers them when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.app: Any = None

    async def ask(self, path: str = "/", body: bytes = b"") -> int:
        status = 0
        unread = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            if unread:
                return unread.pop()
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        scope = {
            "type": "http", "method": "POST", "path": path, "client": ("192.0.2.1", 1),
            "query_string": b"", "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip
        await self.app(scope, receive, send)
        return status

    async def begin(self, times: int) -> list[asyncio.Task[int]]:
        tasks = [asyncio.ensure_future(self.ask()) for _ in range(times)]
        for _ in range(50):
            await asyncio.sleep(0)
        return tasks


def of_fastapi(how: str, calls: Calls) -> Any:
    limited: Any = rate_limit("2 at once", clock=CLOCK)
    depends = Depends(RateLimit("2 at once", clock=CLOCK))
    if how == "a default":
        app = FastAPI(dependencies=[Depends(DefaultRateLimit("2 at once", clock=CLOCK))])
    else:
        app = FastAPI()

    async def route() -> str:
        await calls.go.wait()
        return "ok"

    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "1"
            await calls.go.wait()
            yield "2"

        return StreamingResponse(parts())

    if how == "a stream":
        app.post("/")(limited(stream))
    elif how == "a decorator":
        app.post("/")(limited(route))
    elif how == "a dependency":
        app.post("/", dependencies=[depends])(route)
    else:
        app.post("/")(route)
    return RateLimitMiddleware(app, "2 at once", clock=CLOCK) if how == "middleware" else app


def of_starlette(how: str, calls: Calls) -> Any:
    @rate_limit("2 at once", clock=CLOCK)
    async def route(request: Any) -> PlainTextResponse:
        await calls.go.wait()
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/", route, methods=["POST"])])


@pytest.mark.parametrize("end", ["answers", "is cancelled"])
@pytest.mark.parametrize(
    ("make", "how"),
    [
        *((of_fastapi, how) for how in ("a decorator", "a stream", "a dependency", "a default")),
        (of_fastapi, "middleware"),
        (of_starlette, "a decorator"),
    ],
)
def test_so_many_requests_pass_at_once(make: Any, how: str, end: str) -> None:
    async def run() -> None:
        calls = Calls()
        calls.app = make(how, calls)
        for _ in range(3):
            calls.go.clear()
            tasks = await calls.begin(2)
            assert await asyncio.gather(*await calls.begin(2)) == [429, 429]
            if end == "is cancelled":
                for task in tasks:
                    task.cancel()
            calls.go.set()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            if end == "answers":
                assert found == [200, 200]

    asyncio.run(run())


@pytest.mark.parametrize("answer", ["a value", "a response", "one response of all"])
@pytest.mark.parametrize("how", ["a decorator", "a dependency", "middleware"])
def test_background_tasks_take_no_place(how: str, answer: str) -> None:
    async def run() -> None:
        calls = Calls()
        calls.app = app = FastAPI()
        ended = []

        async def work() -> None:
            await calls.go.wait()
            ended.append(answer)

        shared = PlainTextResponse("ok", background=BackgroundTask(work))

        async def route(tasks: BackgroundTasks) -> Any:
            if answer == "one response of all":
                return shared
            if answer == "a response":
                return PlainTextResponse("ok", background=BackgroundTask(work))
            tasks.add_task(work)
            return "ok"

        if how == "a decorator":
            app.post("/")(rate_limit("2 at once", clock=CLOCK)(route))
        elif how == "a dependency":
            app.post("/", dependencies=[Depends(RateLimit("2 at once", clock=CLOCK))])(route)
        else:
            app.post("/")(route)
            calls.app = RateLimitMiddleware(app, "2 at once", clock=CLOCK)
        tasks = [*await calls.begin(2), *await calls.begin(2), *await calls.begin(2)]
        assert ended == []
        calls.go.set()
        assert await asyncio.gather(*tasks) == [200] * 6
        assert ended == [answer] * 6

    asyncio.run(run())


def test_a_place_whose_lease_a_dependency_outlives_is_given_back() -> None:
    async def run() -> None:
        clock = tg.ManualClock(10**18)
        calls = Calls()
        calls.app = app = FastAPI()

        def slow() -> None:
            clock.advance(40)

        @app.post("/", dependencies=[Depends(slow)])
        @rate_limit("1 at once", clock=clock)
        async def route() -> str:
            return "ok"

        assert [await calls.ask() for _ in range(4)] == [200] * 4

    asyncio.run(run())


def test_requests_that_do_not_reach_the_route_hold_no_place() -> None:
    app = FastAPI()

    @app.post("/")
    @rate_limit("2 at once", clock=CLOCK)
    async def route(number: int) -> str:
        return "ok"

    async def run() -> None:
        calls = Calls()
        calls.app = app
        assert [await calls.ask(body=b"{") for _ in range(5)] == [422] * 5

    asyncio.run(run())


def test_a_decorator_at_once_beside_a_rate_is_one_plan() -> None:
    async def run() -> None:
        calls = Calls()
        app = FastAPI()

        @app.post("/")
        @rate_limit("2 at once", clock=CLOCK)
        @rate_limit("5/hour", clock=CLOCK)
        async def route() -> str:
            await calls.go.wait()
            return "ok"

        calls.app = app
        tasks = await calls.begin(2)
        assert [await calls.ask() for _ in range(9)] == [429] * 9
        calls.go.set()
        assert await asyncio.gather(*tasks) == [200, 200]
        assert [await calls.ask() for _ in range(4)] == [200, 200, 200, 429]

    asyncio.run(run())


def test_a_route_that_raises_gives_its_place_back() -> None:
    async def run() -> None:
        calls = Calls()
        calls.app = app = FastAPI()

        @app.post("/")
        @rate_limit("1 at once", clock=CLOCK)
        def route() -> str:
            raise LookupError("broken")

        for _ in range(3):
            with pytest.raises(LookupError):
                await calls.ask()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["a decorator", "the extension", "a view's limit"])
def test_flask_gives_places_back_at_the_end_of_the_response(how: str) -> None:
    app = Flask(__name__)
    extension = FlaskRateLimit(app, "2 at once" if how == "the extension" else None, clock=CLOCK)
    limited: Any = {
        "a decorator": rate_limit("2 at once", clock=CLOCK),
        "the extension": lambda view: view,
        "a view's limit": extension.limit("2 at once"),
    }[how]
    app.add_url_rule("/", view_func=limited(lambda: "ok"), endpoint="page")
    app.add_url_rule("/s", view_func=limited(lambda: Response(iter("12"))), endpoint="stream")
    client = app.test_client()
    for _ in range(4):
        answer = client.get("/")
        assert answer.status_code == 200
        answer.close()
    held = [client.get("/s"), client.get("/s")]
    assert client.get("/s").status_code == 429
    for answer in held:
        answer.close()
    assert client.get("/s").status_code == 200


def test_django_gives_places_back_at_the_end_of_the_response() -> None:
    view = rate_limit("1 at once", clock=CLOCK)(lambda request: HttpResponse("ok"))
    with override_settings(
        ALLOWED_HOSTS=["*"], ROOT_URLCONF=(path("", view),), MIDDLEWARE=[], TIDEGATE={}
    ):
        assert [Client().get("/").status_code for _ in range(4)] == [200] * 4


def test_a_place_that_nothing_would_give_back_is_refused() -> None:
    with pytest.raises(tg.ConfigurationError, match="a throttle"):
        throttle("2 at once")
    with pytest.raises(tg.ConfigurationError, match="refusals"):
        FlaskRateLimit(Flask(__name__), "9/hour", meta_limit="2 at once")
    with pytest.raises(tg.ConfigurationError, match="cost_after"):
        RateLimit("2 at once", cost_after=lambda request, answer: 1)
    app = FastAPI()
    app.post("/")(rate_limit(lambda request: "2 at once", clock=CLOCK)(lambda: "ok"))

    async def run() -> None:
        calls = Calls()
        calls.app = app
        with pytest.raises(tg.ConfigurationError, match="a function of the request"):
            await calls.ask()

    asyncio.run(run())
