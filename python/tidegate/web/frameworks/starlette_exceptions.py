"""Adds the fields to the responses of exception handlers of Starlette and FastAPI."""

from __future__ import annotations

import functools
import inspect
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from tidegate.web.decisions import DECISIONS, binding

if TYPE_CHECKING:
    from tidegate.web.request_limiter import RequestDecision

__all__ = ["ADDS_FIELDS", "OUTCOME", "add_fields", "watch_handlers", "with_fields"]

# Handlers that add the fields have this attribute; its value is the wrapped function, if any.
ADDS_FIELDS = "__tidegate_adds_fields__"
# The exception of a refusal has this attribute.
OUTCOME = "_tidegate_outcome"


class _Wrapped(Exception):
    """Never raised. Its presence among an application's handlers shows that they add the fields."""


def with_fields(scope: MutableMapping[str, Any], exc: Any, outcome: RequestDecision) -> Exception:
    """Returns an exception to raise for a request in place of `exc`: its answer gets the fields.
    The result is a copy of an HTTPException, since some services raise one object for every
    request; one that cannot be copied gets them only from the application's handlers."""
    from starlette.exceptions import HTTPException

    watch_handlers(scope)
    result: Exception = exc
    if not isinstance(exc, HTTPException):
        return result
    try:
        copy: Any = BaseException.__new__(type(exc), *exc.args)
        copy.__dict__.update(exc.__dict__)
        for kind in type(exc).__mro__:
            names = vars(kind).get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if not name.startswith("__"):
                    setattr(copy, name, getattr(exc, name))
        fields = {name.decode(): value.decode() for name, value in outcome.fields()}
        kept = {
            name: value for name, value in (exc.headers or {}).items() if name.lower() not in fields
        }
        copy.headers = {**kept, **fields}
        copy.__cause__ = exc.__cause__
        result = copy.with_traceback(exc.__traceback__)
        exc.__traceback__ = None  # of an exception that is raised again and again, it would grow
    except (AttributeError, TypeError, ValueError):
        pass
    return result


def watch_handlers(scope: MutableMapping[str, Any]) -> None:
    """Has handlers of the application add the fields of a request, or of the refusal that they
    answer."""
    handlers = scope.get("starlette.exception_handlers")
    if handlers is not None and _Wrapped not in handlers[0]:
        _wrap_handlers(scope, handlers)


def add_fields(request: Any, response: Any, exc: Exception | None = None) -> None:
    """Adds the fields of the binding outcome of `request` to a response of Starlette, or those of
    the refusal that `exc` is."""
    # Other objects may have the attribute too, but only a response has a list there.
    raw = getattr(response, "raw_headers", None)
    if request is None or not isinstance(raw, list):
        return
    refusal = getattr(exc, OUTCOME, None)
    outcomes = request.scope.get(DECISIONS) if refusal is None else (refusal,)
    if outcomes:
        binding(outcomes).put(raw)


def _wrap_handlers(scope: MutableMapping[str, Any], kinds: Any) -> None:
    """Wraps an application's exception handlers, so that their responses get the fields.

    `kinds` are the handlers by exception and by status. The handler of last resort belongs to the
    outermost middleware and is not among them.
    """
    for handlers in kinds:
        for kind, handler in list(handlers.items()):
            handlers[kind] = _adding_fields(handler)
    kinds[0][_Wrapped] = None
    outermost: Any = getattr(scope.get("app"), "middleware_stack", None)
    last = getattr(outermost, "handler", None)
    if last is not None:
        outermost.handler = _adding_fields(last)


def _adding_fields(handler: Any) -> Any:
    if hasattr(handler, ADDS_FIELDS):
        return handler

    @functools.wraps(handler)
    async def handle_async(request: Any, exc: Exception) -> Any:
        response = await handler(request, exc)
        add_fields(request, response, exc)
        return response

    @functools.wraps(handler)
    def handle(request: Any, exc: Exception) -> Any:
        response = handler(request, exc)
        add_fields(request, response, exc)
        return response

    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )
    chosen: Any = handle_async if is_async else handle
    setattr(chosen, ADDS_FIELDS, handler)
    return chosen
