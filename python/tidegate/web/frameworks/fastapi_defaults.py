"""Finds the routes of FastAPI to which default limits do not apply: exempt routes, and those with a
limit of their own."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from typing import Any, Callable, Generic, TypeVar

from fastapi import routing

from tidegate.limiter.errors import ArgumentTypeError
from tidegate.limiter.storage.arguments import explains_arguments
from tidegate.web.frameworks.fastapi_openapi import EXEMPT, calls_of, mark_of

__all__ = ["PerRoute", "exempt", "has_own_limit", "name_of", "route_of"]

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")

# Newer versions of FastAPI keep the route of an included router here, with its own dependant.
_EFFECTIVE = getattr(routing, "_FASTAPI_EFFECTIVE_ROUTE_CONTEXT_KEY", None)
# Services have fewer routes; a service that creates routes for each request must not fill memory.
_MOST_ROUTES = 10_000


@explains_arguments("exempt")
def exempt(function: Function) -> Function:
    """Leaves a route out of all RateLimit and DefaultRateLimit dependencies.

        @app.get("/health")
        @exempt
        async def health(): ...

    The decorator may stand above or below the one that registers the route. @rate_limit still
    limits the route, and so does middleware, which has `exempt_paths`.
    """
    if not callable(function):
        raise ArgumentTypeError(
            f"@exempt was given {function!r} of type {type(function).__name__}; expected a "
            "function that answers requests: @exempt, without parentheses"
        )
    setattr(function, EXEMPT, True)
    return function


def route_of(scope: Mapping[str, Any]) -> Any:
    """Returns the route that answers the request, or None if it is unknown."""
    route = scope.get("route")
    if _EFFECTIVE is not None and "fastapi" in scope:
        return scope["fastapi"].get(_EFFECTIVE) or route
    return route


def has_own_limit(route: Any, scope: Mapping[str, Any]) -> bool:
    """Returns whether a limit on the route or its routers, not only on the application, charges
    requests of this method."""
    router = getattr(scope.get("app"), "router", None)
    of_all = [each.dependency for each in getattr(router, "dependencies", ())]
    own = [
        call
        for call in calls_of(getattr(route, "dependant", None))
        if not getattr(call, "is_default", False) and not any(call is each for each in of_all)
    ]
    method = scope.get("method", "GET")
    return any(
        limiter.charges(method)
        for call in (getattr(route, "endpoint", None), *own)
        for limiter in getattr(mark_of(call), "limiters", ())
    )


def name_of(route: Any, scope: Mapping[str, Any]) -> str:
    """Returns a name for the route that is the same in every worker."""
    endpoint = scope.get("endpoint", route)
    function = getattr(endpoint, "__qualname__", type(endpoint).__qualname__)
    # The name never contains the path of the request: strangers can make up any number of paths.
    return f"{getattr(endpoint, '__module__', '')}.{function} {getattr(route, 'path', '')}"


class PerRoute(Generic[T]):
    """Keeps one value for each route and method, created on first use."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[Callable[[], Any], T]] = {}

    def get(self, route: Any, method: str, make: Callable[[], T]) -> T:
        found = self._known.get((id(route), method))
        if found is not None and found[0]() is route:
            return found[1]
        value = make()
        if len(self._known) >= _MOST_ROUTES:
            self._known.clear()
        with contextlib.suppress(TypeError):  # such a value is created again on its next use
            self._known[id(route), method] = weakref.ref(route), value
        return value
