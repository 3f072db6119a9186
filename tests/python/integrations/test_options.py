"""Every public signature shows its options, and takes them from one table of options."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

import tidegate.asgi
import tidegate.django
import tidegate.fastapi
import tidegate.flask
import tidegate.wsgi
from tidegate.limiter.storage.options import StorageOptions
from tidegate.web.options import DEFAULTS, CommonOptions, MiddlewareOptions, OptionReader

SIGNATURES: list[Any] = [
    tidegate.asgi.RateLimitMiddleware,
    tidegate.wsgi.RateLimitMiddleware,
    tidegate.rate_limit,
    tidegate.fastapi.RateLimit,
    tidegate.flask.RateLimiter,
    tidegate.flask.RateLimiter.limit,
    tidegate.django.rate_limit,
]


def keywords(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize("function", SIGNATURES)
def test_signatures_name_the_options_of_all_and_their_own(function: Any) -> None:
    shown = keywords(function)
    assert set(CommonOptions.__annotations__) <= set(shown)
    assert {"key", "cost", "on_no_key", "retry_jitter"} <= set(shown)
    assert not set(StorageOptions.__annotations__) & set(shown)
    assert "ForwardRef" not in str(inspect.signature(function))


def test_signatures_show_defaults() -> None:
    assert keywords(tidegate.asgi.RateLimitMiddleware)["storage"] == "memory://"
    assert keywords(tidegate.rate_limit)["cost"] == 1
    assert keywords(tidegate.fastapi.RateLimit)["headers"] == DEFAULTS["headers"]
    # None stands for the configuration's value.
    assert keywords(tidegate.flask.RateLimiter)["storage"] is None
    assert keywords(tidegate.django.rate_limit)["algorithm"] is None
    assert keywords(tidegate.django.rate_limit)["cost"] == 1
    assert "on_message_refused" not in keywords(tidegate.wsgi.RateLimitMiddleware)
    assert "cost_after" in keywords(tidegate.fastapi.RateLimit)


def test_options_are_read_with_defaults_and_others_are_for_the_storage() -> None:
    given, rest = OptionReader(MiddlewareOptions).read({"cost": 2, "capacity": 10})
    assert (given.cost, given.key, given.exempt_methods) == (2, None, ("OPTIONS",))
    assert rest == {"capacity": 10}


def test_an_unknown_option_of_a_view_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"RateLimiter.limit\(\) got the unknown option storage"):
        tidegate.flask.RateLimiter().limit("5/minute", storage="memory://")


def test_a_class_is_named_without_its_constructor() -> None:
    with pytest.raises(
        TypeError, match=r"^RateLimitMiddleware\(\) got the unknown option nonsense"
    ):
        tidegate.wsgi.RateLimitMiddleware(lambda environ, start: [], "1/minute", nonsense=1)
