"""Refuses @rate_limit on handlers of frameworks that it does not know, with the way out."""

from __future__ import annotations

import inspect
import types
from typing import Any

from tidegate.limiter.errors import ConfigurationError

__all__ = ["refuse_other_frameworks"]

_KNOWN = frozenset(("fastapi", "starlette", "flask", "django", "rest_framework"))
_ASGI = "tidegate.asgi.RateLimitMiddleware around the application"
_BY_HAND = "`await limiter.hit_async(key)` in a middleware of the application"
_WAYS_OUT = {
    "litestar": "DefineMiddleware(tidegate.asgi.RateLimitMiddleware, limiter=...)",
    "quart": "app.asgi_app = tidegate.asgi.RateLimitMiddleware(app.asgi_app, ...)",
    "sanic": _BY_HAND,
    "aiohttp": _BY_HAND,
    "falcon": f"{_ASGI}, or tidegate.wsgi.RateLimitMiddleware",
    "bottle": "tidegate.wsgi.RateLimitMiddleware around the application",
    "blacksheep": _ASGI,
    "robyn": _BY_HAND,
    "tornado": _BY_HAND,
}


def refuse_other_frameworks(view: Any) -> None:
    """Raises ConfigurationError if the module of `view` uses only a framework that the decorator
    does not know: each request would fail there."""
    function = inspect.unwrap(view)
    found = {_package_of(each) for each in getattr(function, "__globals__", {}).values()}
    if found & _KNOWN:
        return
    for framework in sorted(found & _WAYS_OUT.keys()):
        raise ConfigurationError(
            f"{view!r} is in a module with {framework}, whose requests @rate_limit does not read; "
            f"expected FastAPI, Starlette, Flask or Django, and for {framework} "
            f"{_WAYS_OUT[framework]}"
        )


def _package_of(value: Any) -> str:
    """Returns the name of the package that defines `value`, or its type."""
    # Other objects may be proxies, which answer for their targets, or raise.
    if isinstance(value, types.ModuleType):
        name: Any = value.__name__
    elif issubclass(type(value), (type, types.FunctionType)):
        name = value.__module__
    else:
        name = type(value).__module__
    return str(name).partition(".")[0]
