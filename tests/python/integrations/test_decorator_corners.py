"""Cases in which @rate_limit could limit wrongly, or silently not at all."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import fastapi
import flask
import httpx2
import pytest
import tidegate as tg
from fastapi import Depends
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from tidegate import rate_limit
from tidegate.fastapi import RateLimit

if TYPE_CHECKING:
    from nowhere import Unknown

NOW = 1_700_000_000 * 10**9


def user(request):
    return request.headers["x-user"]


def statuses(client, count, path="/", **headers):
    return [client.get(path, headers=headers).status_code for _ in range(count)]


def test_methods_of_endpoints_are_keyed_by_the_request(clock):
    @rate_limit("1/minute", key=user, methods=["GET"], clock=clock)
    class Items(HTTPEndpoint):
        async def get(self, request):
            return JSONResponse("got")

        @rate_limit("9/minute", key=user, clock=clock)
        async def post(self, request):
            return JSONResponse("posted")

    client = TestClient(Starlette(routes=[Route("/", Items)]))
    for name in ("a", "b", "c"):
        assert statuses(client, 2, **{"x-user": name}) == [200, 429]
    assert client.post("/", headers={"x-user": "a"}).headers["ratelimit"] == '"9/minute";r=8;t=7'


def test_a_flask_view_may_have_an_attribute_scope(clock):
    class Items(MethodView):
        scope = "items"

        @rate_limit("1/minute", clock=clock)
        def get(self):
            return "got"

    app = flask.Flask(__name__)
    app.add_url_rule("/", view_func=Items.as_view("items"))
    assert statuses(app.test_client(), 2) == [200, 429]


def test_subclasses_of_a_limited_class_are_limited(clock):
    class Plain(MethodView):
        def get(self):
            return "got"

    early = Plain.as_view("early")
    rate_limit("3/minute", clock=clock)(Plain)

    class Heir(Plain):
        decorators = (lambda view: view,)

    app = flask.Flask(__name__)
    app.add_url_rule("/early", view_func=early)
    app.add_url_rule("/heir", view_func=Heir.as_view("heir"))
    client = app.test_client()
    assert statuses(client, 2, "/early") + statuses(client, 2, "/heir") == [200, 200, 200, 429]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_dependency_refuses_for_the_route(clock, is_async):
    app = fastapi.FastAPI()
    ran = []

    if is_async:

        @rate_limit("1/minute", clock=clock)
        async def limited():
            return "value"

    else:

        @rate_limit("1/minute", clock=clock)
        def limited():
            return "value"

    @app.get("/")
    def route(found=Depends(limited)):  # noqa: B008
        ran.append(found)
        return {}

    client = TestClient(app)
    assert statuses(client, 3) == [200, 429, 429]
    assert ran == ["value"]
    assert client.get("/").json()["violated-policies"] == ["1/minute"]


class AsyncFunction:
    async def __call__(self, request):
        return "1/minute"


@pytest.mark.parametrize("name", ["limit", "key", "cost", "exempt_when"])
def test_async_objects_need_an_async_route(name):
    options = {"limit": "5/minute", name: AsyncFunction()}
    with pytest.raises(tg.ConfigurationError, match="expected a function that is not async"):

        @rate_limit(**options)
        def route():
            return {}

    @rate_limit(**options)
    async def route_async():
        return {}


def test_wrapped_async_views_are_awaited(clock):
    class View:
        async def __call__(self):
            return {"found": True}

    async def bare():
        return {"found": True}

    @functools.wraps(bare)
    def wrapper():
        return bare()

    app = fastapi.FastAPI()
    app.get("/object")(rate_limit("1/minute", clock=clock)(View()))
    app.get("/wrapper")(rate_limit("1/minute", clock=clock)(wrapper))
    client = TestClient(app)
    for path in ("/object", "/wrapper"):
        assert statuses(client, 3, path) == [200, 429, 429]


def test_annotations_may_name_what_only_type_checkers_have(clock):
    app = fastapi.FastAPI()

    async def route(request: fastapi.Request, number: int = 3) -> Unknown:
        return {"path": request.url.path, "number": number}

    app.get("/", response_model=None)(rate_limit("1/minute", clock=clock)(route))
    client = TestClient(app)
    assert client.get("/?number=4").json() == {"path": "/", "number": 4}
    assert client.get("/").status_code == 429


def test_exceptions_may_have_their_own_constructor(clock):
    class Conflict(fastapi.HTTPException):
        def __new__(cls, *, code):
            return super().__new__(cls)

        def __init__(self, *, code):
            super().__init__(code, "conflict")

    app = fastapi.FastAPI()

    @app.get("/")
    @rate_limit("9/minute", clock=clock)
    async def route():
        raise Conflict(code=409)

    answer = TestClient(app).get("/")
    assert (answer.status_code, answer.headers["ratelimit"]) == (409, '"9/minute";r=8;t=7')


def test_different_limits_of_one_name_are_refused():
    with pytest.raises(tg.ConfigurationError, match=r"have the name 'api'.*expected names"):

        @rate_limit(tg.Limit("3/minute", name="api"))
        @rate_limit(tg.Limit("100/hour", name="api"))
        def route():
            return {}


def test_stacked_limits_send_the_families_of_each(clock):
    app = flask.Flask(__name__)

    @app.get("/")
    @rate_limit("9/minute", headers=["ietf"], clock=clock)
    @rate_limit("5/minute", headers=["x-ratelimit"], clock=clock)
    def route():
        return "x"

    answer = app.test_client().get("/")
    assert answer.headers["RateLimit"] == '"5/minute";r=4;t=12'
    assert answer.headers["X-RateLimit-Limit"] == "5"


def test_a_bare_decorator_is_refused_on_a_route_with_an_attribute_endpoint():
    app = flask.Flask(__name__)
    with pytest.raises(tg.ConfigurationError, match="and no view; expected a limit"):

        @app.route("/", endpoint="own")
        @rate_limit
        def route(request):
            return {}


def test_one_task_sends_no_fields_of_another_request(clock):
    app = fastapi.FastAPI()
    limit = RateLimit("9/minute", clock=clock, exempt_when=lambda r: "x-staff" in r.headers)

    @app.get("/", dependencies=[Depends(limit)])
    async def route():
        return JSONResponse({})

    async def run():
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            assert "ratelimit" in (await client.get("/")).headers
            assert "ratelimit" not in (await client.get("/", headers={"x-staff": "1"})).headers

    asyncio.run(run())


def test_a_dependency_charges_only_its_methods(clock):
    app = fastapi.FastAPI(
        dependencies=[Depends(RateLimit("1/minute", methods=["POST"], clock=clock))]
    )

    @app.api_route("/", methods=["GET", "POST"])
    def route():
        return {}

    client = TestClient(app)
    assert statuses(client, 3) == [200] * 3
    assert [client.post("/").status_code for _ in range(2)] == [200, 429]


# ------------------------------------------------------------------- cost_after

ALGORITHMS = ("token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log")


@pytest.mark.parametrize("limit", ["10/minute", ["10/minute", "1000/hour"]])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("stacked", [False, True])
def test_expired_units_are_not_given_back(clock, algorithm, limit, stacked):
    """A route that takes a minute gives nothing back into the next minute."""
    clock.set_ns(NOW // (60 * 10**9) * (60 * 10**9))
    store = tg.Limiter("1/s").storage
    options = {"clock": clock, "storage": store, "scope": "s", "key": lambda r: "k"}
    app = flask.Flask(__name__)
    seconds = []

    def view():
        if seconds:
            clock.advance(seconds.pop())
            others = tg.Limiter(
                limit, storage=store, prefix="tg:s", clock=clock, algorithm=algorithm
            )
            flask.g.allowed = sum(bool(others.hit("k")) for _ in range(30))
        return "x"

    decorate = rate_limit(limit, algorithm=algorithm, cost=10, cost_after=lambda r, x: 1, **options)
    limited = decorate(view)
    if stacked:
        limited = rate_limit("99/minute", **{**options, "scope": "t"})(limited)
    app.get("/")(limited)
    client = app.test_client()
    seconds.append(60)
    assert client.get("/").status_code == 200
    after = tg.Limiter(limit, storage=store, prefix="tg:s", clock=clock, algorithm=algorithm)
    # Others have used the whole new minute, and stay refused.
    assert not after.hit("k")


@pytest.mark.parametrize("others", [0, 1])
def test_a_unit_is_given_back_though_time_has_passed(clock, others):
    store = tg.Limiter("1/s").storage
    limiter = tg.Limiter("10/hour", storage=store, prefix="tg:s", clock=clock)
    app = flask.Flask(__name__)

    @app.get("/")
    @rate_limit(
        "10/hour",
        cost=5,
        cost_after=lambda r, x: 0,
        key=lambda r: "k",
        clock=clock,
        storage=store,
        scope="s",
    )
    def route():
        clock.advance(100)
        for _ in range(others):
            limiter.hit("k")
        return "x"

    app.test_client().get("/")
    # What time has given back meanwhile is not given back a second time.
    assert limiter.peek("k").remaining == 10 - others


@pytest.mark.parametrize("limit", ["10/minute", ["10/minute", "20/hour"]])
def test_a_log_gives_back_its_own_entries(clock, limit):
    store = tg.Limiter("1/s").storage
    options = {"algorithm": "sliding-log", "clock": clock, "storage": store}
    limiter = tg.Limiter(limit, prefix="tg:s", **options)
    app = flask.Flask(__name__)

    @app.get("/")
    @rate_limit(limit, cost=6, cost_after=lambda r, x: 2, key=lambda r: "k", scope="s", **options)
    def route():
        clock.advance(50)
        limiter.hit("k", 3)
        return "x"

    app.test_client().get("/")
    assert limiter.peek("k").remaining == 5
    # The first 2 entries end after a minute, the others 50 seconds later.
    clock.advance(10)
    assert tg.Limiter("10/minute", prefix="tg:s", **options).peek("k").remaining == 7
    clock.advance(49)
    assert tg.Limiter("10/minute", prefix="tg:s", **options).peek("k").remaining == 7
