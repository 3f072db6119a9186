"""Settles the costs that dependencies of FastAPI charged, once the route has answered."""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from typing import Any

from tidegate.web.callables import is_async
from tidegate.web.decisions import DECISIONS, binding
from tidegate.web.execution import AWAITING, BLOCKING, Execution
from tidegate.web.frameworks.streams import settle_after_starlette
from tidegate.web.request_limiter import RequestDecision

__all__ = ["PENDING", "settle_by_result", "settle_by_result_in_thread", "settle_one"]

# The key under which a scope holds the outcomes that are not settled yet, each with the response
# to which FastAPI adds what the route returns.
PENDING = "tidegate.settling"


async def settle_by_result(request: Any, result: Any) -> None:
    """Settles all pending outcomes of the request by what its route returned."""
    for outcome, response in request.scope.pop(PENDING, ()):
        if not _is_deferred(request, outcome, response, result):
            await _settle(request, outcome, response, result, AWAITING)


def settle_by_result_in_thread(request: Any, result: Any) -> None:
    """Does what settle_by_result() does, in a thread of a route that is not async."""
    for outcome, response in request.scope.pop(PENDING, ()):
        if _is_deferred(request, outcome, response, result):
            continue
        if is_async(outcome.limiter.hooks.cost_after):
            from anyio import from_thread

            from_thread.run(_settle, request, outcome, response, result, AWAITING)
        else:
            BLOCKING.run(_settle(request, outcome, response, result, BLOCKING))


async def settle_one(request: Any, outcome: RequestDecision, answer: Any) -> None:
    """Settles `outcome` by `answer`, if it is still pending."""
    pending = request.scope.get(PENDING, ())
    for one in pending:
        if one[0] is outcome:
            pending.remove(one)
            await _settle(request, outcome, one[1], answer, AWAITING)
            return


def _is_deferred(request: Any, outcome: RequestDecision, response: Any, result: Any) -> bool:
    """Returns whether `result` is a stream, whose end settles the outcome."""
    settle = functools.partial(_settle, request, outcome, response, result)
    return settle_after_starlette(result, settle)


async def _settle(
    request: Any, outcome: RequestDecision, response: Any, answer: Any, execution: Execution
) -> None:
    scope: MutableMapping[str, Any] = request.scope
    known: tuple[RequestDecision, ...] = scope.get(DECISIONS, ())
    if not any(each is outcome for each in known):  # another limit refused: it was given back
        return
    settled = await outcome.settle(request, answer, execution)
    scope[DECISIONS] = outcomes = tuple(settled if each is outcome else each for each in known)
    binding(outcomes).put(response.raw_headers)
