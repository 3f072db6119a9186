"""If a limit function fails, `on_limit_error` decides, equally in every adapter: no value of a
header lets a client lift a limit, unless the service has allowed that."""

from __future__ import annotations

import logging

import fastapi
import flask
import pytest
import tidegate as tg
import tidegate.asgi
import tidegate.fastapi
import tidegate.flask
import tidegate.wsgi
from starlette.testclient import TestClient
from tidegate import rate_limit
from werkzeug.test import Client as WSGIClient

pytest.importorskip("django")

from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

from django.http import HttpResponse
from django.test import Client as DjangoClient
from django.test import override_settings
from django.urls import path
from tidegate.django import rate_limit as rate_limit_of_django

NOW = 1_700_000_000 * 10**9
PLANS = {
    "free": "1/minute",
    "nothing": "0/minute",
    "typo": "5/mnute",
    "tuple": (2, 60),
    "number": 5,
    "staff": None,
}
BROKEN = ["typo", "tuple", "number", "unknown"]


def plan_of(request):
    """Returns the limit that the header x-plan of a scope, environ or request selects."""
    if isinstance(request, dict):
        found = request.get("HTTP_X_PLAN") or dict(request.get("headers", ())).get(b"x-plan")
        return PLANS[found.decode() if isinstance(found, bytes) else found]
    return PLANS[request.headers["x-plan"]]


class Asked:
    """A client of one service, for which exceptions become 500."""

    def __init__(self, get):
        self._get = get

    def __call__(self, plan):
        return self._get({"x-plan": plan})

    def status(self, plan):
        return self(plan).status_code


def of_asgi(**options):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    app = tidegate.asgi.RateLimitMiddleware(application, limit=plan_of, **options)
    client = TestClient(app, raise_server_exceptions=False)
    return Asked(lambda headers: client.get("/", headers=headers))


def of_wsgi(**options):
    def application(environ, start_response):
        start_response("200 OK", [])
        return [b"ok"]

    limited = tidegate.wsgi.RateLimitMiddleware(application, limit=plan_of, **options)

    def app(environ, start_response):  # as a server
        try:
            return limited(environ, start_response)
        except Exception:
            start_response("500 Internal Server Error", [])
            return [b""]

    client = WSGIClient(app)
    address = {"REMOTE_ADDR": "203.0.113.9"}
    return Asked(lambda headers: client.get("/", headers=headers, environ_base=address))


def of_flask_extension(**options):
    app = flask.Flask(__name__)
    tidegate.flask.RateLimiter(app, plan_of, **options)
    app.get("/")(lambda: "ok")
    client = app.test_client()
    return Asked(lambda headers: client.get("/", headers=headers))


def of_flask_view(**options):
    app = flask.Flask(__name__)
    extension = tidegate.flask.RateLimiter(app, storage="memory://", clock=options.pop("clock"))
    options.pop("storage")

    @app.get("/")
    @extension.limit(plan_of, **options)
    def route():
        return "ok"

    client = app.test_client()
    return Asked(lambda headers: client.get("/", headers=headers))


def of_flask_decorator(**options):
    app = flask.Flask(__name__)
    app.get("/")(rate_limit(plan_of, **options)(lambda: "ok"))
    client = app.test_client()
    return Asked(lambda headers: client.get("/", headers=headers))


def of_fastapi_decorator(**options):
    app = fastapi.FastAPI()

    @app.get("/")
    @rate_limit(plan_of, **options)
    async def route():
        return "ok"

    client = TestClient(app, raise_server_exceptions=False)
    return Asked(lambda headers: client.get("/", headers=headers))


def of_fastapi_dependency(**options):
    app = fastapi.FastAPI()
    limited = fastapi.Depends(tidegate.fastapi.RateLimit(plan_of, **options))

    @app.get("/", dependencies=[limited])
    async def route():
        return "ok"

    client = TestClient(app, raise_server_exceptions=False)
    return Asked(lambda headers: client.get("/", headers=headers))


def page(request):
    return HttpResponse("ok")


def of_django_middleware(**options):
    chosen = {name.upper(): value for name, value in options.items()}
    configured = override_settings(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=(path("", page),),
        MIDDLEWARE=["tidegate.django.RateLimitMiddleware"],
        DEBUG_PROPAGATE_EXCEPTIONS=False,
        TIDEGATE={"LIMIT": plan_of, **chosen},
    )

    client = None

    def get(headers):
        nonlocal client
        with configured:
            client = client or DjangoClient(raise_request_exception=False)
            return client.get("/", HTTP_X_PLAN=headers["x-plan"])

    return Asked(get)


