"""Adds the 429 of limited routes to the OpenAPI schema of FastAPI.

FastAPI takes the responses of a route from its registration, which a decorator below cannot change.
So FastAPI's function that describes one route is wrapped to add the 429.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from tidegate.web.request_limiter import RequestLimiter

__all__ = ["EXEMPT", "MARK", "UNMARKED", "calls_of", "describe_refusals", "mark_of"]

# Everything that limits has this attribute: functions under @rate_limit, dependencies.
MARK = "__tidegate_rate_limit__"
UNMARKED = object()
# Functions that are exempt from the limits of dependencies have this attribute.
EXEMPT = "__tidegate_exempt__"

_INTEGER = {"schema": {"type": "integer"}}
_HEADERS = {
    "x-ratelimit": {
        f"X-RateLimit-{name}": {"description": description, **_INTEGER}
        for name, description in (
            ("Limit", "Units that the limit that refused lets through at once"),
            ("Remaining", "Units that remain of that limit"),
            ("Reset", "Seconds since the epoch, when all units are available again"),
        )
    },
    "ietf": {
        name: {"description": description, "schema": {"type": "string"}}
        for name, description in (
            ("RateLimit-Policy", "The limits of the route"),
            ("RateLimit", "The remaining units of the limit that refused"),
        )
    },
    "openai": {
        f"X-RateLimit-{name}-{what}": {
            "description": f"{description} of {what.lower()}",
            "schema": {"type": kind},
        }
        for what in ("Requests", "Tokens")
        for name, description, kind in (
            ("Limit", "The limit", "integer"),
            ("Remaining", "What remains", "integer"),
            ("Reset", "The time, such as 6m0s, until all is available again", "string"),
        )
    },
}
_PROBLEM = {
    "application/problem+json": {
        "schema": {
            "type": "object",
            "title": "Quota exceeded",
            "properties": {
                "type": {"type": "string", "format": "uri"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string"},
                "violated-policies": {"type": "array", "items": {"type": "string"}},
                "error": {"type": "string"},
                "retry_after": {"type": ["integer", "null"]},
            },
        }
    }
}


def _refusal(limiters: Sequence[RequestLimiter]) -> dict[str, Any]:
    """Returns the 429 of a route with these limiters. If a function of the service answers, the
    body is unknown and not described."""
    headers: dict[str, Any] = {"Retry-After": {"description": "Seconds to wait", **_INTEGER}}
    for family, fields in _HEADERS.items():
        if any(family in limiter.headers for limiter in limiters):
            headers.update(fields)
    refusal: dict[str, Any] = {"description": "Too Many Requests", "headers": headers}
    if all(limiter.hooks.on_refused is None for limiter in limiters):
        refusal["content"] = _PROBLEM
    return refusal


def describe_refusals() -> None:
    """Makes FastAPI describe the 429 of limited routes, unless they describe one themselves.

    Does nothing if FastAPI is not imported, or on a second call.
    """
    module: Any = sys.modules.get("fastapi.openapi.utils")
    describe: Any = getattr(module, "get_openapi_path", None)
    if describe is None or hasattr(describe, MARK):
        return
    module.get_openapi_path = _describing(describe)


def _describing(describe: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(describe)
    def described(*args: Any, **kwargs: Any) -> Any:
        result = describe(*args, **kwargs)
        limiters = _limiters_of(kwargs.get("route"))
        for operation in result[0].values() if limiters else ():
            operation.setdefault("responses", {}).setdefault("429", _refusal(limiters))
        return result

    setattr(described, MARK, None)
    return described


def _limiters_of(route: Any) -> list[RequestLimiter]:
    """Returns all limiters of the route."""
    endpoint = getattr(route, "endpoint", None)
    calls = [endpoint]
    if not getattr(endpoint, EXEMPT, False):
        calls += calls_of(getattr(route, "dependant", None))
    marks = [mark_of(call) for call in calls]
    found: list[RequestLimiter] = []
    for mark in marks:
        found += getattr(mark, "limiters", ())
    return found


def mark_of(call: Any) -> Any:
    """Returns the mark on the limited function that `call` is, wraps as a partial, or calls.

    UNMARKED if there is none.
    """
    while isinstance(call, functools.partial):
        call = call.func
    return getattr(call, MARK, getattr(type(call).__call__, MARK, UNMARKED))


def calls_of(dependant: Any) -> Iterator[Any]:
    """Yields the calls of the dependencies of a route or a dependency."""
    for each in getattr(dependant, "dependencies", ()):
        yield each.call
        yield from calls_of(each)
