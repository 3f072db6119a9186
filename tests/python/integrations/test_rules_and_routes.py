"""Limits of routes under middleware with rules: if either refuses a request, neither charges it."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from fastapi.testclient import TestClient
from flask import Flask
from limited_routes import HOW, limited_service, refuse_three_websockets
from tidegate import rate_limit, wsgi
from tidegate.asgi import RateLimitMiddleware
from tidegate.flask import RateLimiter as FlaskRateLimit
from tidegate.rules import RuleSet

RULES = RuleSet({"rules": [{"id": "clients", "by": "ip", "limit": "100/hour"}]})


def limiter() -> Any:
    return tg.Limiter(rules=RULES, clock=tg.ManualClock(1))


def left(limiter: Any, address: str) -> int:
    return int(limiter.peek(ip=address).remaining)


@pytest.mark.parametrize("how", HOW)
def test_a_request_that_a_fastapi_route_refuses_is_not_charged_to_rules(how: str) -> None:
    app = limited_service(how, "2/minute", clock=tg.ManualClock(0))
    rules = limiter()
    client = TestClient(RateLimitMiddleware(app, limiter=rules))
    assert [client.get("/").status_code for _ in range(5)] == [200, 200, 429, 429, 429]
    assert left(rules, "testclient") == 98


def test_a_websocket_that_a_dependency_refuses_charges_no_rule() -> None:
    rules = limiter()
    refuse_three_websockets(rules, clock=tg.ManualClock(0))
    assert left(rules, "testclient") == 99


def test_a_request_that_a_flask_view_refuses_is_not_charged_to_rules_of_the_middleware() -> None:
    app = Flask(__name__)

    @app.get("/")
    @rate_limit("2/minute", clock=tg.ManualClock(0))
    def view() -> str:
        return "ok"

    rules = limiter()
    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, limiter=rules)  # type: ignore[method-assign]
    client = app.test_client()
    assert [client.get("/").status_code for _ in range(5)] == [200, 200, 429, 429, 429]
    assert left(rules, "127.0.0.1") == 98


def test_a_request_that_a_decorated_view_refuses_is_not_charged_to_rules_of_the_extension() -> None:
    app = Flask(__name__)
    FlaskRateLimit(app, rules=RULES)

    @app.get("/")
    @rate_limit("2/minute", clock=tg.ManualClock(0))
    def view() -> str:
        return "ok"

    @app.get("/free")
    def free() -> str:
        return "ok"

    client = app.test_client()
    assert [client.get("/").status_code for _ in range(5)] == [200, 200, 429, 429, 429]
    assert client.get("/free").headers["X-RateLimit-Remaining"] == "97"


def fails(request: Any) -> str:
    raise LookupError("no plan")


@pytest.mark.parametrize("how", HOW)
def test_a_limit_function_of_a_fastapi_route_that_fails_charges_no_rule(how: str) -> None:
    app = limited_service(how, fails)
    rules = limiter()
    client = TestClient(RateLimitMiddleware(app, limiter=rules), raise_server_exceptions=False)
    assert [client.get("/").status_code for _ in range(3)] == [500] * 3
    assert left(rules, "testclient") == 100


def test_a_limit_function_of_a_flask_view_that_fails_charges_no_rule_of_the_middleware() -> None:
    app = Flask(__name__)
    app.add_url_rule("/", view_func=rate_limit(fails)(lambda: "ok"), endpoint="view")
    rules = limiter()
    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, limiter=rules)  # type: ignore[method-assign]
    assert [app.test_client().get("/").status_code for _ in range(3)] == [500] * 3
    assert left(rules, "127.0.0.1") == 100


def test_a_limit_function_that_fails_charges_no_rule_of_the_flask_extension() -> None:
    app = Flask(__name__)
    extension = FlaskRateLimit(app, rules=RULES)
    app.add_url_rule("/", view_func=extension.limit(fails)(lambda: "ok"), endpoint="view")
    app.add_url_rule("/free", view_func=lambda: "ok", endpoint="free")
    client = app.test_client()
    assert [client.get("/").status_code for _ in range(3)] == [500] * 3
    assert client.get("/free").headers["X-RateLimit-Remaining"] == "99"
