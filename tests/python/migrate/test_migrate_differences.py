"""What docs/migrate says behaves otherwise: of the others in the pinned releases, and of ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import slowapi
import tidegate as tg
from django_ratelimit.core import _split_rate
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.testclient import TestClient
from fastapi_limiter.depends import RateLimiter
from flask import Flask, request
from flask_limiter import Limiter as FlaskLimiter
from pyrate_limiter import Duration, Limiter, Rate
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from throttled import MemoryStore, Throttled
from tidegate import rate_limit
from tidegate.asgi import RateLimitMiddleware
from tidegate.fastapi import DefaultRateLimit, RateLimit
from tidegate.wsgi import RateLimitMiddleware as WSGIRateLimitMiddleware

MIGRATE = Path(__file__).resolve().parents[3] / "docs" / "migrate"


def slow(**options):
    app = FastAPI()
    limiter = app.state.limiter = slowapi.Limiter(get_remote_address, **options)
    app.add_exception_handler(RateLimitExceeded, slowapi._rate_limit_exceeded_handler)
    return app, limiter


def flask(**options):
    app = Flask(__name__)
    return app, FlaskLimiter(lambda: "us", app=app, storage_uri="memory://", **options)


def asked(app, *paths):
    if isinstance(app, Flask):
        client = app.test_client()
    else:
        client = TestClient(app, raise_server_exceptions=False)
    return [client.get(path).status_code for path in paths]


def assert_that_the_wrong_order_is_refused(app):
    @app.get("/ours")
    def ours():
        return "hello"

    with pytest.raises(tg.ConfigurationError, match="registered"):
        rate_limit("1/day")(ours)


def test_slowapi_does_not_limit_what_it_cannot_read():
    app, limiter = slow()

    @app.get("/")
    @limiter.limit("1/fortnight")
    async def route(request: Request):
        return "hello"

    assert asked(app, "/", "/", "/") == [200, 200, 200]
    with pytest.raises(tg.ConfigurationError, match="unit is unknown"):
        rate_limit("1/fortnight")(lambda: "hello")


def test_slowapi_in_the_wrong_order_limits_nothing():
    app, limiter = slow()

    @limiter.limit("1/day")
    @app.get("/theirs")
    async def theirs(request: Request):
        return "hello"

    assert asked(app, "/theirs", "/theirs") == [200, 200]
    assert_that_the_wrong_order_is_refused(app)


def test_slowapi_counts_each_path_for_itself():
    app, limiter = slow()

    @app.get("/theirs/{number}")
    @limiter.limit("1/day")
    async def theirs(request: Request, number: int):
        return "hello"

    @app.get("/ours/{number}")
    @rate_limit("1/day")
    async def ours(number: int):
        return "hello"

    assert asked(app, "/theirs/1", "/theirs/2", "/theirs/1") == [200, 200, 429]
    assert asked(app, "/ours/1", "/ours/2") == [200, 429]


def test_slowapis_middleware_does_not_see_included_routers():
    router = APIRouter()

    @router.get("/")
    async def route():
        return "hello"

    theirs, _ = slow(default_limits=["1/day"])
    theirs.add_middleware(SlowAPIASGIMiddleware)
    theirs.include_router(router)
    assert asked(theirs, "/", "/") == [200, 200]
    ours = FastAPI()
    ours.add_middleware(RateLimitMiddleware, limit="1/day")
    ours.include_router(router)
    assert asked(ours, "/", "/") == [200, 429]


def test_our_default_limit_does_not_see_mounted_applications_and_unknown_paths():
    inner, router = FastAPI(), APIRouter()

    @inner.get("/")
    @router.get("/included")
    async def route():
        return "hello"

    app = FastAPI(dependencies=[Depends(DefaultRateLimit("1/day"))])
    app.include_router(router)
    app.mount("/mounted", inner)
    assert asked(app, "/included", "/included") == [200, 429]
    assert asked(app, "/mounted/", "/mounted/", "/gone", "/gone") == [200, 200, 404, 404]
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limit="2/day")
    app.mount("/mounted", inner)
    assert asked(app, "/mounted/", "/gone", "/mounted/", "/gone") == [200, 404, 429, 429]


def test_slowapi_with_headers_fails_for_a_dict():
    app, limiter = slow(headers_enabled=True)

    @app.get("/theirs")
    @limiter.limit("1/day")
    async def theirs(request: Request):
        return {}

    @app.get("/theirs-with-response")
    @limiter.limit("1/day")
    async def with_response(request: Request, response: Response):
        return {}

    @app.get("/ours")
    @rate_limit("1/day")
    async def ours():
        return {}

    client = TestClient(app, raise_server_exceptions=False)
    assert [client.get("/theirs").status_code for _ in range(2)] == [500, 429]
    fields = client.get("/theirs-with-response").headers
    assert "." in fields["x-ratelimit-reset"]
    assert "retry-after" in fields
    fields = client.get("/ours").headers
    assert fields["x-ratelimit-reset"].isdigit()
    assert "retry-after" not in fields


def test_flask_limiter_does_not_limit_what_it_cannot_read_nor_what_is_in_the_wrong_order():
    app, limiter = flask(default_limits=["2/day"])

    @app.get("/unread")
    @limiter.limit("1/fortnight")
    def unread():
        return "hello"

    @limiter.limit("1/day")
    @app.get("/wrong")
    def wrong():
        return "hello"

    assert asked(app, "/unread", "/unread", "/unread") == [200, 200, 429]  # by the default
    assert asked(app, "/wrong", "/wrong", "/wrong") == [200, 200, 200]
    app, limiter = flask()
    app.get("/unread")(limiter.limit("1/fortnight")(unread.__wrapped__))
    assert asked(app, "/unread", "/unread", "/unread") == [200, 200, 200]

    assert_that_the_wrong_order_is_refused(Flask("ours"))


def test_flask_limiter_charges_what_another_limit_refuses():
    app, limiter = flask()

    @app.get("/")
    @limiter.limit("1/day", key_func=lambda: request.args["user"])
    @limiter.limit("3/day")
    def route():
        return "hello"

    # Three refusals of one user, and nobody has anything left of what all share.
    assert asked(app, "/?user=a", "/?user=a", "/?user=a", "/?user=b") == [200, 429, 429, 429]
    plan = tg.Limiter(["1/day", "3/day"])
    assert plan.hit("a")
    assert [plan.hit("a").allowed for _ in range(3)] == [False] * 3
    assert plan.peek("a").rule == "1/day"
    assert plan.stats().allowed == 1


def test_flask_limiter_without_a_key_or_a_route():
    app, limiter = flask(application_limits=["2/day"])

    @app.get("/nobody")
    @limiter.limit("1/day", key_func=lambda: None)
    def nobody():
        return "hello"

    @app.get("/ours")
    @rate_limit("1/day", key=lambda request: None)
    def ours():
        return "hello"

    assert asked(app, "/none", "/none", "/none") == [404, 404, 404]
    assert asked(app, "/nobody", "/nobody") == [200, 200]
    app, _ = flask()
    app.get("/ours")(ours)
    app.wsgi_app = WSGIRateLimitMiddleware(app.wsgi_app, limit="3/day")
    # What the middleware charged for the refused request was given back.
    assert asked(app, "/ours", "/ours", "/none", "/none", "/none") == [200, 429, 404, 404, 429]


def test_fastapi_limiter_fails_beside_an_included_router():
    router = APIRouter()

    @router.get("/ours", dependencies=[Depends(RateLimit("1/day"))])
    async def ours():
        return "hello"

    app = FastAPI()
    app.include_router(router)

    @app.get("/", dependencies=[Depends(RateLimiter(Limiter(Rate(1, Duration.DAY))))])
    async def theirs():
        return "hello"

    with pytest.raises(AttributeError, match="'_IncludedRouter' object has no attribute 'path'"):
        TestClient(app).get("/")
    assert asked(app, "/ours", "/ours") == [200, 429]


def test_fastapi_limiter_counts_all_clients_together():
    app = FastAPI()

    @app.get("/theirs", dependencies=[Depends(RateLimiter(Limiter(Rate(1, Duration.DAY))))])
    async def theirs():
        return "hello"

    @app.get("/ours", dependencies=[Depends(RateLimit("1/day"))])
    async def ours():
        return "hello"

    clients = [TestClient(app, client=(f"203.0.113.{n}", 5000)) for n in (1, 2)]
    assert [client.get("/theirs").status_code for client in clients] == [200, 429]
    assert [client.get("/ours").status_code for client in clients] == [200, 200]


def test_messages_need_a_limit_of_connections():
    async def app(scope, receive, send): ...

    with pytest.raises(tg.ConfigurationError, match="no limit was given"):
        RateLimitMiddleware(app, messages="10/minute")
    row = next(
        line
        for line in (MIGRATE / "fastapi-limiter.md").read_text(encoding="utf-8").splitlines()
        if "messages=" in line
    )
    assert '`limit="60/minute", messages="10/minute"`' in row
    RateLimitMiddleware(app, limit="60/minute", messages="10/minute")


def test_django_ratelimit_reads_units_by_their_first_letter():
    assert _split_rate("5/month") == _split_rate("5/minute") == (5, 60)
    assert _split_rate("5/week") == (5, 1)
    assert tg.Limit("5/week").period == 7 * 86400
    for rate in ("5/m", "100/10s", "1000/h", "3/d"):
        assert (tg.Limit(rate).count, tg.Limit(rate).period) == _split_rate(rate)


def test_throttled_py_charges_a_refused_cost():
    theirs = Throttled(quota="3/day", using="fixed_window", store=MemoryStore())
    assert theirs.limit("key", cost=5).limited
    assert theirs.peek("key").remaining == 0
    ours = tg.Limiter("3/day", algorithm="fixed-window")
    refused = ours.hit("key", cost=5)
    assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 3, float("inf"))


def test_throttled_py_shares_its_store():
    assert not Throttled(quota="1/day").limit("migrating").limited
    assert Throttled(quota="9/day").limit("migrating").limited
    with pytest.raises(tg.ConfigurationError, match="burst"):
        tg.Limiter("3/day burst 5", algorithm="fixed-window")
    ignored = Throttled(quota="3/day burst 5", using="fixed_window", store=MemoryStore())
    assert [ignored.limit("key").limited for _ in range(4)] == [False] * 3 + [True]


def test_requests_without_a_parameter_count_together_as_with_django_ratelimit():
    pages = (MIGRATE / "django-ratelimit.md").read_text(encoding="utf-8")
    row = next(line for line in pages.splitlines() if line.startswith('| `key="get:q"`'))
    key = eval(row.split("`key=")[3].partition("`")[0])
    assert key(SimpleNamespace(GET={})) == "q="  # an empty key would be none
    assert key(SimpleNamespace(GET={"q": "fog"})) == "q=fog"


def test_the_table_of_django_ratelimit_says_what_rates_become():
    """What docs/migrate/django-ratelimit.md has for `0/m`, None, tuples and dotted functions."""
    from django.conf import settings
    from django.http import HttpResponse
    from django.test import RequestFactory
    from tidegate.django import rate_limit as of_django

    if not settings.configured:
        settings.configure()

    def status(limit):
        view = of_django(limit)(lambda request: HttpResponse("found"))
        return view(RequestFactory().get("/")).status_code

    assert _split_rate("0/m") == (0, 60)
    assert _split_rate((5, 60)) == (5, 60)
    for limit, expected in (
        ("0/m", 429),
        (lambda request: "0/m", 429),
        (lambda request: None, 200),
        (tg.Limit(5, 60.0), 200),
        (lambda request: tg.Limit(5, 60.0), 200),
    ):
        assert status(limit) == expected
    for refused in (None, (5, 60), "shop.limits.rate"):
        with pytest.raises(tg.ConfigurationError, match="expected"):
            status(refused)
    with pytest.raises(tg.ConfigurationError, match=r"returned \(5, 60\)"):
        status(lambda request: (5, 60))


def test_sections_of_one_line_say_that_windows_are_aligned():
    for name in ("slowapi", "flask-limiter"):
        text = (MIGRATE / f"{name}.md").read_text(encoding="utf-8")
        section = text.partition("## One line")[2].partition("```")[0]
        assert "aligned to the epoch" in section, name
