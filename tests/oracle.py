"""A deliberately naive rate limiter, against which every engine is held.

It shares no code with tidegate. Arithmetic is exact (`Fraction`), and the two
durations of a decision are not computed by formula but searched for, straight
from what they mean: `retry_after` is the least wait after which the same call
would pass, `reset_after` the least after which the limit is as if untouched.

    oracle = Oracle([Limit(10, 1_000_000_000), Limit(1000, 3600 * 10**9)])
    oracle.hit("user:42", now=0)

Instants and durations are whole nanoseconds; instants count from the epoch.
"""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Literal

# A state further ahead of `now` than this was written by a clock that has since gone back.
TOLERANCE_NS = 100_000_000

Algorithm = Literal[
    "token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log", "concurrency"
]
BUCKETS: tuple[Algorithm, ...] = ("token-bucket", "leaky-bucket")
ALGORITHMS: tuple[Algorithm, ...] = (
    *BUCKETS,
    "fixed-window",
    "sliding-window",
    "sliding-log",
    "concurrency",
)


@dataclass(frozen=True)
class Limit:
    count: int
    period_ns: int
    burst: int | None = None
    algorithm: Algorithm = "token-bucket"
    calendar: Literal["month", "year"] | None = None
    calendar_n: int = 1
    max_debt: int | None = None
    """The most that a key may owe; with it, the clock never goes back."""
    oversize: Literal["debt"] | None = None

    @property
    def capacity(self) -> int:
        """The most that can ever pass at once."""
        return self.count if self.burst is None else self.burst

    @property
    def interval(self) -> Fraction:
        """T: the exact time in which one unit comes back."""
        return Fraction(self.period_ns, self.count)

    def window(self, now: int) -> tuple[int, int]:
        """The aligned window that holds `now`: its first instant and its end."""
        if self.calendar is None:
            start = now // self.period_ns * self.period_ns
            return start, start + self.period_ns
        date = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=now // 10**9)
        months = self.calendar_n * (12 if self.calendar == "year" else 1)
        first = ((date.year - 1970) * 12 + date.month - 1) // months * months
        return _month_start(first), _month_start(first + months)


@dataclass(frozen=True)
class Decision:
    allowed: bool
    limit: int
    remaining: int
    retry_after_ns: int | None  # None: never
    reset_after_ns: int
    delay_ns: int
    rule_index: int  # which limit of the plan binds
    debt: int | None = None  # of the limit that binds; None where no limit of the plan has debts
    charged: int | None = None  # of a charge: the least that a limit has charged


class State(abc.ABC):
    """The state of one key under one limit."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit

    @abc.abstractmethod
    def left(self, now: int) -> int:
        """Whole units that a call at `now` could take; below 0 when overdrawn."""

    def untouched(self, now: int) -> bool:
        """Whether the limit stands at `now` as if it had never been used."""
        return self.left(now) == self.limit.capacity

    @abc.abstractmethod
    def take(self, now: int, cost: int) -> None: ...

    @abc.abstractmethod
    def give_back(self, now: int, cost: int) -> None: ...

    def owe(self, now: int, cost: int) -> int:
        """Takes all of `cost` that may be owed; returns how much."""
        units = max(0, min(cost, self.left(now) + (self.limit.max_debt or 0)))
        self.take(now, units)
        return units

    @abc.abstractmethod
    def recover(self, now: int) -> None:
        """If the clock went back, moves the state back to the most usage that is possible at
        `now`."""

    def delay(self, now: int) -> int:
        """How long a caller that is let through at `now` should wait."""
        del now  # only a leaky bucket makes callers wait
        return 0


class TokenBucket(State):
    """GCRA: `tat` is the instant at which the bucket is full again."""

    tat = Fraction(0)

    @property
    def depth(self) -> Fraction:
        return self.limit.capacity * self.limit.interval

    def left(self, now: int) -> int:
        used = max(Fraction(0), self.tat - now)
        return math.floor((self.depth - used) / self.limit.interval)

    def untouched(self, now: int) -> bool:
        return self.tat <= now

    def take(self, now: int, cost: int) -> None:
        self.tat = max(self.tat, Fraction(now)) + cost * self.limit.interval

    def give_back(self, now: int, cost: int) -> None:
        if self.tat > now:
            self.tat = max(Fraction(now), self.tat - cost * self.limit.interval)

    def recover(self, now: int) -> None:
        if self.limit.max_debt is None and self.tat - now > self.depth + TOLERANCE_NS:
            self.tat = now + self.depth


class LeakyBucket(TokenBucket):
    """The same, read as a queue: `tat` is when the last one in it has been served."""

    def delay(self, now: int) -> int:
        return math.ceil(max(Fraction(0), self.tat - now))


class FixedWindow(State):
    start = end = used = 0

    def left(self, now: int) -> int:
        return self.limit.count - self.used_at(now)[2]

    def used_at(self, now: int) -> tuple[int, int, int]:
        """The window's start and end, and the units used of it: each window pays what it can."""
        start, end, used = self.start, self.end, self.used
        while now >= end and used > 0:
            start, end = self.limit.window(end)
            used = max(0, used - self.limit.count)
        return (start, end, used) if now < end else (*self.limit.window(now), 0)

    def take(self, now: int, cost: int) -> None:
        self.start, self.end, self.used = self.used_at(now)
        self.used += cost

    def give_back(self, now: int, cost: int) -> None:
        if self.used_at(now)[2] > 0:
            self.recover(now)
            self.start, self.end, self.used = self.used_at(now)
            self.used -= min(cost, self.used)

    def recover(self, now: int) -> None:
        if self.start - now > TOLERANCE_NS:
            self.start, self.end = self.limit.window(now)


