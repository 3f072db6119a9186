"""What those who come from another limiter get wrong first is answered where they write it."""

from __future__ import annotations

import functools

import pytest
import tidegate as tg
import tidegate.limits
from django.conf import settings
from django_ratelimit.core import user_or_ip
from flask import Flask
from flask_limiter.util import get_remote_address as of_flask_limiter
from limits.storage import storage_from_string
from servers import ask, limited
from slowapi.util import get_remote_address as of_slowapi
from tidegate import asgi, rate_limit, wsgi
from tidegate.fastapi import RateLimit
from tidegate.flask import RateLimiter as FlaskRateLimit
from tidegate.keys import peer


def flask_extension(limit, **options):
    return FlaskRateLimit(Flask("service"), limit, storage="memory://", **options)


PLACES = [
    pytest.param(rate_limit, id="decorator"),
    pytest.param(RateLimit, id="dependency"),
    pytest.param(flask_extension, id="flask"),
    pytest.param(functools.partial(asgi.RateLimitMiddleware, None), id="asgi"),
    pytest.param(functools.partial(wsgi.RateLimitMiddleware, None), id="wsgi"),
]


def make(place, *args, **options):
    made = place(*args, **options)
    return made(lambda request: None) if place is rate_limit else made


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key_func": peer}, r"unknown option key_func \(here it is key=\)"),
        ({"identifier": peer}, r"identifier \(here it is key=\)"),
        ({"storage_uri": "memory://"}, r"storage_uri \(here it is storage=\)"),
        ({"strategy": "fixed-window"}, r"strategy \(here it is algorithm=\)"),
        ({"error_message": "no"}, r"error_message \(here it is on_refused=\)"),
        ({"seconds": 5}, r"seconds \(here it is a limit such as '5/2 seconds'\)"),
        ({"capacty": 5}, r"capacty \(here it is capacity=\)"),
        ({"nonsense": 5}, r"unknown option nonsense; expected"),
    ],
)
def test_options_by_the_names_of_others(place, options, said):
    with pytest.raises(tg.ConfigurationError, match=said):
        make(place, "5/minute", **options)


def test_options_of_the_flask_extension_without_a_storage():
    with pytest.raises(tg.ConfigurationError, match=r"key_func \(here it is key=\)"):
        FlaskRateLimit(key_func=of_flask_limiter)


def test_options_of_djangos_decorator_without_a_storage():
    if not settings.configured:
        settings.configure()
    from tidegate.django import rate_limit

    with pytest.raises(tg.ConfigurationError, match=r"group \(here it is scope=\), method \(here"):
        rate_limit("5/m", group="writes", method="POST")


@pytest.mark.parametrize("place", PLACES)
def test_a_function_for_something_else(place):
    with pytest.raises(tg.ArgumentTypeError, match=r"key .*takes \(\).* function of the request$"):
        make(place, "5/minute", key=of_flask_limiter)
    with pytest.raises(tg.ArgumentTypeError, match=r"key .*takes \(group, request\)"):
        make(place, "5/minute", key=lambda group, request: user_or_ip(request))
    with pytest.raises(tg.ArgumentTypeError, match=r"exempt_when .*takes \(\)"):
        make(place, "5/minute", exempt_when=lambda: True)
    with pytest.raises(tg.ArgumentTypeError, match=r"cost .*takes \(\)"):
        make(place, "5/minute", cost=lambda: 2)
    with pytest.raises(tg.ArgumentTypeError, match=r"on_refused .*the request and the decision$"):
        make(place, "5/minute", on_refused=lambda limit: None)
    with pytest.raises(
        tg.ConfigurationError, match=r"key is 'address'; .*'ip', 'user', 'user_or_ip'"
    ):
        make(place, "5/minute", key="address")
    for key in ("ip", "user", "user_or_ip", "tidegate.keys:peer"):
        make(place, "5/minute", key=key)


@pytest.mark.parametrize("key", [of_slowapi, len, str, functools.partial(max, "a")])
def test_functions_that_may_well_do_are_not_refused(key):
    make(rate_limit, "5/minute", key=key)


def test_options_of_redis_py():
    for name, ours in [
        ("socket_timeout", "timeout"),
        ("socket_connect_timeout", "connect_timeout"),
    ]:
        with pytest.raises(tg.ConfigurationError, match=rf"{name} \(here it is {ours}=\)"):
            storage_from_string("tidegate+redis://127.0.0.1", **{name: 30})
        with pytest.raises(tg.ConfigurationError, match=rf"{name} \(here it is {ours}=\)"):
            tg.Limiter("5/minute", storage=f"redis://127.0.0.1?{name}=30")


def test_a_password_is_in_no_message():
    for uri in (
        "tidegate+redis://:secret@127.0.0.1?socket_timeout=3",
        "tidegate+memory://secret@x",
    ):
        with pytest.raises(tg.ConfigurationError) as caught:
            storage_from_string(uri)
        assert "secret" not in str(caught.value)


def test_a_key_function_of_a_request_does_not_fit_the_middleware():
    """It is an error of the first request."""
    app = limited("1/minute", key=of_slowapi)
    with pytest.raises(tg.ConfigurationError, match=r"key reads .client of the ASGI scope"):
        ask(app)
