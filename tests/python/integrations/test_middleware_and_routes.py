"""Limits of a service and of its routes: if either refuses a request, neither charges it."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import tidegate as tg
from fastapi.testclient import TestClient
from flask import Flask
from limited_routes import HOW, limited_service, refuse_three_websockets
from tidegate import rate_limit, wsgi
from tidegate.asgi import RateLimitMiddleware
from tidegate.flask import RateLimiter as FlaskRateLimit
from tidegate.rules import RuleSet

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


LIMIT = "10/hour"
RULES = RuleSet({"rules": [{"id": "clients", "by": "ip", "limit": LIMIT}]})


class OfService:
    """What limits all requests of a client to the service: a limit, or rules."""

    def __init__(self, kind: str) -> None:
        self._has_rules = kind == "rules"
        self.options: dict[str, Any] = {"rules": RULES} if self._has_rules else {"limit": LIMIT}
        self.limiter: Any = tg.Limiter(*self.options.values(), clock=CLOCK)

    def left(self, client: str) -> int:
        peek = self.limiter.peek
        return int((peek(ip=client) if self._has_rules else peek(client)).remaining)


@pytest.fixture(params=["a limit", "rules"])
def service(request: pytest.FixtureRequest) -> OfService:
    return OfService(request.param)


def raising(request: Any) -> str:
    raise LookupError("no plan")


@pytest.mark.parametrize("cost_after", [None, lambda scope, answer: 3])
@pytest.mark.parametrize("how", HOW)
def test_refusals_of_a_fastapi_route_use_nothing_of_the_service(
    service: OfService, how: str, cost_after: Any
) -> None:
    app = limited_service(how, "2/hour", clock=CLOCK)
    client = TestClient(RateLimitMiddleware(app, limiter=service.limiter, cost_after=cost_after))
    assert [client.get("/").status_code for _ in range(10)] == REFUSED
    assert service.left("testclient") == 10 - (2 if cost_after is None else 6)


def test_refusals_of_a_websocket_use_nothing_of_the_service(service: OfService) -> None:
    refuse_three_websockets(service.limiter, clock=CLOCK)
    assert service.left("testclient") == 9


@pytest.mark.parametrize("how", HOW)
def test_a_fastapi_route_whose_limit_function_fails_uses_nothing_of_the_service(
    service: OfService, how: str
) -> None:
    limited = RateLimitMiddleware(limited_service(how, raising), limiter=service.limiter)
    client = TestClient(limited, raise_server_exceptions=False)
    assert [client.get("/").status_code for _ in range(3)] == [500] * 3
    assert service.left("testclient") == 10


def flask_view(how: str, limit: Any) -> Flask:
    """An application with a view that is limited by a decorator or by the extension."""
    app = Flask(__name__)
    if how == "the extension":
        decorate: Any = FlaskRateLimit(app, clock=CLOCK).limit(limit)
    else:
        decorate = rate_limit(limit, clock=CLOCK)
    app.add_url_rule("/", view_func=decorate(lambda: "ok"), endpoint="v")
    return app


@pytest.mark.parametrize("how", ["a decorator", "the extension"])
@pytest.mark.parametrize("cost_after", [None, lambda environ, answer: 3])
def test_refusals_of_a_flask_view_use_nothing_of_the_middleware(
    service: OfService, how: str, cost_after: Any
) -> None:
    app = flask_view(how, "2/hour")
    app.wsgi_app = wsgi.RateLimitMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, limiter=service.limiter, cost_after=cost_after
    )
    client = app.test_client()
    answers = [client.get("/") for _ in range(10)]
    for answer in answers:
        answer.close()
    assert [answer.status_code for answer in answers] == REFUSED
    assert service.left("127.0.0.1") == (8 if cost_after is None else 4)


@pytest.mark.parametrize("how", ["a decorator", "the extension"])
def test_a_flask_view_whose_limit_function_fails_uses_nothing_of_the_middleware(
    service: OfService, how: str
) -> None:
    app = flask_view(how, raising)
    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, limiter=service.limiter)  # type: ignore[method-assign]
    assert [app.test_client().get("/").status_code for _ in range(3)] == [500] * 3
    assert service.left("127.0.0.1") == 10


def under_the_extension(service: OfService, decorate: Callable[[Any], Any]) -> Any:
    """A client of an application under the extension, with a view that is limited too."""
    app = Flask(__name__)
    decorated = decorate(FlaskRateLimit(app, clock=CLOCK, **service.options))
    app.add_url_rule("/", view_func=decorated(lambda: "ok"), endpoint="view")
    app.add_url_rule("/free", view_func=lambda: "ok", endpoint="free")
    return app.test_client()


def test_refusals_of_a_decorated_view_use_nothing_of_the_flask_extension(
    service: OfService,
) -> None:
    client = under_the_extension(service, lambda extension: rate_limit("2/hour", clock=CLOCK))
    assert [client.get("/").status_code for _ in range(10)] == REFUSED
    assert client.get("/free").headers["X-RateLimit-Remaining"] == "7"


def test_a_limit_function_that_fails_uses_nothing_of_the_flask_extension(
    service: OfService,
) -> None:
    client = under_the_extension(service, lambda extension: extension.limit(raising))
    assert [client.get("/").status_code for _ in range(3)] == [500] * 3
    assert client.get("/free").headers["X-RateLimit-Remaining"] == "9"


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
            "LIMIT": LIMIT,
            "STORAGE": OfService("a limit").limiter.storage,
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
