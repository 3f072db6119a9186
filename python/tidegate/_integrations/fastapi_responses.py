"""The headers on responses that a route of FastAPI returns itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from fastapi import routing

from tidegate._integrations.starlette_exceptions import TELLS
from tidegate._web.decisions import DECISIONS, binding

__all__ = ["add_headers_to_responses", "route_of"]

# The parameter by which a function that asks for no request is given it.
_REQUEST = "tidegate_request"
# Where newer FastAPI keeps what a route of a router is in the place where that is included, which
# has a dependant of its own.
_EFFECTIVE = getattr(routing, "_FASTAPI_EFFECTIVE_ROUTE_CONTEXT_KEY", None)


def route_of(scope: Mapping[str, Any]) -> Any:
    """The route that answers the request, None where none is known."""
    route = scope.get("route")
    if _EFFECTIVE is not None and "fastapi" in scope:
        return scope["fastapi"].get(_EFFECTIVE) or route
    return route


def add_headers_to_responses(route: Any) -> None:
    """Has the fields put into responses that the function of `route` returns.

    FastAPI gives those to nobody but who sends them; the function itself is what it calls
    for each request.
    """
    dependant: Any = getattr(route, "dependant", None)
    call = getattr(dependant, "call", None)
    if call is None or hasattr(call, TELLS):
        return

    own: str | None = dependant.request_param_name

    def tell(result: Any, request: Any) -> None:
        # Of a response; what a service calls so itself is a value.
        raw = result.raw_headers
        outcomes = None if request is None else request.scope.get(DECISIONS)
        if outcomes and isinstance(raw, list):
            binding(outcomes).put(raw)

    @functools.wraps(call)
    async def telling_async(*args: Any, **kwargs: Any) -> Any:
        request = kwargs.pop(_REQUEST, None) if own is None else kwargs.get(own)
        result = await call(*args, **kwargs)
        if hasattr(result, "raw_headers"):
            tell(result, request)
        return result

    @functools.wraps(call)
    def telling(*args: Any, **kwargs: Any) -> Any:
        request = kwargs.pop(_REQUEST, None) if own is None else kwargs.get(own)
        result = call(*args, **kwargs)
        if hasattr(result, "raw_headers"):
            tell(result, request)
        return result

    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        return
    chosen: Any = telling_async if inspect.iscoroutinefunction(call) else telling
    setattr(chosen, TELLS, call)
    dependant.call = chosen
    # FastAPI looks for it once the dependencies have run, for this request too. Not a context
    # variable: a task may inherit that of another request.
    dependant.request_param_name = own or _REQUEST
