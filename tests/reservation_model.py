"""Calls on reservations in every order, and what they must have charged."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Callable

import pytest
import tidegate as tg

COUNT = 1000
PERIOD = 365 * 86_400.0  # no whole unit comes back during a test
TTL = 60.0
LIMITS = [
    tg.Limit(COUNT, PERIOD),
    tg.Limit(COUNT, PERIOD, algorithm="leaky-bucket"),
    tg.Limit(COUNT, PERIOD, id="kept"),
    tg.Limit(COUNT, PERIOD, algorithm="fixed-window"),
    tg.Limit(COUNT, PERIOD, algorithm="sliding-window"),
    tg.Limit(COUNT, PERIOD, algorithm="sliding-log"),
]


@dataclass
class Known:
    """A reservation, and what the model knows of it."""

    reservation: tg.Reservation
    units: int
    made_at: float
    settled: int | None = None
    settled_at: float = 0.0

    def charged(self) -> int:
        return self.units if self.settled is None else self.settled


class Interleavings:
    """One key, and calls on its reservations in the order of `seed`.

    `limiters` share the counts, as processes do; `advance` moves their time. `lose` makes the next
    call on the storage lose its reply, or is None.
    """

    def __init__(
        self,
        limiters: list[tg.Limiter],
        advance: Callable[[float], None],
        seed: int,
    ) -> None:
        self.limiters = limiters
        self.advance_clock = advance
        self.random = random.Random(seed)
        self.now = 0.0
        self.key = f"k{seed}"
        self.known: list[Known] = []
        self.others = 0
        self.is_sliding = limiters[0].limits[0].algorithm == "sliding-window"
        self.can_extend = all(limit.algorithm != "sliding-log" for limit in limiters[0].limits)

    def run(self, calls: int) -> None:
        steps = [self.reserve, self.commit, self.commit, self.release, self.hit, self.wait]
        steps += [self.commit_elsewhere, self.commit_elsewhere, self.extend]
        for _ in range(calls):
            self.random.choice(steps)()
            self.check()

    def check(self) -> None:
        used = self.others + sum(each.charged() for each in self.known)
        found = self.limiters[0].peek(self.key)
        assert found.remaining == max(0, COUNT - used), self.known
        assert found.debt == max(0, used - COUNT), self.known

    def any_limiter(self) -> tg.Limiter:
        return self.random.choice(self.limiters)

    def used(self) -> int:
        return self.others + sum(each.charged() for each in self.known)

    def hit(self) -> None:
        cost = self.random.randint(1, 40)
        decision = self.any_limiter().hit(self.key, cost)
        assert decision.allowed == (self.used() + cost <= COUNT)
        self.others += cost if decision else 0

    def reserve(self) -> None:
        units = self.random.randint(1, 200)
        reservation = self.any_limiter().reserve(self.key, units, ttl=TTL, on_exit="keep")
        assert bool(reservation) == (self.used() + units <= COUNT)
        if reservation:
            self.known.append(Known(reservation, units, self.now))
        else:
            with pytest.raises(tg.ReservationError, match="was refused"):
                reservation.commit(units)

    def wait(self) -> None:
        seconds = self.random.choice([1.0, 20.0, 61.0])
        self.advance_clock(seconds)
        self.now += seconds

    def commit(self) -> None:
        if self.known:
            each = self.random.choice(self.known)
            self.settle(each, self.random.choice([0, 1, each.units, 3 * each.units]), None)

    def release(self) -> None:
        if self.known:
            self.settle(self.random.choice(self.known), 0, None)

    def commit_elsewhere(self) -> None:
        """By its token, in another process."""
        if self.known:
            each = self.random.choice(self.known)
            actual = self.random.choice([each.units // 2, each.units + 7])
            self.settle(each, actual, self.any_limiter())

    def settle(self, each: Known, actual: int, other: tg.Limiter | None) -> None:
        owes = self.used() - each.charged() + actual > COUNT
        if self.is_sliding and each.settled is None and owes:
            return  # a sliding window that owes no longer knows the window before
        token = each.reservation.token
        ends = each.made_at + TTL
        if each.settled is not None:
            ends = min(ends, each.settled_at + 60)
        is_known = self.now < ends

        def call() -> tg.Decision:
            return each.reservation.commit(actual) if other is None else other.commit(token, actual)

        if not is_known:
            with pytest.raises(tg.ReservationError, match="not known") as error:
                call()
            assert not error.value.settled
        elif each.settled is not None and each.settled != actual:
            with pytest.raises(tg.ReservationError, match=f"at {each.settled} units") as error:
                call()
            assert error.value.settled
        else:
            assert call().charged == actual
            if each.settled is None:
                each.settled, each.settled_at = actual, self.now

    def extend(self) -> None:
        if not self.known or not self.can_extend:
            return
        each = self.random.choice(self.known)
        more = self.random.randint(1, 50)
        fits = self.used() + more <= COUNT
        is_open = each.settled is None and self.now < each.made_at + TTL
        if not is_open:
            with pytest.raises(tg.ReservationError, match="was not raised"):
                each.reservation.extend(more)
            return
        assert bool(each.reservation.extend(more)) == fits
        if fits:
            each.units += more
