"""Several guards before one route: their limits are one plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from tidegate._charge import Charge
from tidegate._guard import Guard, Judgement, Verdict, finished
from tidegate._limit import check_names
from tidegate._observe import observers
from tidegate._plan import Plan
from tidegate._terms import Terms

if TYPE_CHECKING:
    from tidegate._core import Decision

__all__ = ["Stack"]

# Combinations of limits that are remembered; a service has few, unless it chooses them anew
# for each request.
_MOST = 256


class Stack:
    """Judges requests by several guards: all of them let it pass, or none has charged it.

    Limits of one storage are one plan. Those of several are charged one storage after the
    other, and given back what they charged where a later one refuses. Raises
    ConfigurationError for limits of one name that are not equal. Thread-safe.
    """

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = tuple(guards)
        # What one of them sends, all do.
        self._headers = list(dict.fromkeys(each for guard in guards for each in guard.headers))
        check_names(each for guard in guards if guard.limiter for each in guard.limiter.limits)
        self._plans: dict[tuple[Terms, ...], tuple[Terms, list[_Part]]] = {}

    @overload
    def judge(self, request: Any, *, blocking: Literal[True]) -> Verdict | None: ...
    @overload
    def judge(self, request: Any, *, blocking: bool = False) -> Judgement: ...
    def judge(self, request: Any, *, blocking: bool = False) -> Judgement:
        """As Guard.judge()."""
        later: Any = self._judge(request, blocking)
        judgement: Judgement = finished(later) if blocking else later
        return judgement

    async def _judge(self, request: Any, blocking: bool) -> Verdict | None:
        charges: list[Charge] = []
        for guard in self.guards:
            charge = await guard.charge(request, blocking)
            if charge is None:
                continue
            if charge.key is None:
                return guard.refusal(request, charge)
            charges.append(charge)
        if not charges:
            return None
        terms, parts = self._parts_of(charges)
        now_ns = terms.limiter._now_ns()
        passed: list[Charge] = []
        binding: tuple[Decision, Guard] | None = None
        for part in parts:
            mine = [charges[number] for number in part.numbers]
            keys = [charge.key or "" for charge in mine]
            costs = [charge.cost for charge in mine]
            began = time.perf_counter() if observers.times else None
            if blocking:
                decision = part.plan.hit(keys, costs)
            else:
                decision = await part.plan.hit_async(keys, costs)
            bound = mine[part.plan.binding(decision)]
            guard = bound.guard
            if began is not None:
                observers.tell_time(guard, bound.terms.limiter, time.perf_counter() - began)
            if not decision.allowed:
                if observers.refusals:
                    observers.tell(request, bound, decision)
                for charge in passed:
                    await charge.undo(blocking)
                return Verdict(guard, terms, decision, now_ns, ())
            for charge in mine:
                if charge.guard.cost_after is not None:
                    await charge.remember(now_ns, decision, blocking, is_alone=False)
            passed += mine
            if binding is None or decision.remaining < binding[0].remaining:
                binding = decision, guard
        assert binding is not None
        return Verdict(binding[1], terms, binding[0], now_ns, tuple(passed))

    def _parts_of(self, charges: list[Charge]) -> tuple[Terms, list[_Part]]:
        known = tuple(charge.terms for charge in charges)
        found = self._plans.get(known)
        if found is None:
            limiters = [terms.limiter for terms in known]
            together: dict[tuple[int, int], list[int]] = {}
            for number, limiter in enumerate(limiters):
                shared = (id(limiter.storage), id(limiter._clock))
                together.setdefault(shared, []).append(number)
            parts = [
                _Part(numbers, Plan([limiters[number] for number in numbers]))
                for numbers in together.values()
            ]
            if len(self._plans) >= _MOST:
                self._plans.clear()
            found = self._plans[known] = Terms(limiters, self._headers), parts
        return found


class _Part:
    """The limits of one storage, and which of the charges are theirs."""

    __slots__ = ("numbers", "plan")

    def __init__(self, numbers: list[int], plan: Plan) -> None:
        self.numbers = numbers
        self.plan = plan
