"""Reservations are settled exactly once, and keep the law of debts, in memory and shared memory."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest
import tidegate as tg
from hypothesis import given
from hypothesis import strategies as st
from reservation_model import LIMITS, Interleavings

ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


@pytest.mark.parametrize("kind", ["memory", "shm"])
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.algorithm} {limit.id}")
def test_no_unit_is_lost_or_charged_twice_in_any_order(
    kind: str, limit: tg.Limit, tmp_path: Path
) -> None:
    clock = tg.ManualClock(1_700_000_000 * 10**9)
    for seed in range(40):
        storage = "memory://" if kind == "memory" else f"shm://{tmp_path}/{seed}?capacity=4096"
        first = tg.Limiter(limit, storage=storage, clock=clock)
        shared = first.storage if kind == "memory" else storage
        second = tg.Limiter(limit, storage=shared, clock=clock)
        Interleavings([first, second], clock.advance, seed).run(60)


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    count=st.integers(1, 20),
    period=st.integers(1, 40),
    calls=st.lists(
        st.tuples(
            st.integers(0, 60),  # seconds since the call before
            st.integers(1, 9),  # estimate
            st.integers(0, 60),  # what is used
            st.integers(0, 90),  # seconds until it is known
        ),
        max_size=30,
    ),
)
def test_over_any_interval_no_more_is_used_than_burst_rate_and_what_estimates_missed(
    algorithm: str, count: int, period: int, calls: list[tuple[int, int, int, int]]
) -> None:
    """Calls in flight at once, whose use is told when they end; some give nearly all back."""
    limit = tg.Limit(count, float(period), algorithm=algorithm, max_debt=math.inf)
    clock = tg.ManualClock(1_700_000_000 * 10**9)
    limiter = tg.Limiter(limit, clock=clock)
    now = 0
    open_until: list[tuple[int, int, int, tg.Reservation]] = []
    used: list[tuple[int, int, int, int]] = []  # admitted, ends, real, beyond the estimate

    def advance_to(instant: int) -> None:
        nonlocal now
        for ends, actual, _, reservation in sorted(open_until, key=lambda each: each[:2]):
            if ends <= instant:
                clock.advance(max(0, ends - now))
                now = max(now, ends)
                reservation.commit(actual)
        open_until[:] = [each for each in open_until if each[0] > instant]
        clock.advance(max(0, instant - now))
        now = max(now, instant)

    for gap, estimate, actual, lasts in calls:
        advance_to(now + gap)
        reservation = limiter.reserve("k", estimate, ttl=1000)
        if reservation:
            used.append((now, now + lasts, actual, max(0, actual - estimate)))
            open_until.append((now + lasts, actual, estimate, reservation))

    def granted(begin: int, end: int) -> Fraction:
        """What is granted in an interval, beside a burst."""
        if algorithm != "fixed-window":
            return Fraction(count * (end - begin), period)
        windows = [(1_700_000_000 + at) // period for at in (begin, end)]
        return Fraction(count * (windows[1] - windows[0]))

    for i, (begin, _, _, _) in enumerate(used):
        for j in range(i, len(used)):
            span = used[i : j + 1]
            end = span[-1][0]
            # The last one is in flight, even if it ends at once.
            in_flight = [each for each in span[:-1] if each[1] > end] + span[-1:]
            beyond = sum(each[3] for each in in_flight)
            total = sum(each[2] for each in span)
            assert total <= count + granted(begin, end) + beyond


def test_units_given_back_late_are_not_those_of_others() -> None:
    clock = tg.ManualClock()
    limiter = tg.Limiter("100/100 seconds", clock=clock)
    reservation = limiter.reserve("k", 100, ttl=1000)
    clock.advance(100)  # the key is full again
    assert limiter.hit("k", 100)
    reservation.commit(0)
    assert limiter.peek("k").remaining == 0


def test_units_that_still_count_are_given_back_beside_those_of_others() -> None:
    clock = tg.ManualClock()
    limiter = tg.Limiter("100/100 seconds", clock=clock)
    reservation = limiter.reserve("k", 60, ttl=1000)
    assert limiter.hit("k", 40)
    clock.advance(20)  # 20 of the 60 have come back
    assert limiter.peek("k").remaining == 20
    reservation.commit(0)
    assert limiter.peek("k").remaining == 60
