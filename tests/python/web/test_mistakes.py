"""Mistakes that would change or disable a limit are refused or logged."""

from __future__ import annotations

import importlib
import logging

import fastapi
import flask
import pytest
import tidegate as tg
import tidegate.asgi
import tidegate.fastapi
import tidegate.flask
import tidegate.keys
import tidegate.wsgi


@pytest.mark.parametrize("option", ["methods", "exempt_methods"])
@pytest.mark.parametrize(("wrong", "near"), [("PSOT", "POST"), ("GTE", "GET"), ("DELET", "DELETE")])
def test_an_unknown_method_raises(option, wrong, near):
    def make(**options):
        if option == "methods":
            return tg.rate_limit("5/minute", **options)
        return tidegate.wsgi.RateLimitMiddleware(None, "5/minute", **options)

    with pytest.raises(tg.ConfigurationError, match=f"{option} has '{wrong}'.*'{near}'"):
        make(**{option: ["GET", wrong]})


@pytest.mark.parametrize("method", ["get", "PROPFIND", "PURGE", "FROBNICATE"])
def test_known_methods_and_those_of_a_service_are_accepted(method):
    assert tg.rate_limit("5/minute", methods=[method])


def test_an_empty_list_of_methods_is_refused():
    with pytest.raises(tg.ConfigurationError, match="methods is \\[\\], which limits nothing"):
        tg.rate_limit("5/minute", methods=[])
    assert tidegate.wsgi.RateLimitMiddleware(None, "5/minute", exempt_methods=[])


@pytest.mark.parametrize("text", ["100/M", "100/mo", "100 per mon", "5/2 M"])
def test_an_ambiguous_unit_is_refused(text):
    with pytest.raises(tg.ConfigurationError, match="could be minutes or months") as caught:
        tg.Limiter(text)
    assert text in str(caught.value)


@pytest.mark.parametrize("text", ["100/m", "100/MINUTE", "100/Month", "100/S", "100/H", "1/2 D"])
def test_units_in_capitals(text):
    assert tg.Limit(text)


@pytest.mark.parametrize("option", ["timeout", "connect_timeout"])
def test_milliseconds_in_place_of_seconds_log_a_warning(option, caplog):
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        tg.Limiter("5/minute", storage="redis://127.0.0.1:1", **{option: 50}).close()
    (message,) = [line for line in caplog.messages if option in line]
    assert "50 seconds" in message
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        tg.Limiter("5/minute", storage="redis://127.0.0.1:1", **{option: 0.5}).close()
    assert not [line for line in caplog.messages if option in line]


def test_limits_of_one_text_with_two_algorithms_are_refused():
    limits = [tg.Limit("9/minute"), tg.Limit("9/minute", algorithm="fixed-window")]
    with pytest.raises(tg.ConfigurationError, match=r"token-bucket.*fixed-window.*name='strict'"):
        tg.Limiter(limits)
    named = tg.Limit("9/minute", algorithm="fixed-window", name="strict")
    assert tg.Limiter([limits[0], named]).hit("k")

    def view():
        pass

    inner = tg.rate_limit("9/minute", algorithm="fixed-window")(view)
    with pytest.raises(tg.ConfigurationError, match="two limits have the name"):
        tg.rate_limit("9/minute")(inner)


def asgi(**options):
    return tidegate.asgi.RateLimitMiddleware(None, **options)


def wsgi(**options):
    return tidegate.wsgi.RateLimitMiddleware(None, **options)


def limiter(**options):
    return tg.Limiter("5/minute", **options)


def decorator(**options):
    return tg.rate_limit("5/minute", **options)


def dependency(**options):
    return tidegate.fastapi.RateLimit("5/minute", **options)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (asgi, "RateLimitMiddleware()"),
        (wsgi, "RateLimitMiddleware()"),
        (decorator, "rate_limit()"),
        (dependency, "RateLimit()"),
        (tidegate.flask.RateLimiter, "RateLimiter()"),
        (limiter, "of a Limiter"),
    ],
)
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("alogrithm", "algorithm="),
        ("burst", "a limit such as '10/second burst 40'"),
        ("limt", "limit="),
        ("prefx", "prefix="),
    ],
)
def test_an_unknown_option_names_the_options_and_the_nearest(make, name, wrong, meant):
    with pytest.raises(tg.ConfigurationError, match=f"unknown option {wrong} ") as caught:
        make(**{wrong: 5})
    message = str(caught.value)
    assert f"{wrong} (here it is {meant})" in message
    assert name in message
    for option in ("algorithm=", "prefix=", "storage="):
        assert option in message


