"""A model of Limiter.charge() in exact fractions, and calls that compare stores with it."""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil, floor

import tidegate as tg
from charge_model import COUNTED

START = 1_700_000_000 * 10**9
LIMITS = [
    tg.Limit("7/second"),
    tg.Limit("10/second burst 40"),
    tg.Limit(9007199254740991, 360000.0, burst=1000),
    tg.Limit("100000/minute"),
    tg.Limit("7/3 seconds", algorithm="leaky-bucket", max_debt=3),
    tg.Limit("30/minute", id="kept"),
    tg.Limit("11/7 seconds", algorithm="fixed-window"),
    tg.Limit("5/7 seconds", algorithm="fixed-window", max_debt=float("inf")),
    tg.Limit("13/7 seconds", algorithm="sliding-window"),
    tg.Limit("5/1000 us", algorithm="sliding-window", max_debt=10**6),
    tg.Limit("9/7 seconds", algorithm="sliding-log"),
    tg.Limit("4/second", algorithm="sliding-log", max_debt=300),
]

# Costs beyond the capacity pass when nothing of the key is used, and owe the rest.
OVERSIZE = [
    tg.Limit("7/second", oversize="debt"),
    tg.Limit("10/second burst 40", oversize="debt", max_debt=25),
    tg.Limit(9007199254740991, 360000.0, burst=1000, oversize="debt"),
    tg.Limit("7/3 seconds", algorithm="leaky-bucket", oversize="debt"),
    tg.Limit("30/minute", id="large", oversize="debt"),
    tg.Limit("11/7 seconds", algorithm="fixed-window", oversize="debt"),
    tg.Limit("13/7 seconds", algorithm="sliding-window", oversize="debt"),
    tg.Limit("9/7 seconds", algorithm="sliding-log", oversize="debt"),
]


class Model:
    """One key of one limit. Times are nanoseconds."""

    def __init__(self, limit: tg.Limit) -> None:
        self.limit = limit
        self.count, self.period = limit.count, limit.period_ns

    def room(self, now: int) -> Fraction:
        """The units that fit; negative if some are owed."""
        raise NotImplementedError

    def add(self, now: int, units: int) -> None:
        raise NotImplementedError

    def is_unused(self, now: int) -> bool:
        return self.room(now) == self.limit.capacity

    def hit(self, now: int, cost: int) -> bool:
        if cost > self.limit.capacity and self.limit.oversize == "debt":
            most = self.limit.capacity + self.limit.max_debt
            if cost > most or not self.is_unused(now):
                return False
        elif cost > self.room(now):
            return False
        self.add(now, cost)
        return True

    def charge(self, now: int, cost: int) -> int:
        units = max(0, min(cost, floor(self.room(now) + self.limit.max_debt)))
        self.add(now, units)
        return units


class Bucket(Model):
    full_at = Fraction(0)

    def room(self, now: int) -> Fraction:
        used = max(Fraction(0), self.full_at - now)
        return self.limit.burst - used * self.count / self.period

    def add(self, now: int, units: int) -> None:
        self.full_at = max(self.full_at, Fraction(now)) + Fraction(units * self.period, self.count)


class Fixed(Model):
    window = used = 0

    def room(self, now: int) -> Fraction:
        passed = now // self.period - self.window
        self.window += passed
        self.used = max(0, self.used - passed * self.count)
        return Fraction(self.count - self.used)

    def add(self, now: int, units: int) -> None:
        self.room(now)
        self.used += units


class Sliding(Model):
    window = current = previous = 0

    def room(self, now: int) -> Fraction:
        passed = now // self.period - self.window
        self.window += passed
        if passed:
            before = self.current - (passed - 1) * self.count
            self.previous = max(0, min(self.count, before))
            self.current = max(0, self.current - passed * self.count)
        left = self.period - now % self.period
        if self.current > self.count:
            return Fraction(self.count - self.current)
        weight = ceil(Fraction(self.previous * left, self.period))
        return Fraction(self.count - self.current - weight)

    def is_unused(self, now: int) -> bool:
        self.room(now)
        return self.current == 0 and self.previous == 0

    def add(self, now: int, units: int) -> None:
        self.room(now)
        self.current += units