class SlidingWindow(State):
    """Two counters: the last window counts by the share of it that still overlaps."""

    start = current = previous = 0

    def counts(self, now: int) -> tuple[int, int, int]:
        """The window's start, the current and the previous count, as of `now`."""
        width, count = self.limit.period_ns, self.limit.count
        if now < self.start + width:
            return self.start, self.current, self.previous
        start = self.limit.window(now)[0]
        passed = (start - self.start) // width
        last = max(0, min(count, self.current - (passed - 1) * count))
        return start, max(0, self.current - passed * count), last

    def left(self, now: int) -> int:
        start, current, previous = self.counts(now)
        if current > self.limit.count:
            return self.limit.count - current  # what is owed is paid by whole windows
        elapsed = max(0, now - start)
        weight = Fraction(self.limit.period_ns - elapsed, self.limit.period_ns)
        return self.limit.count - current - math.ceil(previous * weight)

    def take(self, now: int, cost: int) -> None:
        self.start, self.current, self.previous = self.counts(now)
        self.current += cost

    def give_back(self, now: int, cost: int) -> None:
        if any(self.counts(now)[1:]):
            self.recover(now)
            self.start, self.current, self.previous = self.counts(now)
            self.current -= min(cost, self.current)

    def recover(self, now: int) -> None:
        if self.start - now > TOLERANCE_NS:
            self.start = self.limit.window(now)[0]


class SlidingLog(State):
    """The instants of admitted units, oldest first."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.instants: list[int] = []

    def alive(self, now: int) -> list[int]:
        return [instant for instant in self.instants if instant + self.limit.period_ns > now]

    def left(self, now: int) -> int:
        return self.limit.count - len(self.alive(now))

    def take(self, now: int, cost: int) -> None:
        self.instants = self.alive(now)
        for _ in range(cost):
            # A unit that is owed is admitted when it would have passed.
            first = self.instants[-self.limit.count :][0] if self.left(now) <= 0 else now
            paid = first + self.limit.period_ns if self.left(now) <= 0 else now
            self.instants.append(max([paid, *self.instants[-1:]]))

    def give_back(self, now: int, cost: int) -> None:
        newest = min(cost, len(self.alive(now)))
        self.instants = self.instants[: len(self.instants) - newest]

    def recover(self, now: int) -> None:
        if self.limit.max_debt is None and self.instants and self.instants[-1] - now > TOLERANCE_NS:
            self.instants = [min(now, instant) for instant in self.instants]


class Concurrency(SlidingLog):
    """Holders, oldest first; the period is the lease, and giving back releases the newest."""


STATES: dict[Algorithm, type[State]] = {
    "token-bucket": TokenBucket,
    "leaky-bucket": LeakyBucket,
    "fixed-window": FixedWindow,
    "sliding-window": SlidingWindow,
    "sliding-log": SlidingLog,
    "concurrency": Concurrency,
}


class Oracle:
    """A plan of limits over any number of keys: each call passes all of them or charges none."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self.limits = list(limits)
        self.keys: dict[Hashable, list[State]] = {}

    def hit(self, key: Hashable, now: int, cost: int = 1) -> Decision:
        return _decide(self._states(key), now, cost, charge=True)

    def peek(self, key: Hashable, now: int, cost: int = 1) -> Decision:
        return _decide(copy.deepcopy(self._states(key)), now, cost, charge=False)

    def charge(self, key: Hashable, now: int, cost: int) -> Decision:
        """Charges each limit all of the cost, and refuses nothing."""
        states = self._states(key)
        charged = min(state.owe(now, cost) for state in states)
        return _answer(states, now, [0] * len(states), charged=charged)

    def refund(self, key: Hashable, now: int, cost: int = 1) -> None:
        for state in self._states(key):
            state.give_back(now, cost)

    def reset(self, key: Hashable) -> None:
        self.keys.pop(key, None)

    def _states(self, key: Hashable) -> list[State]:
        if key not in self.keys:
            self.keys[key] = [STATES[limit.algorithm](limit) for limit in self.limits]
        return self.keys[key]


