"""The options of the extension for Flask, in code and in the configuration."""

from __future__ import annotations

import gc
import weakref

import pytest
import tidegate as tg

flask = pytest.importorskip("flask")

from flask_service import nothing, service, statuses  # noqa: E402
from tidegate.flask import RateLimiter  # noqa: E402


@pytest.fixture
def app():
    return service()


def test_the_configuration_sets_all_options(clock):
    app = service(
        TIDEGATE_LIMIT=["1/second", "3/minute"],
        TIDEGATE_ALGORITHM="fixed-window",
        TIDEGATE_STORAGE="memory://",
        TIDEGATE_STORAGE_OPTIONS={"capacity": 5000},
        TIDEGATE_HEADERS=["x-ratelimit"],
        TIDEGATE_KEY=by_tenant,
        TIDEGATE_ON_NO_KEY="closed",
        TIDEGATE_EXEMPT_METHODS=["HEAD"],
    )
    RateLimiter(clock=clock).init_app(app)
    client = app.test_client()
    answer = client.get("/a/1", headers={"x-tenant": "t"})
    assert "RateLimiter" not in answer.headers
    assert statuses(app, "/a/1", headers={"x-tenant": "t"}) == [429]
    assert statuses(app, "/a/1", method="HEAD", headers={"x-tenant": "t"}) == [200]
    assert statuses(app, "/a/1") == [429]
    app.config["TIDEGATE_ENABLED"] = False
    assert statuses(app, *["/a/1"] * 3) == [200] * 3


def by_tenant(request):
    return request.headers.get("x-tenant")


@pytest.mark.parametrize("key", ["ip", "user_or_ip", "tidegate.keys:peer"])
def test_the_configuration_names_a_key(clock, key):
    app = service(TIDEGATE_KEY=key, TIDEGATE_LIMIT="1/minute")
    RateLimiter(app, clock=clock)
    assert statuses(app, "/a/1", "/a/1") == [200, 429]
    assert statuses(app, "/a/1", environ_base={"REMOTE_ADDR": "198.51.100.7"}) == [200]


def test_code_comes_before_configuration(clock):
    app = service(TIDEGATE_LIMIT="1/minute")
    RateLimiter(app, "2/minute", clock=clock)
    assert statuses(app, *["/a/1"] * 3) == [200, 200, 429]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("TIDEGATE_ENABLED", "yes", "True and False"),
        ("TIDEGATE_LIMIT", "five a minute", "expected"),
        ("TIDEGATE_ENDPOINT_LIMIT", 5, "expected"),
        ("TIDEGATE_STORAGE", "mongodb://localhost", "expected"),
        ("TIDEGATE_STORAGE_OPTIONS", "capacity=5", "a dict"),
        ("TIDEGATE_STORAGE_OPTIONS", {"x": 1}, "expected"),
        ("TIDEGATE_STORAGE_OPTIONS", {"capacity": "many"}, "expected"),
        ("TIDEGATE_ALGORITHM", "bucket", "expected"),
        ("TIDEGATE_PREFIX", 5, "a str"),
        ("TIDEGATE_KEY", "address", "user_or_ip"),
        ("TIDEGATE_KEY", "no.such:module", "package.module:function"),
        ("TIDEGATE_ON_NO_KEY", "ignore", "expected"),
        ("TIDEGATE_HEADERS", ["draft"], "expected"),
        ("TIDEGATE_HEADERS", 5, "expected"),
        ("TIDEGATE_EXEMPT_METHODS", "OPTIONS", "expected"),
        ("TIDEGATE_LIMITS", "5/minute", "expected TIDEGATE_ENABLED"),
    ],
)
def test_a_mistake_names_its_key_of_the_configuration(key, value, expected):
    with pytest.raises(tg.ConfigurationError, match=key) as caught:
        RateLimiter(service(**{key: value}))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("given", "configured", "named"),
    [
        ({"storage": "memory://"}, {}, "storage= and TIDEGATE_STORAGE_OPTIONS: "),
        ({}, {"STORAGE": "memory://"}, "TIDEGATE_STORAGE and TIDEGATE_STORAGE_OPTIONS: "),
        ({}, {}, "TIDEGATE_STORAGE_OPTIONS: "),
    ],
)
def test_a_wrong_option_of_the_storage_names_what_was_read(given, configured, named):
    config = {f"TIDEGATE_{name}": value for name, value in configured.items()}
    app = service(**config, TIDEGATE_STORAGE_OPTIONS={"x": 1})
    with pytest.raises(tg.ConfigurationError) as caught:
        RateLimiter(app, **given)
    assert str(caught.value).startswith(named)


async def later(request):
    return "x"