class Log(Model):
    """A unit that is owed is admitted at the instant at which it would have passed."""

    def __init__(self, limit: tg.Limit) -> None:
        super().__init__(limit)
        self.admitted: list[int] = []

    def room(self, now: int) -> Fraction:
        self.admitted = [at for at in self.admitted if at + self.period > now]
        return Fraction(self.count - len(self.admitted))

    def add(self, now: int, units: int) -> None:
        self.room(now)
        for _ in range(units):
            earliest = now
            if len(self.admitted) >= self.count:
                earliest = self.admitted[-self.count] + self.period
            self.admitted.append(max(now, earliest))


def model_of(limit: tg.Limit) -> Model:
    kinds = {"fixed-window": Fixed, "sliding-window": Sliding, "sliding-log": Log}
    return kinds.get(limit.algorithm, Bucket)(limit)


def check_against_the_model(limit: tg.Limit, storage: object, seed: int, calls: int = 60) -> None:
    """Random calls of one key get the answers of the model, and waits are exact."""
    rng = random.Random(seed)
    clock = tg.ManualClock(START + rng.randrange(10**12))
    limiter = tg.Limiter(
        limit,
        storage=storage,  # type: ignore[arg-type]
        clock=clock,
        prefix=f"debt-{seed}-{limit}",
    )
    model = model_of(limit)
    most = limit.capacity
    for number in range(calls):
        clock.advance_ns(
            rng.choice([0, 1, rng.randrange(limit.period_ns), rng.randrange(3 * limit.period_ns)])
        )
        told = f"call {number} of seed {seed}: {limit}"
        now = clock.now_ns()
        if rng.random() < 0.5:
            large = rng.randint(1, 13 * most) if limit.oversize == "debt" else most + 1
            cost = rng.choice([1, 2, rng.randint(1, most + 1), large])
            decision = limiter.hit("k", cost)
            assert decision.allowed == model.hit(now, cost), told
            if not decision and decision.retry_after != float("inf"):
                wait = _wait_ns(limiter, cost)
                clock.advance_ns(wait - 1)
                assert not limiter.peek("k", cost), told
                clock.advance_ns(1)
                assert limiter.peek("k", cost), f"{told}, after {wait} ns"
                now = clock.now_ns()
        else:
            cost = rng.choice([1, 2, rng.randint(1, 3 * most), rng.randint(1, 40 * most)])
            decision = limiter.charge("k", cost)
            assert (decision.allowed, decision.charged, decision.degraded) == (
                True,
                model.charge(now, cost),
                False,
            ), told
            assert decision.remaining == max(0, floor(model.room(now))), told
            assert decision.debt == max(0, ceil(-model.room(now))), told
        stands = limiter.peek("k")
        assert stands.remaining == max(0, floor(model.room(now))), told
        assert stands.debt == max(0, ceil(-model.room(now))), told


CLOCK_STEPS = [
    tg.Limit("7/second"),
    tg.Limit("10/second burst 40"),
    tg.Limit("3/7 minutes", algorithm="leaky-bucket"),
    tg.Limit("30/minute", id="stepped"),
    *COUNTED,
]


def check_a_clock_that_steps_back(limit: tg.Limit, storage: object, owed: float) -> None:
    """A key that owes `owed` times its capacity when the clock goes back by a year owes about that
    afterwards: the step is neither a debt nor does it forgive one."""
    day = 86_400 * 10**9
    clock = tg.ManualClock(START + 400 * day)
    limiter = tg.Limiter(
        limit,
        storage=storage,  # type: ignore[arg-type]
        clock=clock,
        prefix=f"step-{owed}-{limit}",
    )
    debt = int(owed * limit.capacity)
    if debt:
        assert limiter.charge("k", limit.capacity + debt).debt == debt
    else:
        assert limiter.hit("k", limit.capacity)
    period = limiter.limits[0].period_ns
    clock.set_ns(START)
    assert not limiter.hit("k")
    stands = limiter.peek("k")
    # The code of a debt rounds up by an eighth at most, a bucket with an id to whole periods.
    most = debt * 1.125 + (limit.capacity if debt else 0)
    assert debt - limit.capacity <= stands.debt <= most, (stands, stands.debt)
    # A key is locked out for what it owes, and for two periods at most beside that.
    clock.advance_ns(int(period * (most / limit.count + 2)) + 1)
    assert limiter.hit("k"), limiter.peek("k")


def _wait_ns(limiter: tg.Limiter, cost: int) -> int:
    """The exact wait, which a float of seconds may round."""
    return round(limiter.peek("k", cost).retry_after * 10**9)
