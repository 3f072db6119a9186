"""The 429 of limited routes in the OpenAPI schema of FastAPI.

FastAPI asks a route for its responses where it is registered, and a decorator below that has
no say in it. So the function that describes one route is given the 429 to add.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

__all__ = ["MARK", "UNMARKED", "describe_refusals", "mark_of"]

# What is limited has this attribute: a function under @rate_limit, a dependency.
MARK = "__tidegate_rate_limit__"
UNMARKED = object()

_INTEGER = {"schema": {"type": "integer"}}
_REFUSAL = {
    "description": "Too Many Requests",
    "headers": {
        "Retry-After": {"description": "Seconds to wait for", **_INTEGER},
        "RateLimit": {
            "description": "What is left of the limit that refused",
            "schema": {"type": "string"},
        },
    },
    "content": {
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
    },
}


def describe_refusals() -> None:
    """Has FastAPI tell of 429 for routes that are limited, unless they tell of it themselves.

    Does nothing where FastAPI is not imported, and nothing twice.
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
        if _is_limited(kwargs.get("route")):
            for operation in result[0].values():
                operation.setdefault("responses", {}).setdefault("429", _REFUSAL)
        return result

    setattr(described, MARK, None)
    return described


def _is_limited(route: Any) -> bool:
    is_limited = mark_of(getattr(route, "endpoint", None)) is not UNMARKED
    return is_limited or _depends(getattr(route, "dependant", None))


def mark_of(call: Any) -> Any:
    """What is left on the limited function that `call` is, or is a partial or an object of.

    UNMARKED where there is none.
    """
    while isinstance(call, functools.partial):
        call = call.func
    return getattr(call, MARK, getattr(type(call).__call__, MARK, UNMARKED))


def _depends(dependant: Any) -> bool:
    dependencies = getattr(dependant, "dependencies", ())
    return any(mark_of(each.call) is not UNMARKED or _depends(each) for each in dependencies)