def of_django_decorator(**options):
    with override_settings(TIDEGATE={}):
        view = rate_limit_of_django(plan_of, **options)(page)
    configured = override_settings(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=(path("", view),),
        MIDDLEWARE=[],
        DEBUG_PROPAGATE_EXCEPTIONS=False,
        TIDEGATE={},
    )

    def get(headers):
        with configured:
            client = DjangoClient(raise_request_exception=False)
            return client.get("/", HTTP_X_PLAN=headers["x-plan"])

    return Asked(get)


ADAPTERS = [
    of_asgi, of_wsgi, of_flask_extension, of_flask_view, of_flask_decorator,
    of_fastapi_decorator, of_fastapi_dependency, of_django_middleware, of_django_decorator,
]  # fmt: skip


@pytest.fixture(params=ADAPTERS, ids=lambda adapter: adapter.__name__[3:])
def service(request):
    def make(**options):
        clock = tg.ManualClock(NOW)
        storage = tg.Limiter("1/second").storage
        return request.param(clock=clock, storage=storage, **options)

    return make


@pytest.mark.parametrize("plan", BROKEN)
def test_a_limit_function_that_fails_is_an_error_of_the_service(service, plan):
    ask = service()
    assert [ask.status(plan) for _ in range(3)] == [500, 500, 500]
    # The failed request has cost other clients nothing.
    assert [ask.status("free") for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("plan", BROKEN)
def test_closed_refuses_if_the_limit_function_fails(service, plan, caplog):
    ask = service(on_limit_error="closed")
    with caplog.at_level(logging.ERROR, logger="tidegate"):
        refused = ask(plan)
    assert refused.status_code == 429
    assert "Retry-After" not in refused.headers
    assert ["the request is refused" in line for line in caplog.messages] == [True]
    assert [ask.status("free") for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("plan", BROKEN)
def test_open_lets_requests_pass_if_the_limit_function_fails(service, plan, caplog):
    ask = service(on_limit_error="open")
    with caplog.at_level(logging.ERROR, logger="tidegate"):
        assert [ask.status(plan) for _ in range(3)] == [200, 200, 200]
    assert ["passes without a limit" in line for line in caplog.messages] == [True]


@pytest.mark.parametrize("plan", BROKEN)
def test_a_given_limit_applies_if_the_limit_function_fails(service, plan):
    ask = service(on_limit_error="2/minute")
    assert [ask.status(plan) for _ in range(4)] == [200, 200, 429, 429]
    assert ask(plan).headers["RateLimit-Policy"] == '"2/minute";q=2;w=60'


def test_a_function_may_choose_a_limit_of_nothing_or_no_limit(service):
    ask = service()
    refused = ask("nothing")
    assert refused.status_code == 429
    assert "Retry-After" not in refused.headers
    assert refused.headers["RateLimit-Policy"] == '"0/minute";q=0;w=60'
    assert [ask.status("staff") for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize("policy", ["close", "Raise", "5/mnute", "", 5, True, ("raise",)])
def test_an_invalid_policy_is_refused_at_once(service, policy):
    with pytest.raises(ValueError, match="on_limit_error") as caught:
        service(on_limit_error=policy)("free")
    for word in (repr(policy), "expected", "raise", "closed", "open", "10/minute"):
        assert word in str(caught.value)


def test_the_error_names_the_function_and_what_it_returned():
    def quota(request):
        return "5/mnute"

    app = flask.Flask(__name__)
    app.testing = True
    app.get("/")(rate_limit(quota)(lambda: "ok"))
    with pytest.raises(tg.ConfigurationError, match=r"quota.*'5/mnute'.*the unit is unknown"):
        app.test_client().get("/")


def test_code_and_configuration_may_have_a_limit_of_nothing():
    app = flask.Flask(__name__)
    app.config["TIDEGATE_LIMIT"] = "0/minute"
    app.config["TIDEGATE_ON_LIMIT_ERROR"] = "closed"
    tidegate.flask.RateLimiter(app)
    app.get("/")(lambda: "ok")
    assert [app.test_client().get("/").status_code for _ in range(2)] == [429, 429]
    app = fastapi.FastAPI()
    app.get("/")(rate_limit("0/hour", cost=3)(lambda: "ok"))
    refused = TestClient(app).get("/")
    assert refused.status_code == 429
    assert refused.json()["detail"].endswith("It lets nothing through.")
    assert refused.json()["retry_after"] is None
