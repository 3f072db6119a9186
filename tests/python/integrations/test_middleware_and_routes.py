"""Middleware and a route's own limit: if either refuses a request, neither charges it."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from limited_routes import HOW, limited_service, refuse_three_websockets
from tidegate import rate_limit, wsgi
from tidegate.asgi import RateLimitMiddleware
from tidegate.flask import RateLimiter as FlaskRateLimit

pytest.importorskip("django")

from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

CLOCK = tg.ManualClock(10**18)
REFUSED = [200, 200, *[429] * 8]


def of_service() -> tg.Limiter:
    return tg.Limiter("10/hour", clock=CLOCK)


def raising(request: Any) -> str:
    raise LookupError("no plan")


@pytest.mark.parametrize("cost_after", [None, lambda scope, answer: 3])
@pytest.mark.parametrize("how", HOW)
def test_refusals_of_a_fastapi_route_use_nothing_of_the_service(how: str, cost_after: Any) -> None:
    service = of_service()
    app = limited_service(how, "2/hour", clock=CLOCK)
    client = TestClient(RateLimitMiddleware(app, limiter=service, cost_after=cost_after))
    assert [client.get("/").status_code for _ in range(10)] == REFUSED
    used = 2 if cost_after is None else 6
    assert service.peek("testclient").remaining == 10 - used


def test_refusals_of_a_websocket_use_nothing_of_the_service() -> None:
    service = of_service()
    refuse_three_websockets(service, clock=CLOCK)
    assert service.peek("testclient").remaining == 9


def test_a_route_that_is_never_reached_uses_nothing_of_the_service() -> None:
    app = FastAPI()
    app.get("/")(rate_limit(raising)(lambda: "ok"))
    service = of_service()
    client = TestClient(RateLimitMiddleware(app, limiter=service), raise_server_exceptions=False)
    assert [client.get("/").status_code for _ in range(3)] == [500] * 3
    assert service.peek("testclient").remaining == 10


@pytest.mark.parametrize("how", ["a decorator", "the extension"])
@pytest.mark.parametrize("cost_after", [None, lambda environ, answer: 3])
def test_refusals_of_a_flask_view_use_nothing_of_the_middleware(how: str, cost_after: Any) -> None:
    app = Flask(__name__)
    if how == "the extension":
        extension = FlaskRateLimit(app, clock=CLOCK)
        app.add_url_rule("/", view_func=extension.limit("2/hour")(lambda: "ok"), endpoint="v")
    else:
        app.add_url_rule(
            "/", view_func=rate_limit("2/hour", clock=CLOCK)(lambda: "ok"), endpoint="v"
        )
    service = of_service()
    app.wsgi_app = wsgi.RateLimitMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, limiter=service, cost_after=cost_after
    )
    client = app.test_client()
    answers = [client.get("/") for _ in range(10)]
    for answer in answers:
        answer.close()
    assert [answer.status_code for answer in answers] == REFUSED
    assert service.peek("127.0.0.1").remaining == (8 if cost_after is None else 4)


def test_refusals_of_a_decorated_view_use_nothing_of_the_flask_extension() -> None:
    app = Flask(__name__)
    FlaskRateLimit(app, "10/hour", clock=CLOCK)

    @app.get("/")
    @rate_limit("2/hour", clock=CLOCK)
    def view() -> str:
        return "ok"

    @app.get("/free")
    def free() -> str:
        return "ok"

    client = app.test_client()
    assert [client.get("/").status_code for _ in range(10)] == REFUSED
    assert client.get("/free").headers["X-RateLimit-Remaining"] == "7"


def page(request: Any) -> HttpResponse:
    return HttpResponse("ok")


async def later(request: Any) -> HttpResponse:
    return HttpResponse("ok")


@pytest.mark.parametrize("cost_after", [None, lambda request, answer: 3])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("view", [page, later], ids=["a view", "an async view"])
def test_refusals_of_a_django_view_use_nothing_of_the_project(
    kind: str, view: Any, cost_after: Any
) -> None:
    # Under WSGI an async view runs in a thread of its own.
    with override_settings(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=(
            path("", rate_limit("2/hour", clock=CLOCK)(view)),
            path("free", page),
        ),
        MIDDLEWARE=["tidegate.django.RateLimitMiddleware"],
        TIDEGATE={
            "LIMIT": "10/hour",
            "STORAGE": of_service().storage,
            "CLOCK": CLOCK,
            "COST_AFTER": cost_after,
        },
    ):
        client: Any = AsyncClient() if kind == "async" else Client()
        ask = async_to_sync(client.get) if kind == "async" else client.get
        answers = [ask("/") for _ in range(10)]
        assert [answer.status_code for answer in answers] == REFUSED
        left = 10 - (2 if cost_after is None else 6)
        # The state after the charge was given back.
        assert f"r={left}" in answers[-1].headers["RateLimit"]
        assert ask("/free").headers["X-RateLimit-Remaining"] == str(
            left - (1 if cost_after is None else 3)
        )
