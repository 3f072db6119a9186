"""The fields on the responses of exception handlers of Starlette and FastAPI."""

from __future__ import annotations

import functools
import inspect
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from tidegate._web.decisions import DECISIONS, binding

if TYPE_CHECKING:
    from tidegate._web.request_limiter import RequestDecision

__all__ = ["TELLS", "remember"]

# The attribute of handlers and functions that add the fields.
TELLS = "__tidegate_tells__"


class _Told(Exception):
    """Never raised. Its presence among an application's handlers shows that they add the fields."""


def remember(
    scope: MutableMapping[str, Any], outcome: RequestDecision
) -> tuple[RequestDecision, ...]:
    """Notes that `outcome` let a request pass, and returns all that did.

    Handlers of the application add the fields from now on.
    """
    outcomes: tuple[RequestDecision, ...] = (*scope.get(DECISIONS, ()), outcome)
    scope[DECISIONS] = outcomes
    handlers = scope.get("starlette.exception_handlers")
    if handlers is not None and _Told not in handlers[0]:
        _tell_answers(scope, handlers)
    return outcomes


def _tell_answers(scope: MutableMapping[str, Any], kinds: Any) -> None:
    """Has the fields put into the responses of an application's exception handlers.

    `kinds` are the handlers by exception and by status. The handler of last resort belongs to the
    outermost middleware and is not among them.
    """
    for handlers in kinds:
        for kind, handler in list(handlers.items()):
            handlers[kind] = _telling(handler)
    kinds[0][_Told] = None
    outermost: Any = getattr(scope.get("app"), "middleware_stack", None)
    last = getattr(outermost, "handler", None)
    if last is not None and not hasattr(last, TELLS):
        outermost.handler = _telling(last)


def _telling(handler: Any) -> Any:
    def tell(request: Any, exc: Exception, response: Any) -> Any:
        outcomes = request.scope.get(DECISIONS)
        raw = getattr(response, "raw_headers", None)
        if outcomes and isinstance(raw, list):
            binding(outcomes).put(raw)
        return response

    @functools.wraps(handler)
    async def telling_async(request: Any, exc: Exception) -> Any:
        return tell(request, exc, await handler(request, exc))

    @functools.wraps(handler)
    def telling(request: Any, exc: Exception) -> Any:
        return tell(request, exc, handler(request, exc))

    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )
    chosen: Any = telling_async if is_async else telling
    setattr(chosen, TELLS, handler)
    return chosen
