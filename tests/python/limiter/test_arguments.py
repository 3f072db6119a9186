"""Calls with arguments that do not fit: messages name what was given, where, and the expected."""

from __future__ import annotations

import pytest
import tidegate as tg
from tidegate import keys, rate_limit
from tidegate.asgi import RateLimitMiddleware
from tidegate.cli.doctor_checks import examine
from tidegate.fastapi import RateLimit


async def application(scope, receive, send): ...


@pytest.mark.parametrize(
    ("call", "where", "given", "expected"),
    [
        (lambda: tg.Limiter(limt="5/minute"), "Limiter()", "limt", "here it is limit="),
        (lambda: tg.Limiter(), "Limiter()", "without limit", "expected Limiter(limit, "),
        (lambda: tg.Limiter("5/m", "redis://a"), "Limiter()", "'redis://a'", "storage="),
        (lambda: tg.Limiter((5, 60)), "the limits are", "(5, 60)", "Limit(100, 60)"),
        (lambda: tg.Limit(5, 60, 10), "Limit()", "(5, 60, 10)", "expected Limit('100/minute')"),
        (lambda: tg.Limit(count=5, period=60), "Limit()", "unknown option count", "limit="),
        (lambda: tg.Limit(5, per="minute"), "Limit()", "unknown option per", "limit="),
        (lambda: tg.Limit("5 at once"), "'5 at once'", "only a Limiter reads", "'5/minute'"),
        (lambda: rate_limit(), "rate_limit()", "without limit", "expected rate_limit(limit, "),
        (lambda: rate_limit(5, 60), "rate_limit()", "60", "expected rate_limit(limit, "),
        (lambda: rate_limit(times=5), "rate_limit()", "times", "a limit such as '5/minute'"),
        (lambda: RateLimit(key=None), "RateLimit()", "without limit", "RateLimit(limit, "),
        (lambda: RateLimitMiddleware("5/m"), "the application", "'5/m'", "one of ASGI"),
        (lambda: keys.client_ip("10.0.0.0/8"), "client_ip()", "'10.0.0.0/8'", "trusted_proxies="),
        (lambda: keys.api_key(), "api_key()", "without known", "expected api_key(known, header=)"),
        (lambda: keys.header("x-a"), "header()", "without trusted_proxies", "trusted_proxies="),
        (lambda: keys.first_of(keys.user), "first_of()", "tidegate.keys.user", "user(...)"),
        (
            lambda: RateLimitMiddleware(application, "5/minute", key=keys.api_key),
            "key is",
            "tidegate.keys.api_key",
            "api_key(...)",
        ),
        (lambda: tg.Limiter("5/m", timeout=1), "the options", "timeout", "storage='redis://HOST'"),
        (
            lambda: tg.Limiter("5/m", storage="redis://h/abc"),
            "the database",
            "'abc'",
            "redis://HOST/0",
        ),
        (
            lambda: tg.Limiter("5/m", storage="redis://h", ssl_cert_reqs="none"),
            "redis://",
            "ssl_cert_reqs",
            "expected rediss://",
        ),
        (
            lambda: tg.Limiter("5/m", storage="redis://h", fallback=True),
            "the storage option fallback",
            "True of type bool",
            "expected 'memory://'",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_expected(call, where, given, expected):
    with pytest.raises(tg.ConfigurationError) as caught:
        call()
    message = str(caught.value)
    assert where in message
    assert given in message
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "uri",
    [
        "redis//:SECRET@host",
        "redis:/:SECRET@host:6379",
        "redis :// :SECRET@host",
        "redis:u:SECRET@host",
        "u:SECRET@host:6379",
        "redis://:SECRET\uff03@host",
        "redis://u:SECRET\uff20host",
        "redis://u:SEC/RET\uff20host",
        "redis://u:x?SECRET@host",
        "redis://u:SECRET@[::1",
        "redis://u:SECRET@host:99999",
        "mongo://host/?password=SE@CRET",
    ],
)
def test_no_error_of_a_malformed_uri_shows_its_password(uri):
    with pytest.raises(tg.ConfigurationError) as limited:
        tg.Limiter("1/s", storage=uri)
    with pytest.raises(tg.ConfigurationError) as examined:
        examine(uri)
    for error in (limited, examined):
        assert not any(part in str(error.value) for part in ("SEC", "RET", "SE@", "CRET"))
        assert error.value.__suppress_context__ or error.value.__context__ is None


def test_a_password_that_could_be_a_database_is_not_shown():
    with pytest.raises(tg.ConfigurationError) as caught:
        tg.Limiter("5/m", storage="redis://:half/secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("name", "meant"), [("limter", "Limiter"), ("plan", "Plan")])
def test_a_name_that_the_package_does_not_have(name, meant):
    with pytest.raises(AttributeError, match=f"has no {name}; expected perhaps .*{meant}"):
        getattr(tg, name)
    assert not hasattr(tg, "__wrapped__")


@pytest.mark.parametrize("name", ["hit", "allow", "peek", "charge_up_to"])
def test_calls_of_a_limiter_name_the_argument_that_does_not_fit(name: str) -> None:
    call = getattr(tg.Limiter("5/minute"), name)
    with pytest.raises(TypeError, match=r"^the argument 'key' is missing$"):
        call()
    with pytest.raises(TypeError, match=r"^takes key and cost, but 3 arguments were given$"):
        call("k", 1, 2)
    with pytest.raises(TypeError, match=r"^unexpected argument 'user'; expected key and cost$"):
        call(user="k")


def test_charge_up_to_needs_a_cost() -> None:
    with pytest.raises(TypeError, match=r"^the argument 'cost' is missing$"):
        tg.Limiter("5/minute").charge_up_to("k")  # type: ignore[call-arg]
