"""Adds the headers to responses that a route of FastAPI returns itself, and settles its costs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from fastapi import routing

from tidegate.web.frameworks.fastapi_costs import (
    PENDING,
    settle_by_result,
    settle_by_result_in_thread,
)
from tidegate.web.frameworks.starlette_exceptions import ADDS_FIELDS, add_fields

__all__ = ["add_headers_to_responses", "route_of"]

# This parameter passes the request to a function that does not ask for it.
_REQUEST = "tidegate_request"
# Newer versions of FastAPI keep the route of an included router here, with its own dependant.
_EFFECTIVE = getattr(routing, "_FASTAPI_EFFECTIVE_ROUTE_CONTEXT_KEY", None)


def route_of(scope: Mapping[str, Any]) -> Any:
    """Returns the route that answers the request, or None if it is unknown."""
    route = scope.get("route")
    if _EFFECTIVE is not None and "fastapi" in scope:
        return scope["fastapi"].get(_EFFECTIVE) or route
    return route


def add_headers_to_responses(route: Any) -> None:
    """Adds the fields to responses that the function of `route` returns.

    FastAPI passes such responses only to the server, so the function that it calls for each request
    is wrapped.
    """
    dependant: Any = getattr(route, "dependant", None)
    call = getattr(dependant, "call", None)
    if call is None or hasattr(call, ADDS_FIELDS):
        return

    own: str | None = dependant.request_param_name

    @functools.wraps(call)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        request = kwargs.pop(_REQUEST, None) if own is None else kwargs.get(own)
        result = await call(*args, **kwargs)
        if request is not None and PENDING in request.scope:
            await settle_by_result(request, result)
        if hasattr(result, "raw_headers"):  # most functions return values
            add_fields(request, result)
        return result

    @functools.wraps(call)
    def call_in_thread(*args: Any, **kwargs: Any) -> Any:
        request = kwargs.pop(_REQUEST, None) if own is None else kwargs.get(own)
        result = call(*args, **kwargs)
        if request is not None and PENDING in request.scope:
            settle_by_result_in_thread(request, result)
        add_fields(request, result)
        return result

    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        return
    chosen: Any = call_async if inspect.iscoroutinefunction(call) else call_in_thread
    setattr(chosen, ADDS_FIELDS, call)
    dependant.call = chosen
    # FastAPI reads it after the dependencies have run, so already for this request. A context
    # variable would not work: a task may inherit that of another request.
    dependant.request_param_name = own or _REQUEST