def test_an_option_of_flask_limiter_leads_to_the_name_here():
    with pytest.raises(tg.ConfigurationError, match=r"default_limits \(here it is endpoint_limit="):
        tidegate.flask.RateLimiter(default_limits=["5/minute"])


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("deduct_when", "cost_after=, whose function returns 0 for what is not to count"),
        ("override_defaults", "nothing: a route's own limit replaces a default"),
        ("request_filter", "exempt_when="),
        ("limiter", "limit=, and storage=limiter.storage to count in its storage"),
    ],
)
def test_what_this_does_otherwise_than_other_limiters_is_said(wrong, meant):
    with pytest.raises(tg.ConfigurationError) as caught:
        decorator(**{wrong: 5})
    assert f"{wrong} (here it is {meant}" in str(caught.value)


def test_leftover_settings_of_flask_limiter_are_logged(caplog):
    app = flask.Flask(__name__)
    app.config["RATELIMIT_STORAGE_URI"] = "redis://localhost"
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        tidegate.flask.RateLimiter(app)
    (message,) = caplog.messages
    assert "RATELIMIT_STORAGE_URI, which tidegate does not read" in message
    assert "TIDEGATE_STORAGE" in message


def test_settings_of_flask_in_lower_case_are_logged(caplog):
    app = flask.Flask(__name__)
    app.config.update(tidegate_limit="5/minute", Tidegate_Storage="memory://")
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        tidegate.flask.RateLimiter(app)
    (message,) = caplog.messages
    assert "has Tidegate_Storage, tidegate_limit, which tidegate does not read" in message


def test_settings_of_flask_with_a_slip_in_their_prefix_are_logged(caplog):
    app = flask.Flask(__name__)
    app.config.update(TIDGATE_LIMIT="5/minute", TIDEGATES_STORAGE="memory://", TIDE="high")
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        tidegate.flask.RateLimiter(app)
    (message,) = caplog.messages
    assert "has TIDEGATES_STORAGE, TIDGATE_LIMIT, which tidegate does not read" in message


@pytest.mark.parametrize("text", ["1,000/hour", "10,000 per day", "5/second; 1,000/hour"])
def test_a_comma_within_a_number_is_refused(text):
    with pytest.raises(tg.ConfigurationError, match="a number has a comma in it") as caught:
        tg.Limiter(text)
    assert text in str(caught.value)
    assert len(tg.Limiter("10/second burst 40,100/hour").limits) == 2


@pytest.mark.parametrize("port", ["99999", "none", "-1"])
def test_a_bad_port_is_named(port):
    with pytest.raises(tg.ConfigurationError, match=f"port of the storage URI is '{port}'"):
        tg.Limiter("5/minute", storage=f"redis://example.org:{port}/0")


@pytest.mark.parametrize("uri", ["redis://:123/456@example.org", "redis://:se?cret@example.org"])
def test_no_message_shows_a_possible_password(uri):
    with pytest.raises(tg.ConfigurationError) as caught:
        tg.Limiter("5/minute", storage=uri)
    assert not {"123", "456", "cret"} & set(str(caught.value).replace("'", " ").split())
    assert "se?" not in str(caught.value)


def test_an_application_of_the_other_interface_is_refused():
    app = flask.Flask(__name__)
    with pytest.raises(tg.ConfigurationError, match=r"one of ASGI.*tidegate\.wsgi\.RateLimitMid"):
        tidegate.asgi.RateLimitMiddleware(app.wsgi_app, "5/minute")
    with pytest.raises(tg.ConfigurationError, match=r"one of WSGI.*tidegate\.asgi\.RateLimitMid"):
        tidegate.wsgi.RateLimitMiddleware(fastapi.FastAPI(), "5/minute")


