"""Keeps the decisions on one request whose header fields its response carries."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.web.request_limiter import RequestDecision

__all__ = ["DECISIONS", "GRANTED", "add_decision", "binding", "grant", "take_granted"]

# The key under which a scope of Starlette, a WSGI environ and META of Django hold the decisions
# whose headers are still to be sent, oldest first.
DECISIONS = "tidegate.decisions"
# The key under which a scope, a WSGI environ and META of Django hold the decisions that let a
# request pass before its route. A route's limit that refuses the request gives their charges back.
GRANTED = "tidegate.granted"


def grant(state: MutableMapping[str, Any], *decisions: RequestDecision) -> None:
    """Leaves decisions in the scope or environ of a request that they let pass."""
    before = state.get(GRANTED)
    state[GRANTED] = decisions if before is None else (*before, *decisions)


def take_granted(scope: MutableMapping[str, Any]) -> tuple[RequestDecision, ...]:
    """Removes the decisions that let a request pass from its scope of Starlette; returns them."""
    return (*scope.pop(GRANTED, ()), *scope.pop(DECISIONS, ()))


def add_decision(
    scope: MutableMapping[str, Any], outcome: RequestDecision
) -> tuple[RequestDecision, ...]:
    """Records in the scope of Starlette that `outcome` let the request pass; returns all such
    outcomes of the request."""
    before = scope.get(DECISIONS)
    outcomes: tuple[RequestDecision, ...] = (*before, outcome) if before else (outcome,)
    scope[DECISIONS] = outcomes
    return outcomes


def binding(decisions: Sequence[RequestDecision]) -> RequestDecision:
    """Returns, of several decisions that let the request pass, the one with the least remaining."""
    if len(decisions) == 1:
        return decisions[0]
    return min(decisions, key=lambda one: one.decision.remaining)