def _decide(states: list[State], now: int, cost: int, *, charge: bool) -> Decision:
    for state in states:
        state.recover(now)
    waits = [_retry_after(state, now, cost) for state in states]
    allowed = all(wait == 0 for wait in waits)
    delay = max(state.delay(now) for state in states) if allowed else 0
    if allowed and charge:
        for state in states:
            state.take(now, cost)
    return _answer(states, now, waits, delay)


def _answer(
    states: list[State],
    now: int,
    waits: list[int | None],
    delay: int = 0,
    charged: int | None = None,
) -> Decision:
    allowed = all(wait == 0 for wait in waits)
    remaining = [max(0, state.left(now)) for state in states]
    every = range(len(states))
    if allowed:
        binding = min(every, key=lambda i: remaining[i])
    else:
        binding = max(every, key=lambda i: math.inf if (wait := waits[i]) is None else wait)
    return Decision(
        allowed=allowed,
        limit=states[binding].limit.capacity,
        remaining=remaining[binding],
        retry_after_ns=waits[binding],
        reset_after_ns=_first_wait(lambda wait: states[binding].untouched(now + wait)),
        delay_ns=delay,
        rule_index=binding,
        debt=max(0, -states[binding].left(now))
        if any(state.limit.max_debt is not None for state in states)
        else None,
        charged=charged,
    )


def _retry_after(state: State, now: int, cost: int) -> int | None:
    limit = state.limit
    if cost > limit.capacity:
        if limit.oversize != "debt" or cost > limit.capacity + (limit.max_debt or 0):
            return None
        return _first_wait(lambda wait: state.untouched(now + wait))
    return _first_wait(lambda wait: cost <= state.left(now + wait))


def _first_wait(holds: Callable[[int], bool]) -> int:
    """The least wait at which `holds`, which once true stays true."""
    if holds(0):
        return 0
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _month_start(months_since_1970: int) -> int:
    year, month = divmod(months_since_1970, 12)
    start = datetime(1970 + year, month + 1, 1, tzinfo=timezone.utc)
    return (start - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1) * 10**9


def excess(limit: Limit, admitted: Sequence[tuple[int, int]]) -> Fraction:
    """By how many units a log of admissions breaks what the limit says of itself.

    The log is (instant, cost) in order. Never above 0 for a limiter that lets no more through
    than it says. Only the log is judged; how a limiter decides is not known here.
    """
    worst = Fraction(-limit.capacity)
    for last, (now, cost) in enumerate(admitted):
        log = admitted[: last + 1]
        if limit.algorithm in BUCKETS:
            # In any span, no more than the burst and what came back meanwhile.
            for first in range(last + 1):
                passed = sum(cost for _, cost in log[first:])
                room = limit.capacity + (now - log[first][0]) / limit.interval
                worst = max(worst, passed - room)
        elif limit.algorithm == "fixed-window":
            start, _ = limit.window(now)
            passed = sum(cost for instant, cost in log if instant >= start)
            worst = max(worst, Fraction(passed - limit.count))
        elif limit.algorithm == "sliding-window":
            start, end = limit.window(now)
            current = sum(cost for instant, cost in log if instant >= start)
            width = limit.period_ns
            previous = sum(cost for instant, cost in log if start - width <= instant < start)
            worst = max(worst, current + previous * Fraction(end - now, width) - limit.count)
        else:
            # In any span of one period.
            passed = sum(cost for instant, cost in log if instant + limit.period_ns > now)
            worst = max(worst, Fraction(passed - limit.count))
    return worst
