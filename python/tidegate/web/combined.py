"""Charges several request limiters before one route together: all of them or none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, overload

from tidegate.limiter.limit import check_names
from tidegate.limiter.plan import Plan
from tidegate.web.active_limits import ActiveLimits
from tidegate.web.execution import AWAITING, Awaiting, Blocking, Execution
from tidegate.web.observers import observers
from tidegate.web.request_limiter import (
    NOT_READY,
    Checked,
    Checks,
    RequestDecision,
    RequestLimiter,
)

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.web.charge import Charge

__all__ = ["CombinedLimiter", "combined"]

# The most combinations of limits that are kept. A service has few, unless it creates limits for
# each request.
_MOST_KNOWN = 256


class CombinedLimiter:
    """Decides on requests by several limiters: all of them pass, or none is charged.

    Limits of one storage are one plan. Several storages are charged one after the other, and
    refunded if a later one refuses. Raises ConfigurationError for limits of one name that are not
    equal. Thread-safe.
    """

    def __init__(self, limiters: Sequence[RequestLimiter]) -> None:
        self.limiters = tuple(limiters)
        check_names(each for one in limiters if one.limiter for each in one.limiter.limits)
        self._plans: dict[tuple[ActiveLimits, ...], tuple[ActiveLimits, list[_StoreGroup]]] = {}

    @overload
    def check(self, request: Any, execution: Blocking) -> RequestDecision | None: ...
    @overload
    def check(self, request: Any, execution: Awaiting = ...) -> Checked: ...
    def check(self, request: Any, execution: Execution = AWAITING) -> Checked:
        """Does what RequestLimiter.check() does."""
        checked: Any = execution.run(self._check(request, execution))
        result: Checked = checked
        return result

    @property
    def asks_functions(self) -> bool:
        """Does what RequestLimiter.asks_functions does."""
        return any(limiter.asks_functions for limiter in self.limiters)

    def check_when(self, request: Any, execution: Execution, is_ready: Callable[[], bool]) -> Any:
        """Does what RequestLimiter.check_when() does."""
        return execution.run(self._check(request, execution, is_ready))

    async def _check(
        self, request: Any, execution: Execution, is_ready: Callable[[], bool] | None = None
    ) -> RequestDecision | None:
        charges: list[tuple[RequestLimiter, Charge]] = []
        unknown: tuple[RequestLimiter, Charge] | None = None
        for limiter in self.limiters:
            charge = await limiter.charge(request, execution)
            if charge is None:
                continue
            if charge.key is None:
                unknown = limiter, charge
                break
            charges.append((limiter, charge))
        if is_ready is not None and not is_ready():
            undecided: RequestDecision | None = NOT_READY
            return undecided
        if unknown is not None:
            return unknown[0].refuse_without_key(request, unknown[1])
        if not charges:
            return None
        limits, groups = self._groups_of([charge.limits for _, charge in charges])
        now_ns = limits.limiter._now_ns()
        passed: list[Charge] = []
        binding: tuple[Decision, RequestLimiter] | None = None
        decisions: list[Decision] = []
        for group in groups:
            mine = [charges[number] for number in group.numbers]
            keys = [charge.key or "" for _, charge in mine]
            costs = [charge.cost for _, charge in mine]
            wait = max(limiter.wait for limiter, _ in mine)
            began = time.perf_counter() if observers.times and not wait else None
            if wait:
                turn = group.plan._turn(keys, costs, wait)
                decision = await execution.take(turn)
                now_ns = turn.charged_ns
            else:
                is_asked = limits.shows_all or any(
                    charge.hooks.cost_after is not None for _, charge in mine
                )
                decision = await execution.hit_plan(group.plan, keys, costs, is_asked)
            limiter, bound = mine[group.plan.binding(decision)]
            decisions += decision.outcomes or (decision,)
            if began is not None:
                took = time.perf_counter() - began
                observers.notify_time(bound.limits.limiter, took, limiter.hooks)
            if not decision.allowed:
                bound.notify_refusal(request, decision)
                for charge in passed:
                    await charge.undo(execution)
                if limits.shows_all:
                    decision = decision._among(decisions)
                return limiter.decide(limits, decision, now_ns, ())
            first = 0
            for _, charge in mine:
                charge.admitted = decision._from_limit(first)
                charge.reserve(decision, first)
                first += len(charge.limits.limiter.limits)
                passed.append(charge)
            if binding is None or decision.remaining < binding[0].remaining:
                binding = decision, limiter
        assert binding is not None
        decision = binding[0]._among(decisions) if limits.shows_all else binding[0]
        return binding[1].decide(limits, decision, now_ns, tuple(passed))

    def _groups_of(self, limits: Sequence[ActiveLimits]) -> tuple[ActiveLimits, list[_StoreGroup]]:
        known = tuple(limits)
        found = self._plans.get(known)
        if found is None:
            limiters = [each.limiter for each in known]
            together: dict[tuple[int, int], list[int]] = {}
            for number, limiter in enumerate(limiters):
                shared = (id(limiter.storage), id(limiter._clock))
                together.setdefault(shared, []).append(number)
            groups = [
                _StoreGroup(numbers, Plan([limiters[number] for number in numbers]))
                for numbers in together.values()
            ]
            if len(self._plans) >= _MOST_KNOWN:
                self._plans.clear()
            # If one limiter sends a family of fields, it is sent for all.
            headers = list(dict.fromkeys(each for one in self.limiters for each in one.headers))
            found = self._plans[known] = ActiveLimits(limiters, headers), groups
        return found


class _StoreGroup:
    """The limits of one storage, and the indexes of their charges."""

    __slots__ = ("numbers", "plan")

    def __init__(self, numbers: list[int], plan: Plan) -> None:
        self.numbers = numbers
        self.plan = plan


def combined(limiters: Sequence[RequestLimiter]) -> Checks:
    """Returns an object that checks requests by all of `limiters`, one or more."""
    return limiters[0] if len(limiters) == 1 else CombinedLimiter(limiters)
