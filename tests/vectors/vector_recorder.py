"""Plays calls to the naive oracle and writes down what it answers."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from typing import Any

from oracle import BUCKETS, TOLERANCE_NS, Algorithm, Decision, Limit, Oracle

MS = 10**6
SECOND = 10**9
HOUR = 3600 * SECOND
DAY = 24 * HOUR
YEAR = 365 * DAY
LATE = 1_700_000_000_123_456_789  # in 2023, and past what a double can carry


class Case:
    """One limit or plan, and calls to it in order."""

    def __init__(self, name: str, *limits: Limit) -> None:
        self.name = name
        self.limits = limits
        self.calls: list[dict[str, Any]] = []
        self._oracle = Oracle(limits)

    def hit(self, now: int, cost: int = 1, key: int = 0) -> Decision:
        decision = self._oracle.hit(key, now, cost)
        self._note("hit", key, now, cost, decision)
        return decision

    def peek(self, now: int, cost: int = 1, key: int = 0) -> Decision:
        decision = self._oracle.peek(key, now, cost)
        self._note("peek", key, now, cost, decision)
        return decision

    def charge(self, now: int, cost: int, key: int = 0) -> Decision:
        decision = self._oracle.charge(key, now, cost)
        self._note("charge", key, now, cost, decision)
        return decision

    def refund(self, now: int, cost: int = 1, key: int = 0) -> None:
        self._oracle.refund(key, now, cost)
        self._note("refund", key, now, cost)

    def reset(self, now: int, key: int = 0) -> None:
        self._oracle.reset(key)
        self._note("reset", key, now, 1)

    def edge(self, now: int, cost: int = 1, key: int = 0) -> int:
        """A call; where it is refused, 1 ns before it would pass too, and when it does."""
        decision = self.hit(now, cost, key)
        if decision.allowed or decision.retry_after_ns is None:
            return now
        now += decision.retry_after_ns
        if decision.retry_after_ns > 1:
            self.hit(now - 1, cost, key)
        self.hit(now, cost, key)
        return now

    def text(self) -> str:
        """As JSON, on one line."""
        limits = [_limit(limit) for limit in self.limits]
        whole = {"name": self.name, "limits": limits, "calls": self.calls}
        return json.dumps(whole, separators=(",", ":"))

    def _note(
        self, op: str, key: int, now: int, cost: int, decision: Decision | None = None
    ) -> None:
        call: dict[str, Any] = {"op": op, "key": key, "now_ns": now, "cost": cost}
        if decision is not None:
            of_debts = {"debt": decision.debt, "charged": decision.charged}
            call["expect"] = {
                name: value
                for name, value in asdict(decision).items()
                if name not in of_debts or value is not None
            }
        self.calls.append(call)


def _limit(limit: Limit) -> dict[str, Any]:
    of_debts = ("max_debt", "oversize")
    return {
        name: value
        for name, value in asdict(limit).items()
        if name not in of_debts or value is not None
    }


def mixed(name: str, *limits: Limit, keys: int = 1, steps: bool = False) -> Case:
    """Random calls at the instants that matter; `steps` lets the clock go both ways."""
    rng = random.Random(name)
    case = Case(name, *limits)
    now = rng.choice([0, 12_345_678_901, LATE]) + rng.randrange(10**10)
    wait = 0
    for _ in range(24):
        limit = rng.choice(limits)
        period = limit.period_ns
        unit = period // limit.count
        short = [0, 0, 0, 1, unit, unit + 1, max(0, wait - 1), wait, wait, rng.randrange(period)]
        long = [period - 1, period, 2 * period, 10 * period]
        now += rng.choice(short if rng.random() < 0.85 else long)
        if steps and rng.random() < 0.25:
            back = [1, TOLERANCE_NS - 1, TOLERANCE_NS, TOLERANCE_NS + 1, period, 5 * period, HOUR]
            now = max(0, now - rng.choice(back))
        elif steps and rng.random() < 0.05:
            now += rng.choice([10 * period, DAY, YEAR])
        key = rng.randrange(keys)
        cost = rng.choice([1, 1, 1, 2, rng.randint(1, limit.capacity), limit.capacity])
        lot = rng.random()
        if lot < 0.72:
            wait = case.hit(now, cost, key).retry_after_ns or 0
        elif lot < 0.84:
            wait = case.peek(now, cost, key).retry_after_ns or 0
        elif lot < 0.97:
            case.refund(now, min(cost, *(limit.capacity for limit in limits), 3), key)
        else:
            case.reset(now, key)
    return case


def some_limit(rng: random.Random, algorithm: Algorithm) -> Limit:
    count = rng.choice([1, 2, 3, 7, 10, rng.randint(1, 50)])
    period = rng.choice([1000, MS, SECOND, SECOND + 7, 60 * SECOND, HOUR, rng.randint(1, DAY)])
    burst = rng.choice([None, None, 1, rng.randint(1, 60)]) if algorithm in BUCKETS else None
    return Limit(count, period, burst, algorithm)
