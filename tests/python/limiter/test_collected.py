"""Objects whose methods the core calls are freed with their limiter, and nothing is freed early."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any, Callable

import pytest
import tidegate

RULES = {"rules": [{"id": "all", "by": "user", "limit": "100/minute"}]}


class Service:
    """Refers to a limiter that refers back to it."""

    made: Any

    def now(self) -> int:
        return time.time_ns()


class Slotted:
    """A clock to which no weak reference can be made."""

    __slots__ = ("owner",)

    def __init__(self, owner: Service) -> None:
        self.owner = owner

    def __call__(self) -> int:
        return time.time_ns()


class WithNowNs:
    def __init__(self, owner: Service) -> None:
        self.owner = owner

    def now_ns(self) -> int:
        return time.time_ns()


class OwnClock(tidegate.ManualClock):
    """A clock of a class of its own that refers to its user."""

    owner: Service

    def now_ns(self) -> int:
        return super().now_ns()


def own_clock(service: Service) -> OwnClock:
    clock = OwnClock()
    clock.owner = service
    return clock


def with_rules(service: Service) -> tidegate.RuleLimiter:
    rules = tidegate.RuleSet(RULES)
    return tidegate.Limiter(rules=rules, clock=service.now)


CYCLES: dict[str, Callable[[Service], Any]] = {
    "a bound method": lambda service: tidegate.Limiter("5/minute", clock=service.now),
    "a lambda": lambda service: tidegate.Limiter("5/minute", clock=lambda: service.now()),
    "an object with slots": lambda service: tidegate.Limiter("5/minute", clock=Slotted(service)),
    "an object with now_ns": lambda service: tidegate.Limiter("5/minute", clock=WithNowNs(service)),
    "a subclass of ManualClock": lambda service: tidegate.Limiter(
        "5/minute", clock=own_clock(service)
    ),
    "a limiter with rules": with_rules,
    "a plan": lambda service: tidegate.Plan([tidegate.Limiter("5/minute", clock=service.now)]),
}


def use(made: Any) -> None:
    if isinstance(made, tidegate.Plan):
        assert made.hit(["k"])
    elif isinstance(made, tidegate.Limiter):
        assert made.hit("k")
    else:
        assert made.check(user="k")


@pytest.mark.parametrize("cycle", CYCLES.values(), ids=list(CYCLES))
def test_a_cycle_through_the_core_is_freed(cycle: Callable[[Service], Any]) -> None:
    service = Service()
    service.made = cycle(service)
    use(service.made)
    gc.collect()
    use(service.made)  # what is in use stays
    dead = weakref.ref(service)
    del service
    gc.collect()
    assert dead() is None


@pytest.mark.parametrize("cycle", CYCLES.values(), ids=list(CYCLES))
def test_a_clock_lives_as_long_as_its_limiter(cycle: Callable[[Service], Any]) -> None:
    made = cycle(Service())
    gc.collect()
    use(made)


def test_a_decision_keeps_the_clock_of_its_limiter() -> None:
    limiter = tidegate.Limiter("5/minute", clock=Service().now)
    decision = limiter.hit("k")
    del limiter
    gc.collect()
    assert decision.retry_after == 0.0


def test_a_limiter_that_the_collector_has_cleared_raises() -> None:
    """A finalizer may call a limiter that is freed together with its object."""
    seen: list[object] = []

    class Last:
        limiter: Any

        def now(self) -> int:
            return time.time_ns()

        def __del__(self) -> None:
            try:
                seen.append(self.limiter.hit("k").allowed)
            except tidegate.TidegateError as error:
                seen.append(error)

    last = Last()
    last.limiter = tidegate.Limiter("5/minute", clock=last.now)
    del last
    gc.collect()
    assert len(seen) == 1


def test_an_object_without_init_is_collected() -> None:
    made = tidegate.Limiter.__new__(tidegate.Limiter)
    made.itself = made
    dead = weakref.ref(made)
    del made
    gc.collect()
    assert dead() is None