@pytest.mark.parametrize(
    "options",
    [
        {"limit": "five a minute"},
        {"endpoint_limit": []},
        {"key": 5},
        {"key": later},
        {"cost": 0},
        {"exempt_when": True},
        {"on_no_key": "ignore"},
        {"on_refused": later},
        {"headers": "draft"},
        {"exempt_methods": "OPTIONS"},
        {"algorithm": "bucket"},
        {"capacity": 5},
        {"retry_jitter": -1},
    ],
)
def test_wrong_options_raise_before_there_is_an_application(options):
    with pytest.raises(tg.ConfigurationError, match="expected"):
        RateLimiter(**options)


def test_invalid_limits_of_views_are_refused():
    limiter = RateLimiter()
    with pytest.raises(tg.ConfigurationError, match="expected"):
        limiter.limit("five a minute")
    for options in ({"key": later}, {"scope": ""}, {"methods": "POST"}, {"key": "address"}):
        with pytest.raises(tg.ConfigurationError, match="expected"):
            limiter.limit("5/minute", **options)
    with pytest.raises(tg.ConfigurationError, match="generator"):
        limiter.limit("5/minute")(lambda: (yield))
    limiter.limit("5/minute", cost=6)(by_tenant)
    kept = limiter.limit("5/minute", cost=6)(nothing)
    with pytest.raises(tg.ConfigurationError, match="the cost is 6"):
        limiter.init_app(service())
    assert callable(kept)


def test_a_limit_above_the_route_is_refused(app):
    limiter = RateLimiter(app)

    def page():
        return {}

    app.add_url_rule("/page", "page", page)
    with pytest.raises(tg.ConfigurationError, match="registered with a Flask already"):
        limiter.limit("5/minute")(page)


def test_an_application_is_limited_once(app):
    limiter = RateLimiter(app)
    with pytest.raises(tg.ConfigurationError, match="once for each"):
        limiter.init_app(app)
    with pytest.raises(tg.ArgumentTypeError, match="expected a Flask"):
        limiter.init_app(app.wsgi_app)


def test_applications_have_separate_counts_and_are_not_kept_alive(clock):
    limiter = RateLimiter(limit="3/minute", clock=clock)
    view = limiter.limit("1/minute")(nothing)

    def create():
        app = service()
        limiter.init_app(app)
        app.add_url_rule("/own", "own", view)
        own = limiter.limit("1/minute")(nothing)
        app.add_url_rule("/inside", "inside", own)
        return app

    apps = [create(), create()]
    for app in apps:
        assert statuses(app, "/own", "/own", "/inside", "/inside") == [200, 429, 200, 429]
    gone = weakref.ref(apps.pop())
    del app
    gc.collect()
    assert gone() is None


def test_an_application_without_the_extension_says_so(app, clock):
    limiter = RateLimiter(clock=clock)
    app.add_url_rule("/own", "own", limiter.limit("1/minute")(nothing))
    app.testing = True
    with pytest.raises(tg.ConfigurationError, match="init_app"):
        app.test_client().get("/own")


def test_one_application_may_have_several_extensions(app, clock):
    RateLimiter(app, "3/minute", clock=clock)
    RateLimiter(app, "2/hour", clock=clock)
    client = app.test_client()
    answer = client.get("/a/1")
    assert answer.headers.getlist("RateLimit-Policy") == [
        '"2/hour";q=2;w=3600, "3/minute";q=3;w=60'
    ]
    assert statuses(app, *["/a/1"] * 2) == [200, 429]
    clock.advance(3600)
    assert client.get("/a/1").headers.getlist("RateLimit") == [
        '"2/hour";r=1;t=1800, "3/minute";r=2;t=20'
    ]


def test_settings_that_come_too_late_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    late, right = flask.Flask("late"), flask.Flask("right")
    for app in (late, right):
        app.config["TIDEGATE_LIMIT"] = "9/minute"
        RateLimiter(app)
        app.get("/")(lambda: "ok")
    late.config.update(TIDEGATE_STORAGE="redis://localhost", TIDEGATE_ENABLED=False)
    for app in (late, late, right):
        assert app.test_client().get("/").status_code == 200
    said = [line for line in caplog.messages if "changed after init_app()" in line]
    assert len(said) == 1
    assert said[0].startswith("rate limiting: TIDEGATE_STORAGE changed")


def test_no_signal_has_a_receiver_of_the_extension_after_the_first_request() -> None:
    """Else Flask would look for it at each request."""
    before = set(flask.request_started.receivers)
    app = flask.Flask("app")
    RateLimiter(app, "9/minute")
    app.get("/")(lambda: "ok")
    assert set(flask.request_started.receivers) > before
    assert app.test_client().get("/").status_code == 200
    assert set(flask.request_started.receivers) == before


def test_the_setting_of_django_is_named(caplog: pytest.LogCaptureFixture) -> None:
    app = flask.Flask("app")
    app.config["TIDEGATE"] = {"LIMIT": "1/minute"}
    RateLimiter(app)
    assert "the configuration has TIDEGATE, which tidegate does not read" in caplog.text
