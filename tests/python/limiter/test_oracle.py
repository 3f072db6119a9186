"""The oracle is held to the laws before anything is held to the oracle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import ALGORITHMS, BUCKETS, TOLERANCE_NS, Algorithm, Decision, Limit, Oracle, excess

SECOND = 10**9
VECTORS = Path(__file__).resolve().parents[2] / "vectors"
LATE = 1_700_000_000_123_456_789

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
thorough = settings(max_examples=60, deadline=None)


@st.composite
def limits(draw: st.DrawFn, algorithm: Algorithm) -> Limit:
    count = draw(st.integers(1, 12))
    period = draw(st.sampled_from([1, 7, 1000, SECOND, 3600 * SECOND]) | st.integers(1, 10**13))
    burst = draw(st.none() | st.integers(1, 20)) if algorithm in BUCKETS else None
    return Limit(count, period, burst, algorithm)


# How far the clock goes before each call, in sixteenths of the period, and a nanosecond or two.
gaps = st.tuples(st.integers(0, 16) | st.sampled_from([0, 0, 32, 100]), st.integers(0, 2))
plays = st.lists(st.tuples(gaps, st.integers(1, 6)), max_size=20)
soon = st.integers(0, 10**10)


class Played(NamedTuple):
    """An oracle that has seen calls, the last one `now`, and what it admitted."""

    limit: Limit
    oracle: Oracle
    now: int
    admitted: list[tuple[int, int]]


@st.composite
def played(draw: st.DrawFn, algorithm: Algorithm, starts: st.SearchStrategy[int]) -> Played:
    limit = draw(limits(algorithm))
    oracle, now, admitted = Oracle([limit]), draw(starts), []
    for (sixteenths, nanoseconds), cost in draw(plays):
        now += limit.period_ns * sixteenths // 16 + nanoseconds
        if oracle.hit("k", now, cost).allowed:
            admitted.append((now, cost))
    return Played(limit, oracle, now, admitted)


@every_algorithm
@given(data=st.data())
@thorough
def test_never_more(algorithm: Algorithm, data: st.DataObject) -> None:
    limit, _, _, admitted = data.draw(played(algorithm, soon | st.just(LATE)))
    assert excess(limit, admitted) <= 0


@every_algorithm
@given(data=st.data())
@thorough
def test_retry_is_exact(algorithm: Algorithm, data: st.DataObject) -> None:
    limit, oracle, now, _ = data.draw(played(algorithm, soon | st.just(LATE)))
    cost = data.draw(st.integers(1, limit.capacity))
    wait = oracle.hit("k", now, cost).retry_after_ns
    assert wait is not None
    if wait == 0:
        return
    early = data.draw(st.lists(st.integers(0, wait - 1), max_size=5))
    for offset in sorted([*early, wait - 1]):
        refused = oracle.hit("k", now + offset, cost)
        assert not refused.allowed
        assert refused.retry_after_ns == wait - offset
    assert oracle.hit("k", now + wait, cost).allowed


@every_algorithm
@given(data=st.data())
@thorough
def test_a_refused_call_writes_nothing(algorithm: Algorithm, data: st.DataObject) -> None:
    limit, oracle, now, admitted = data.draw(played(algorithm, soon))
    spared = Oracle([limit])
    for instant, cost in admitted:
        assert spared.hit("k", instant, cost).allowed
    for cost in range(1, limit.capacity + 2):
        assert oracle.peek("k", now, cost) == spared.peek("k", now, cost)


@every_algorithm
@given(data=st.data())
@thorough
def test_reset_after_is_exact(algorithm: Algorithm, data: st.DataObject) -> None:
    limit, oracle, now, _ = data.draw(played(algorithm, soon))
    wait = oracle.peek("k", now).reset_after_ns
    fresh = Oracle([limit])
    assert oracle.peek("k", now + wait, limit.capacity) == fresh.peek("k", 0, limit.capacity)
    if wait > 0:
        assert oracle.peek("k", now + wait - 1).reset_after_ns == 1


@every_algorithm
@given(data=st.data(), step=st.integers(-(10**14), 10**14))
@thorough
def test_a_step_of_the_clock_locks_no_key_out(
    algorithm: Algorithm, data: st.DataObject, step: int
) -> None:
    limit, oracle, now, _ = data.draw(played(algorithm, st.just(LATE)))
    wait = oracle.hit("k", now + step).retry_after_ns
    assert wait is not None
    # A sliding window keeps whoever filled it out into the window after, stepped or not.
    windows = 2 if algorithm == "sliding-window" else 1
    assert wait <= windows * limit.period_ns + TOLERANCE_NS


def test_peek_charges_nothing_and_returns_what_a_hit_gets() -> None:
    oracle = Oracle([Limit(2, SECOND)])
    assert oracle.peek("k", 0) == Decision(True, 2, 2, 0, 0, 0, 0)
    assert oracle.hit("k", 0) == Decision(True, 2, 1, 0, SECOND // 2, 0, 0)
    assert oracle.peek("k", 0, 2) == Decision(False, 2, 1, SECOND // 2, SECOND // 2, 0, 0)


def test_durations_round_up_and_fractions_are_kept() -> None:
    oracle = Oracle([Limit(3, SECOND)])
    assert oracle.hit("k", 0, 3) == Decision(True, 3, 0, 0, SECOND, 0, 0)
    for instant in (333_333_334, 666_666_667, SECOND, SECOND + 333_333_334):
        assert oracle.hit("k", instant - 1).retry_after_ns == 1
        assert oracle.hit("k", instant).allowed


def test_more_than_fits_never_passes() -> None:
    for algorithm in ALGORITHMS:
        oracle = Oracle([Limit(2, SECOND, None, algorithm)])
        assert oracle.hit("k", 0, 3) == Decision(False, 2, 2, None, 0, 0, 0)


def test_a_plan_charges_all_or_none() -> None:
    oracle = Oracle([Limit(10, SECOND), Limit(3, 60 * SECOND), Limit(4, 9 * SECOND)])
    assert oracle.hit("k", 0, 3) == Decision(True, 3, 0, 0, 60 * SECOND, 0, 1)
    refused = oracle.hit("k", 0, 2)
    assert (refused.rule_index, refused.retry_after_ns) == (1, 40 * SECOND)
    assert oracle.hit("k", 0, 4).retry_after_ns is None
    assert [len(oracle.keys["k"]), oracle.keys["k"][0].left(0)] == [3, 7]


def test_leaky_bucket_gives_each_call_its_turn() -> None:
    oracle = Oracle([Limit(4, SECOND, 3, "leaky-bucket")])
    assert [oracle.hit("k", 0).delay_ns for _ in range(4)] == [0, SECOND // 4, SECOND // 2, 0]


def test_sliding_window_weighs_the_last_window() -> None:
    oracle = Oracle([Limit(10, 10 * SECOND, None, "sliding-window")])
    assert oracle.hit("k", 0, 10).remaining == 0
    # 4 of 10 seconds into the next window, 6 of the 10 still count.
    assert oracle.peek("k", 14 * SECOND).remaining == 4
    assert oracle.peek("k", 14 * SECOND - 1).remaining == 3
    assert oracle.hit("k", 9 * SECOND).retry_after_ns == 2 * SECOND


def test_windows_follow_the_calendar() -> None:
    february = Oracle([Limit(1, 30 * 86_400 * SECOND, None, "fixed-window", "month")])
    leap_day_2024 = 1_709_164_800 * SECOND
    assert february.hit("k", leap_day_2024).reset_after_ns == 86_400 * SECOND
    two_years = Oracle([Limit(1, 730 * 86_400 * SECOND, None, "fixed-window", "year", 2)])
    assert two_years.hit("k", 0).reset_after_ns == 730 * 86_400 * SECOND


def test_a_refund_and_a_reset_make_room() -> None:
    for algorithm in ALGORITHMS:
        oracle = Oracle([Limit(3, SECOND, None, algorithm)])
        oracle.hit("k", 5, 3)
        oracle.refund("k", 5, 2)
        assert oracle.peek("k", 5).remaining == 2
        oracle.refund("k", 5, 3)
        assert oracle.hit("k", 5, 3).allowed
        oracle.reset("k")
        assert oracle.peek("k", 5).remaining == 3


def test_the_law_itself_catches_one_too_many() -> None:
    for algorithm in ALGORITHMS:
        limit = Limit(2, SECOND, None, algorithm)
        assert excess(limit, [(0, 1), (1, 1)]) <= 0
        assert excess(limit, [(0, 1), (1, 1), (2, 1)]) > 0


def test_the_vectors_are_the_answers_of_the_oracle() -> None:
    check = subprocess.run(
        [sys.executable, str(VECTORS / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr
