"""What a request with `cost_after` has been charged, whatever becomes of it (docs/web.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import fastapi
import flask
import pytest
import tidegate as tg
from fastapi import Depends
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from tidegate import asgi, rate_limit
from tidegate.fastapi import RateLimit
from tidegate.flask import RateLimiter

KEY = "203.0.113.9"
SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/",
    "query_string": b"",
    "headers": [],
    "client": (KEY, 1),
}


@pytest.fixture
def limiter(clock: tg.ManualClock) -> tg.Limiter:
    return tg.Limiter("100/hour", clock=clock)


def used(limiter: tg.Limiter, key: str = KEY) -> int:
    return 100 - limiter.peek(key).remaining


async def receive() -> dict[str, Any]:
    """The client has gone away."""
    return {"type": "http.disconnect"}


def served(limiter: tg.Limiter, application: Any, cost_after: Any) -> tuple[list[Any], list[Any]]:
    """Messages of a request through the middleware, and what cost_after was given."""
    given: list[Any] = []
    sent: list[Any] = []

    def noting(scope: Any, answer: Any) -> Any:
        given.append(answer)
        return cost_after(answer)

    app = asgi.RateLimitMiddleware(application, limiter=limiter, cost=10, cost_after=noting)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(SCOPE, receive, send))
    return sent, given


def test_a_client_that_leaves_before_the_answer(limiter: tg.Limiter) -> None:
    async def gives_up(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"

    _, given = served(limiter, gives_up, lambda answer: 3 if answer is None else 7)
    assert (given, used(limiter)) == ([None], 3)


def test_an_application_that_is_cancelled(limiter: tg.Limiter) -> None:
    async def cancelled(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        served(limiter, cancelled, lambda answer: answer.status // 10)
    assert used(limiter) == 20


def test_a_server_that_finds_the_client_gone_in_the_stream(limiter: tg.Limiter) -> None:
    async def streams(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise OSError("the client has disconnected")

    with pytest.raises(OSError, match="disconnected"):
        served(limiter, streams, lambda answer: 4 if isinstance(answer, OSError) else 7)
    assert used(limiter) == 4


def route_that_is_cancelled(how: str, limiter: tg.Limiter, given: list[Any]) -> Any:
    """An application whose only route is cancelled, limited by `how`."""

    def cost_after(request: Any, answer: Any) -> int:
        given.append(answer)
        return 4

    options: dict[str, Any] = {
        "key": lambda request: KEY,
        "cost": 10,
        "cost_after": cost_after,
        "storage": limiter.storage,
        "clock": limiter._clock,
        "scope": "cancelled",
    }

    async def route(request: Request) -> Response:
        raise asyncio.CancelledError

    if how == "decorator":
        return Starlette(routes=[Route("/", rate_limit("100/hour", **options)(route))])
    app = fastapi.FastAPI()
    app.get("/", dependencies=[Depends(RateLimit("100/hour", **options))])(route)
    return app


@pytest.mark.parametrize(
    ("how", "told", "charged"), [("decorator", [], 10), ("depends", [None], 4)]
)
def test_a_route_that_is_cancelled(
    limiter: tg.Limiter, how: str, told: list[None], charged: int
) -> None:
    given: list[Any] = []
    app = route_that_is_cancelled(how, limiter, given)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(app(SCOPE, receive, send))
    same = tg.Limiter(
        "100/hour", storage=limiter.storage, clock=limiter._clock, prefix="tg:cancelled"
    )
    assert (given, used(same)) == (told, charged)


@pytest.mark.parametrize("testing", [False, True])
def test_a_view_of_flask_that_a_later_function_does_not_let_begin(
    clock: tg.ManualClock, testing: bool
) -> None:
    """It settles once, and the fields show it; a view that begins settles by what it returns."""
    app = flask.Flask(__name__)
    app.testing = testing
    limiter = RateLimiter(app, clock=clock)
    given: list[Any] = []

    def cost_after(request: Any, answer: Any) -> int:
        given.append(answer)
        return 7

    @app.before_request
    def later() -> Any:
        how = flask.request.args["how"]
        if how == "abort":
            flask.abort(401)
        if how == "raise":
            raise LookupError(how)
        return flask.Response("later", 403) if how == "answer" else None

    class Views(MethodView):
        decorators = [limiter.limit("1000/hour", cost=50, cost_after=cost_after)]  # noqa: RUF012

        def get(self) -> Any:
            if flask.request.args["how"] == "broken":
                flask.abort(502)
            return "view" if flask.request.args["how"] == "view" else iter(["a", "b"])

    app.add_url_rule("/", view_func=Views.as_view("views"))
    app.errorhandler(401)(lambda exc: "who?")
    left = 1000
    for how, told in (
        ("abort", "Unauthorized"),
        ("answer", "Response"),
        ("raise", "LookupError"),
        ("view", "str"),
        ("broken", "BadGateway"),
        ("stream", "list_iterator"),
    ):
        left -= 7
        if how == "raise" and testing:
            with pytest.raises(LookupError):
                app.test_client().get("/?how=raise")
        else:
            answer = app.test_client().get(f"/?how={how}")
            shown = left - 43 if how == "stream" else left
            assert answer.headers["x-ratelimit-remaining"] == str(shown), how
            answer.close()
        assert [type(each).__name__ for each in given] == [told]
        given.clear()


def test_a_later_extension_of_flask_that_refuses_leaves_nothing_charged(
    clock: tg.ManualClock,
) -> None:
    app = flask.Flask(__name__)
    limiter = RateLimiter(app, clock=clock)
    RateLimiter(app, "1/second", clock=clock)
    given: list[Any] = []

    def cost_after(request: Any, answer: Any) -> int:
        given.append(answer)
        return 7

    @app.get("/")
    @limiter.limit("1000/day", cost=50, cost_after=cost_after)
    def view() -> str:
        return "view"

    client = app.test_client()
    assert [client.get("/").status_code for _ in range(3)] == [200, 429, 429]
    clock.advance(1)
    assert '"1000/day";r=986' in client.get("/").headers["ratelimit"]
    assert given == ["view", "view"]


@pytest.mark.parametrize("wrong", ["raises", -1, None, 1.5, True])
def test_a_cost_after_that_does_not_tell_leaves_the_estimate(
    limiter: tg.Limiter, wrong: Any
) -> None:
    def cost_after(answer: Any) -> Any:
        if wrong == "raises":
            raise KeyError
        return wrong

    served(limiter, answers, cost_after)
    assert used(limiter) == 10


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_background_tasks_run_after_an_answer_and_before_the_end_of_a_stream(
    clock: tg.ManualClock,
) -> None:
    limiter = tg.Limiter("100/hour", clock=clock, prefix="tg:both")
    order: list[str] = []

    def cost_after(request: Request, response: Any) -> int:
        order.append("settled")
        return 4

    limited = rate_limit(
        "100/hour",
        key=lambda request: KEY,
        cost=10,
        cost_after=cost_after,
        storage=limiter.storage,
        clock=clock,
        scope="both",
    )

    async def answer(request: Request) -> Response:
        return JSONResponse({}, background=BackgroundTask(order.append, "task"))

    async def stream(request: Request) -> Response:
        async def parts() -> Any:
            yield b"x"

        return StreamingResponse(parts(), background=BackgroundTask(order.append, "task"))

    routes = [Route("/answer", limited(answer)), Route("/stream", limited(stream))]
    client = TestClient(Starlette(routes=routes))
    assert client.get("/answer").headers["x-ratelimit-remaining"] == "96"
    assert client.get("/stream").status_code == 200
    assert order == ["settled", "task", "task", "settled"]
    assert used(limiter) == 8


def test_no_record_is_left_in_memory(clock: tg.ManualClock) -> None:
    small = tg.Limiter("100/hour", storage="memory://?capacity=64", clock=clock)
    for client in range(20):
        assert small.hit(f"client {client}", 100)
    for _ in range(2000):
        served(small, answers, lambda answer: 0)
    assert not any(small.hit(f"client {client}") for client in range(20)), "none was given up"


def test_a_limit_in_shadow_gives_back_only_what_it_charged(clock: tg.ManualClock) -> None:
    shadow = tg.Limit("12/hour", shadow=True)
    limiter = tg.Limiter(["100/hour", shadow], clock=clock)
    alone = tg.Limiter(shadow, storage=limiter.storage, clock=clock)
    alone.hit(KEY, 5)
    served(limiter, answers, lambda answer: 2)  # the limit in shadow has no room for the estimate
    assert (used(limiter), alone.peek(KEY).remaining) == (2, 7)


@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-log"])
def test_several_limits_are_settled_one_by_one(
    clock: tg.ManualClock, algorithm: tg.types.Algorithm
) -> None:
    """The units of the shorter limit have come back by the end, and are not given back again."""
    limits = ["100/hour", "10/minute"]
    limiter = tg.Limiter(limits, clock=clock, algorithm=algorithm)
    hour, minute = (
        tg.Limiter(each, storage=limiter.storage, clock=clock, algorithm=algorithm)
        for each in limits
    )

    def cost_after(answer: Any) -> int:
        clock.advance(60)
        assert minute.hit(KEY, 10)
        return 4

    served(limiter, answers, cost_after)
    assert minute.peek(KEY).remaining == 0
    assert hour.peek(KEY).remaining == 96 if algorithm != "token-bucket" else 97
