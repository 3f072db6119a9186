"""Several @rate_limit on one route, functions of limits, and costs known afterwards."""

from __future__ import annotations

import logging

import fastapi
import flask
import pytest
import tidegate as tg
from flask.views import MethodView, View
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from tidegate import rate_limit

NOW = 1_700_000_000 * 10**9


def user(request):
    return request.headers.get("x-user")


def tenant(request):
    return request.headers.get("x-tenant")


class Service:
    """One route in each framework, under the same decorators."""

    def __init__(self, kind, decorate, view=None):
        self.kind = kind
        methods = ["GET", "POST"]
        if kind == "flask":
            app = flask.Flask(__name__)

            def answer():
                return {"tokens": int(flask.request.headers.get("x-tokens", 0))}

            app.route("/", methods=methods)(decorate(view or answer))
            self.client = app.test_client()
            return
        app = fastapi.FastAPI()
        if kind == "fastapi":

            async def answer(x_tokens: int = fastapi.Header(0)):
                return {"tokens": x_tokens}

        else:

            def answer(x_tokens: int = fastapi.Header(0)):
                return {"tokens": x_tokens}

        app.api_route("/", methods=methods)(decorate(view or answer))
        self.client = TestClient(app)

    def ask(self, method="GET", **headers):
        given = {f"x-{name}": str(value) for name, value in headers.items()}
        return (
            self.client.open("/", method=method, headers=given)
            if self.kind == "flask"
            else (self.client.request(method, "/", headers=given))
        )


@pytest.fixture(params=["fastapi", "fastapi-sync", "flask"])
def kind(request):
    return request.param


def test_stacked_limits_are_one_plan(kind, clock):
    def decorate(view):
        by_user = rate_limit("2/minute", key=user, clock=clock)
        by_tenant = rate_limit("3/minute", key=tenant, clock=clock)
        return by_tenant(by_user(view))

    service = Service(kind, decorate)
    told = [service.ask(user="a", tenant="t") for _ in range(4)]
    assert [response.status_code for response in told] == [200, 200, 429, 429]
    # Requests that the user's limit refused were not charged to the tenant.
    last = service.ask(user="b", tenant="t")
    assert last.status_code == 200
    assert last.headers["ratelimit-policy"] == '"3/minute";q=3;w=60, "2/minute";q=2;w=60'
    assert last.headers["ratelimit"] == '"3/minute";r=0;t=20'
    refused = service.ask(user="b", tenant="t")
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-limit"] == "3"
    assert refused.headers["retry-after"] == "20"
    problem = refused.get_json() if kind == "flask" else refused.json()
    assert problem["violated-policies"] == ["3/minute"]
    assert service.ask(user="b", tenant="t2").status_code == 200


def test_limits_of_several_storages_are_given_back(kind, clock):
    first = tg.Limiter("9/minute", clock=clock)
    inner = {"storage": first.storage, "scope": "inner", "clock": clock, "key": user}

    def decorate(view):
        return rate_limit("9/minute", **inner)(rate_limit("1/minute", key=user, clock=clock)(view))

    service = Service(kind, decorate)
    assert [service.ask(user="a").status_code for _ in range(4)] == [200, 429, 429, 429]
    here = tg.Limiter("9/minute", storage=first.storage, prefix="tg:inner", clock=clock)
    assert here.peek("a").remaining == 8


def test_each_limit_of_a_stack_has_its_own_exemptions(kind, clock):
    def decorate(view):
        writes = rate_limit("1/minute", methods=["POST"], clock=clock, key=user)
        all_but_staff = rate_limit(
            "3/minute", exempt_when=lambda request: user(request) == "staff", clock=clock, key=user
        )
        return writes(all_but_staff(view))

    service = Service(kind, decorate)
    assert [service.ask("POST", user="a").status_code for _ in range(2)] == [200, 429]
    assert [service.ask("GET", user="a").status_code for _ in range(3)] == [200, 200, 429]
    assert [service.ask("GET", user="staff").status_code for _ in range(9)] == [200] * 9
    untold = service.ask("GET", user="staff")
    assert "ratelimit" not in untold.headers
    assert [service.ask("POST", user="staff").status_code for _ in range(2)] == [200, 429]


