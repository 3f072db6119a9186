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

# The parameter that passes the request to a function that does not ask for it.
_REQUEST = "tidegate_request"
# Newer versions of FastAPI keep the route of an included router here, with a dependant of its own.
_EFFECTIVE = getattr(routing, "_FASTAPI_EFFECTIVE_ROUTE_CONTEXT_KEY", None)


def route_of(scope: Mapping[str, Any]) -> Any:
    """The route that answers the request, None if it is unknown."""
    route = scope.get("route")
    if _EFFECTIVE is not None and "fastapi" in scope:
        return scope["fastapi"].get(_EFFECTIVE) or route
    return route


def add_headers_to_responses(route: Any) -> None:
    """Has the fields put into responses that the function of `route` returns.

    FastAPI passes such responses only to the server, so the function that it calls for each request
    is wrapped.
    """
    dependant: Any = getattr(route, "dependant", None)
    call = getattr(dependant, "call", None)
    if call is None or hasattr(call, TELLS):
        return

    own: str | None = dependant.request_param_name

    def tell(result: Any, request: Any) -> None:
        # Only a list is one of a response: other objects may have the attribute too.
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
    # FastAPI reads it once the dependencies have run, so already for this request. A context
    # variable would not do: a task may inherit that of another request.
    dependant.request_param_name = own or _REQUEST
