"""Settles the costs that dependencies of FastAPI charged, and gives their places back, once the
route has answered."""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from typing import Any

from starlette.background import BackgroundTasks

from tidegate.web.callables import is_async, is_generator
from tidegate.web.decisions import DECISIONS
from tidegate.web.execution import AWAITING, BLOCKING, Execution
from tidegate.web.frameworks.starlette_exceptions import add_fields
from tidegate.web.frameworks.streams import settle_after_starlette
from tidegate.web.request_limiter import RequestDecision

__all__ = ["PENDING", "leave_after", "settle_by_results_of", "settle_one"]

# The key under which a scope holds the outcomes that are not settled yet.
PENDING = "tidegate.settling"
# This parameter passes the request to a function that does not ask for it.
_REQUEST = "tidegate_request"
# A wrapped function has this attribute.
_SETTLES = "__tidegate_settles_results__"


class _Leaving(BackgroundTasks):
    """Gives the places of a request back when its response has been sent, and then runs the
    background tasks of the response."""

    def __init__(self, held: list[RequestDecision], background: Any) -> None:
        super().__init__()
        self._held = held
        if isinstance(background, BackgroundTasks):
            self.tasks = background.tasks  # the service may add others to them
        elif background is not None:
            self.tasks.append(background)

    async def __call__(self) -> None:
        for outcome in self._held:
            await AWAITING.to_the_end(outcome.leave(AWAITING))
        await super().__call__()


def leave_after(response: Any, held: list[RequestDecision]) -> None:
    """Gives the places of `held` back once `response` has been sent, before its background
    tasks run; a response that fails leaves that to the dependency."""
    if hasattr(response, "background"):
        response.background = _Leaving(held, response.background)


def settle_by_results_of(route: Any) -> None:
    """Settles pending outcomes of requests of `route` by what its function returns, and adds the
    fields to a response, for a route whose handler does not.

    FastAPI passes the result to nobody else, so the function that it calls for each request is
    wrapped.
    """
    dependant: Any = getattr(route, "dependant", None)
    call = getattr(dependant, "call", None)
    if call is None or hasattr(call, _SETTLES) or is_generator(call):
        return

    own: str | None = dependant.request_param_name

    @functools.wraps(call)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        request = kwargs.pop(_REQUEST, None) if own is None else kwargs.get(own)
        result = await call(*args, **kwargs)
        if request is not None:
            await _settle_by_result(request, result)
            add_fields(request, result)
        return result

    @functools.wraps(call)
    def call_in_thread(*args: Any, **kwargs: Any) -> Any:
        request = kwargs.pop(_REQUEST, None) if own is None else kwargs.get(own)
        result = call(*args, **kwargs)
        if request is not None:
            _settle_by_result_in_thread(request, result)
            add_fields(request, result)
        return result

    chosen: Any = call_async if is_async(call) else call_in_thread
    setattr(chosen, _SETTLES, True)
    dependant.call = chosen
    # FastAPI reads it after the dependencies have run, so already for this request. A context
    # variable would not work: a task may inherit that of another request.
    dependant.request_param_name = own or _REQUEST


async def _settle_by_result(request: Any, result: Any) -> None:
    """Settles all pending outcomes of the request by what its route returned."""
    for outcome in request.scope.pop(PENDING, ()):
        if not _is_deferred(request, outcome, result):
            await _settle(request, outcome, result, AWAITING)


def _settle_by_result_in_thread(request: Any, result: Any) -> None:
    """Does what _settle_by_result() does, in a thread of a route that is not async."""
    for outcome in request.scope.pop(PENDING, ()):
        if _is_deferred(request, outcome, result):
            continue
        if is_async(outcome.limiter.hooks.cost_after):
            from anyio import from_thread

            from_thread.run(_settle, request, outcome, result, AWAITING)
        else:
            BLOCKING.run(_settle(request, outcome, result, BLOCKING))


async def settle_one(request: Any, outcome: RequestDecision, answer: Any) -> None:
    """Settles `outcome` by `answer`, if it is still pending."""
    pending = request.scope.get(PENDING, ())
    if any(each is outcome for each in pending):
        pending[:] = [each for each in pending if each is not outcome]
        await _settle(request, outcome, answer, AWAITING)


def _is_deferred(request: Any, outcome: RequestDecision, result: Any) -> bool:
    """Returns whether `result` is a stream, whose end settles the outcome."""
    return settle_after_starlette(result, functools.partial(_settle, request, outcome, result))


async def _settle(
    request: Any, outcome: RequestDecision, answer: Any, execution: Execution
) -> None:
    scope: MutableMapping[str, Any] = request.scope
    known: tuple[RequestDecision, ...] = scope.get(DECISIONS, ())
    if not any(each is outcome for each in known):  # another limit refused: it was given back
        return
    settled = await outcome.settle(request, answer, execution)
    scope[DECISIONS] = tuple(settled if each is outcome else each for each in known)