def test_a_decorator_as_a_dependency_is_refused():
    app = fastapi.FastAPI()
    wrong = fastapi.Depends(tg.rate_limit("5/minute"))
    with pytest.raises(tg.ConfigurationError, match=r"Depends\(tidegate\.fastapi\.RateLimit"):
        app.get("/", dependencies=[wrong])(lambda: "ok")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: tg.Limiter(limt="5/minute"),
            r"Limiter\(\) was called without limit and .* limt \(here it is",
        ),
        (lambda: tg.Limiter(), r"Limiter\(\) was called without limit; expected"),
        (
            lambda: tg.Limiter(storage="memory://"),
            r"Limiter\(\) was called without limit; expected",
        ),
        (lambda: tg.Limit("5/minute", alogrithm="gcra"), r"alogrithm \(here it is algorithm=\)"),
        (lambda: tg.Limit("5/minute", burts=5), r"burts \(here it is burst=\); expected limit="),
        (lambda: tg.Limit(limt="5/minute"), r"limt \(here it is limit=\)"),
        (lambda: tg.Limit("5/minute", colour=5), r"option colour; expected limit=, period="),
        (lambda: tg.rate_limit(limt="5/minute"), r"rate_limit\(\) was called .* limt \(here it is"),
        (lambda: tg.rate_limit(), r"rate_limit\(\) was called without limit; expected"),
        (lambda: tg.rate_limit(key=str), r"rate_limit\(\) was called without limit"),
    ],
)
def test_another_name_for_limit_is_corrected(call, message):
    with pytest.raises(tg.ConfigurationError, match=message):
        call()


def test_another_name_for_the_limit_of_a_dependency_is_corrected():
    for kind in (tidegate.fastapi.RateLimit, tidegate.fastapi.DefaultRateLimit):
        with pytest.raises(
            tg.ConfigurationError, match=rf"{kind.__name__}\(\) was called .* limt \(here"
        ):
            kind(limt="5/minute")


def test_another_name_for_the_limit_of_a_flask_view_is_corrected():
    limiter = tidegate.flask.RateLimiter(flask.Flask("service"))
    with pytest.raises(tg.ConfigurationError, match=r"limit\(\) was called .* limt \(here it is"):
        limiter.limit(limt="5/minute")


@pytest.mark.parametrize(
    ("module", "name", "other"),
    [
        ("tidegate", "RateLimit", "tidegate.fastapi"),
        ("tidegate", "RateLimitMiddleware", "tidegate.asgi"),
        ("tidegate", "RateLimiter", "tidegate.flask"),
        ("tidegate.asgi", "rate_limit", "tidegate"),
        ("tidegate.fastapi", "RateLimitMiddleware", "tidegate.asgi"),
        ("tidegate.fastapi", "rate_limit", "tidegate"),
        ("tidegate.flask", "RateLimitMiddleware", "tidegate.wsgi"),
        ("tidegate.flask", "rate_limit", "tidegate"),
        ("tidegate.wsgi", "rate_limit", "tidegate"),
    ],
)
def test_an_import_from_the_wrong_module_names_the_right_one(
    module: str, name: str, other: str
) -> None:
    right = f"from {other} import {name}"
    with pytest.raises(ImportError, match=f"^{module} has no {name}; expected `{right}`$"):
        exec(f"from {module} import {name}")
    exec(right)
    assert not hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("tidegate.fastapi", "RateLimited", "RateLimitExceeded"),
        ("tidegate.fastapi", "RateLimiter", "RateLimit"),
        ("tidegate.flask", "RateLimit", "RateLimiter"),
    ],
)
def test_another_name_is_refused_with_the_one_of_today(module: str, name: str, now: str) -> None:
    with pytest.raises(ImportError, match=f"expected `from {module} import {now}`$"):
        exec(f"from {module} import {name}")
    assert hasattr(importlib.import_module(module), now)
    with pytest.raises(AttributeError, match=r"has no other; expected one of "):
        importlib.import_module(module).other  # noqa: B018


@pytest.mark.parametrize("name", ["ip", "remote_address", "get_remote_address", "ip_address"])
def test_the_name_of_an_address_in_other_limiters_leads_to_client_ip(name):
    with pytest.raises(AttributeError, match=rf"has no {name}; expected `tidegate.keys.client_ip"):
        getattr(tidegate.keys, name)


def test_any_other_name_is_no_key_function():
    with pytest.raises(AttributeError, match=r"has no cliend_ip; expected perhaps client_ip$"):
        tidegate.keys.cliend_ip  # noqa: B018