def test_a_head_request_is_charged_as_a_get(clock):
    app = flask.Flask(__name__)

    @app.get("/")
    @rate_limit("2/minute", methods=["get"], clock=clock)
    def route():
        return "x"

    client = app.test_client()
    assert [client.head("/").status_code for _ in range(3)] == [200, 200, 429]


def test_functions_choose_key_cost_and_exemption(kind, clock):
    limited = rate_limit(
        "5/minute",
        clock=clock,
        key=user,
        cost=lambda request: len(user(request)),
        exempt_when=lambda request: user(request) == "root",
    )
    service = Service(kind, limited)
    found = [service.ask(user=name).status_code for name in ("bob", "bob", "al", "al", "al")]
    assert found == [200, 429, 200, 200, 429]
    for _ in range(3):
        untold = service.ask(user="root")
        assert untold.status_code == 200
        assert "ratelimit" not in untold.headers


def test_a_function_chooses_the_limit(kind, clock, caplog):
    plans = {"free": "1/minute", "pro": ["3/minute", "1000/day"], "staff": None, "odd": "many"}

    def chosen(request):
        return plans[user(request)]

    limited = rate_limit(chosen, key=user, clock=clock, on_limit_error="open")
    service = Service(kind, limited)
    assert [service.ask(user="free").status_code for _ in range(3)] == [200, 429, 429]
    assert [service.ask(user="pro").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [service.ask(user="staff").status_code for _ in range(4)] == [200] * 4
    with caplog.at_level(logging.ERROR):
        assert service.ask(user="odd").status_code == 200
        assert service.ask(user="nobody").status_code == 200
    assert ["the limit function failed" in line for line in caplog.messages] == [True]
    # Counts stay when the function chooses the same limit again.
    plans["free"] = "3/minute"
    assert service.ask(user="free").status_code == 200
    plans["free"] = "1/minute"
    assert service.ask(user="free").status_code == 429


def test_a_new_limit_for_each_request_takes_no_more_memory(clock):
    rates = iter(range(1, 10_000))
    service = Service("flask", rate_limit(lambda: f"{next(rates)}/minute", clock=clock))
    guard = service.client.application.view_functions["answer"].__tidegate_rate_limit__.limiters[0]
    for _ in range(1_000):
        assert service.ask().status_code == 200
    assert len(guard.dynamic_limit._known) <= 256


def test_the_limit_and_the_cost_may_be_async(clock):
    async def chosen(request):
        return "10/minute"

    async def cost_after(request, response):
        return response["tokens"]

    service = Service("fastapi", rate_limit(chosen, key=user, clock=clock, cost_after=cost_after))
    assert service.ask(user="a", tokens=9).headers["ratelimit"] == '"10/minute";r=1;t=6'
    assert service.ask(user="a", tokens=9).headers["ratelimit"] == '"10/minute";r=0;t=54'


def after(request, response):
    return response["tokens"]


@pytest.mark.parametrize(
    ("before", "tokens", "left"), [(5, 2, 98), (5, 5, 95), (5, 60, 40), (5, 0, 100), (1, 5000, 0)]
)
def test_the_actual_cost_corrects_the_charge(kind, clock, before, tokens, left):
    store = tg.Limiter("1/s").storage
    decorate = rate_limit(
        "100/minute", key=user, cost=before, cost_after=after, clock=clock, storage=store, scope="s"
    )
    service = Service(kind, decorate)
    answer = service.ask(user="a", tokens=tokens)
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-remaining"] == str(left)
    assert "retry-after" not in answer.headers
    limiter = tg.Limiter("100/minute", storage=store, prefix="tg:s", clock=clock)
    assert limiter.peek("a").remaining == left
    assert limiter.stats().denied == 0


def test_the_fields_show_the_corrected_state(kind, clock):
    service = Service(kind, rate_limit("100/minute", key=user, cost=50, cost_after=after))
    told = [service.ask(user="a", tokens=10).headers["x-ratelimit-remaining"] for _ in range(3)]
    assert told == ["90", "80", "70"]


def service_of_requests_and_tokens(kind, clock, requests, tokens, cost):
    """A service that limits requests, and tokens by what they cost in the end."""

    def decorate(view):
        by_tokens = rate_limit(tokens, key=user, cost=cost, cost_after=after, clock=clock)
        return rate_limit(requests, key=user, clock=clock)(by_tokens(view))

    return Service(kind, decorate)


def test_the_fields_show_the_limit_that_binds_after_the_correction(kind, clock):
    service = service_of_requests_and_tokens(kind, clock, "20/minute", "100/minute", cost=90)
    # 10 tokens and 19 requests remained before the correction; now 99 tokens remain.
    assert service.ask(user="a", tokens=1).headers["ratelimit"] == '"20/minute";r=19;t=3'
    # Now 18 requests and 9 tokens remain.
    assert service.ask(user="a", tokens=90).headers["ratelimit"] == '"100/minute";r=9;t=1'


def test_requests_and_tokens_are_one_plan(kind, clock):
    service = service_of_requests_and_tokens(kind, clock, "10/minute", "1000/minute", cost=100)
    assert service.ask(user="a", tokens=950).status_code == 200
    refused = service.ask(user="a", tokens=1)
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-limit"] == "1000"
    # The refused request was not charged.
    clock.advance(3)
    assert service.ask(user="a", tokens=100).headers["ratelimit"] == '"1000/minute";r=0;t=1'


@pytest.mark.parametrize("wrong", [lambda r, x: -1, lambda r, x: "5", lambda r, x: x["none"]])
def test_the_charge_stays_if_the_actual_cost_is_unknown(kind, clock, caplog, wrong):
    decorate = rate_limit("10/minute", key=user, cost=5, cost_after=wrong, clock=clock)
    service = Service(kind, decorate)
    assert [service.ask(user="a").status_code for _ in range(3)] == [200, 200, 429]
    assert "the charge stays" in caplog.messages[0]


def test_flask_classes_are_limited(clock):
    app = flask.Flask(__name__)

    @rate_limit("2/minute", clock=clock)
    class Items(MethodView):
        def get(self):
            return "got"

        def post(self):
            return "posted"

    class Plain(View):
        decorators = (rate_limit("1/minute", clock=clock), rate_limit("9/minute", clock=clock))

        def dispatch_request(self):
            return "plain"

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    app.add_url_rule("/more", view_func=Items.as_view("more"))
    app.add_url_rule("/plain", view_func=Plain.as_view("plain"))
    client = app.test_client()
    assert client.get("/items").status_code == 200
    assert client.post("/more").status_code == 200
    refused = client.get("/items")
    assert (refused.status_code, refused.headers["X-RateLimit-Limit"]) == (429, "2")
    told = [client.get("/plain") for _ in range(2)]
    assert [response.status_code for response in told] == [200, 429]
    assert told[0].headers["RateLimit-Policy"] == '"9/minute";q=9;w=60, "1/minute";q=1;w=60'


def test_starlette_endpoints_are_limited(clock):
    @rate_limit("2/minute", clock=clock)
    class Items(HTTPEndpoint):
        async def get(self, request):
            return JSONResponse("got")

        def post(self, request):
            return JSONResponse("posted")

    client = TestClient(Starlette(routes=[Route("/items", Items)]))
    told = [client.get("/items"), client.post("/items"), client.get("/items")]
    assert [response.status_code for response in told] == [200, 200, 429]
    assert told[1].headers["ratelimit"] == '"2/minute";r=0;t=30'


def test_async_views_of_flask_are_limited(clock):
    app = flask.Flask(__name__)

    @app.get("/")
    @rate_limit("9/minute", clock=clock)
    @rate_limit("1/minute", clock=clock)
    async def route():
        return "x"

    client = app.test_client()
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]
