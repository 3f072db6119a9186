"""A limit with an id keeps its usage when its number changes."""

from __future__ import annotations

import uuid

import pytest
import tidegate as tg
from hypothesis import given
from hypothesis import strategies as st
from tidegate._core import ShmStore

NOW = 1_700_000_000 * 10**9
ALGORITHMS = ("token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log")
COUNTS = st.integers(1, 40)


def limiters(storage: str, algorithm: str, *counts: int) -> tuple[tg.ManualClock, list[tg.Limiter]]:
    """One limiter for each count, of one id."""
    clock = tg.ManualClock(NOW)
    first = tg.Limiter(
        tg.Limit(counts[0], 60, algorithm=algorithm, id="api"), storage=storage, clock=clock
    )
    others = [
        tg.Limiter(
            tg.Limit(count, 60, algorithm=algorithm, id="api"), storage=first.storage, clock=clock
        )
        for count in counts[1:]
    ]
    return clock, [first, *others]


@pytest.fixture
def shm() -> str:
    return f"shm://tidegate-test-{uuid.uuid4().hex}?capacity=1000"


def check_a_change(storage: str, algorithm: str, before: int, after: int, used: int) -> None:
    _, (old, new) = limiters(storage, algorithm, before, after)
    key = uuid.uuid4().hex
    used = min(used, before)
    if used:
        assert old.hit(key, used)
    assert new.peek(key).remaining == max(0, after - used)
    if after > used:
        assert new.hit(key, after - used)
    assert not new.hit(key)
    # And back: a raised limit helps at once.
    if before > after:
        expected = before - max(after, min(used, after))
        assert old.peek(key).remaining in (expected, before - used)


@given(algorithm=st.sampled_from(ALGORITHMS), before=COUNTS, after=COUNTS, used=st.integers(0, 40))
def test_the_units_used_stay_when_the_count_changes(
    algorithm: str, before: int, after: int, used: int
) -> None:
    check_a_change("memory://", algorithm, before, after, used)


@pytest.mark.parametrize(("before", "after", "used"), [(10, 20, 10), (20, 10, 15), (7, 3, 2)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_units_used_stay_in_shared_memory(
    shm: str, algorithm: str, before: int, after: int, used: int
) -> None:
    try:
        check_a_change(shm, algorithm, before, after, used)
    finally:
        ShmStore.remove(shm[len("shm://") :].partition("?")[0])


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    before=COUNTS,
    after=COUNTS,
    used=st.integers(1, 40),
    cost=st.integers(1, 10),
)
def test_the_wait_after_a_change_is_exact(
    algorithm: str, before: int, after: int, used: int, cost: int
) -> None:
    clock, (old, new) = limiters("memory://", algorithm, before, after)
    old.hit("k", min(used, before))
    decision = new.hit("k", cost)
    if decision.allowed or cost > after:
        return
    wait_ns = round(decision.retry_after * 1e9)
    assert 0 < wait_ns <= 2 * 60 * 10**9
    clock.advance_ns(wait_ns - 1)
    assert not new.peek("k", cost)
    clock.advance_ns(1)
    assert new.hit("k", cost)


@given(
    algorithm=st.sampled_from(("token-bucket", "leaky-bucket")),
    before=st.integers(1, 5_000_000),
    after=st.integers(1, 5_000_000),
    period_ns=st.integers(1, 10**9),
    burst=st.integers(1, 10_000),
    data=st.data(),
)
def test_the_wait_after_any_change_of_a_bucket_is_exact(
    algorithm: str, before: int, after: int, period_ns: int, burst: int, data: st.DataObject
) -> None:
    clock = tg.ManualClock(NOW)
    old, new = (
        tg.Limit(f"{count}/{period_ns} ns burst {burst}", algorithm=algorithm, id="api")
        for count in (before, after)
    )
    storage = tg.Limiter(old, clock=clock).storage
    first, second = (tg.Limiter(limit, storage=storage, clock=clock) for limit in (old, new))
    first.hit("k", data.draw(st.integers(1, burst), label="used"))
    clock.advance_ns(data.draw(st.integers(0, burst * period_ns // before), label="pause"))
    cost = data.draw(st.integers(1, burst), label="cost")
    decision = second.hit("k", cost)
    if decision.allowed:
        return
    clock.advance_ns(round(decision.retry_after * 1e9) - 1)
    assert not second.peek("k", cost)
    clock.advance_ns(1)
    assert second.peek("k", cost)


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    calls=st.lists(st.tuples(COUNTS, st.integers(1, 5), st.integers(0, 20_000)), max_size=40),
)
def test_a_count_that_changes_with_each_call_admits_no_more_than_the_largest(
    algorithm: str, calls: list[tuple[int, int, int]]
) -> None:
    if not calls:
        return
    most = max(count for count, _, _ in calls)
    clock, made = limiters("memory://", algorithm, most, *(count for count, _, _ in calls))
    reference = tg.Limiter(tg.Limit(most, 60, algorithm=algorithm), clock=clock)
    for limiter, (count, cost, pause_ms) in zip(made[1:], calls):
        clock.advance_ns(pause_ms * 10**6)
        if limiter.hit("k", cost).allowed:
            # What the smaller count admits the larger would have.
            assert reference.hit("k", cost).allowed, count


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "concurrency"])
def test_without_an_id_each_number_counts_on_its_own(algorithm: str) -> None:
    clock = tg.ManualClock(NOW)
    first = tg.Limiter("5/minute", algorithm=algorithm, clock=clock)
    other = tg.Limiter("6/minute", algorithm=algorithm, clock=clock, storage=first.storage)
    first.hit("k", 5)
    assert other.peek("k").remaining == 6


def test_another_period_starts_from_zero() -> None:
    clock = tg.ManualClock(NOW)
    first = tg.Limiter(tg.Limit("5/minute", id="api"), clock=clock)
    other = tg.Limiter(tg.Limit("5/hour", id="api"), clock=clock, storage=first.storage)
    first.hit("k", 5)
    assert other.peek("k").remaining == 5


def test_refunds_and_resets_reach_a_count_that_another_number_wrote() -> None:
    _, (old, new) = limiters("memory://", "token-bucket", 10, 30)
    decision = old.hit("k", 10)
    new.refund("k", 4, decision=decision)
    assert new.peek("k").remaining == 24
    assert old.peek("k").remaining == 4
    old.reset("k")
    assert new.peek("k").remaining == 30


def test_what_a_lowered_bucket_has_used_beyond_its_burst_stays_used() -> None:
    clock, (old, new) = limiters("memory://", "token-bucket", 100, 10)
    old.hit("k", 100)
    # 91 units, at the rate of the number that charged them.
    assert new.hit("k").retry_after == 54.6
    assert old.peek("k").remaining == 0
    clock.advance(54.6)
    assert new.hit("k")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("high", "low"), [(100, 50), (100, 1), (100, 0), (99, 7)])
def test_refusals_by_a_lower_number_give_nothing_back_to_a_higher_one(
    algorithm: str, high: int, low: int
) -> None:
    """Two numbers are in use at once in every rolling deployment."""
    _, (upper, lower) = limiters("memory://", algorithm, high, low)
    admitted = 0
    for _ in range(5):
        while upper.allow("k"):
            admitted += 1
        assert not lower.hit("k")
        assert not lower.hit("k", 3)
    assert admitted == high


def test_a_smaller_burst_in_shadow_gives_nothing_back() -> None:
    clock = tg.ManualClock(NOW)
    enforced = tg.Limiter(tg.Limit("10/day", id="api"), clock=clock)
    trial = tg.Limiter(
        tg.Limit("10/day burst 2", id="api", shadow=True), storage=enforced.storage, clock=clock
    )
    admitted = 0
    for _ in range(50):
        admitted += enforced.allow("k")
        trial.hit("k")
    assert admitted <= 10


def test_a_clock_that_went_back_locks_nobody_out_for_more_than_ten_periods() -> None:
    clock, (limiter,) = limiters("memory://", "token-bucket", 5)
    limiter.hit("k", 5)
    clock.advance(-86_400)
    refused = limiter.hit("k")
    assert refused.retry_after <= 600
    clock.advance(refused.retry_after)
    assert limiter.hit("k")


def test_of_one_id_a_limiter_has_one_number() -> None:
    with pytest.raises(tg.ConfigurationError, match="two limits have the id 'api': 5/minute and 6"):
        tg.Limiter([tg.Limit("5/minute", id="api"), tg.Limit("6/minute", id="api")])
    with pytest.raises(
        tg.ConfigurationError, match="the count of a limit with an id is 4294967296"
    ):
        tg.Limit(2**32, 60, id="api")
    with pytest.raises(tg.ConfigurationError, match=r"the id is '' .*expected 1 to 200"):
        tg.Limit("5/minute", id="")


def bursts(storage: str, *texts: str) -> tuple[tg.ManualClock, list[tg.Limiter]]:
    """One limiter for each text, of one id."""
    clock = tg.ManualClock(NOW)
    first = tg.Limiter(tg.Limit(texts[0], id="api"), storage=storage, clock=clock)
    others = [
        tg.Limiter(tg.Limit(text, id="api"), storage=first.storage, clock=clock)
        for text in texts[1:]
    ]
    return clock, [first, *others]


@pytest.mark.parametrize("back_s", [3_700, 2 * 3600, 99 * 3600, 101 * 3600, 10**9])
@pytest.mark.parametrize("reader", ["100/hour", "90/hour", "100/hour burst 7"])
def test_a_clock_that_goes_back_locks_out_for_no_longer_than_a_period(
    reader: str, back_s: int
) -> None:
    clock, (writer, limiter) = bursts("memory://", "100/hour", reader)
    for _ in range(2):
        clock.set_ns(NOW)
        writer.reset("k")
        assert writer.hit("k", 100)
        clock.set_ns(NOW - back_s * 10**9)
        refused = limiter.hit("k")
        assert not refused
        assert 0 < refused.retry_after <= 40 + 1
        assert refused.reset_after <= 3600
        clock.advance(refused.retry_after)
        assert limiter.hit("k")


@pytest.mark.parametrize(
    ("large", "small", "wait"),
    [("10/second burst 45", "10/second burst 10", 3.6), ("3/second burst 100", "3/second", 98 / 3)],
)
def test_what_a_larger_burst_used_is_no_clock_that_went_back(
    large: str, small: str, wait: float
) -> None:
    clock, (before, after, again) = bursts("memory://", large, small, large)
    burst = before.limits[0].burst
    assert before.hit("k", burst)
    # The next places that the smaller burst has are those that it had without the change.
    refused = [after.hit("k") for _ in range(3)]
    assert not any(refused)
    assert refused[0].retry_after == pytest.approx(wait, abs=1e-6)
    assert again.peek("k").remaining == 0
    clock.advance(refused[0].retry_after)
    assert after.hit("k")
    assert not after.hit("k")


@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from([(7, 7), (7, 700), (7, 20), (5, 5), (13, 400), (1000, 3)]),
            st.integers(1, 30),
            st.integers(0, 3_000),
        ),
        max_size=40,
    )
)
def test_bursts_of_one_id_admit_no_more_than_the_largest(
    calls: list[tuple[tuple[int, int], int, int]],
) -> None:
    clock = tg.ManualClock(NOW)
    store = tg.Limiter("1/second", clock=clock).storage
    reference = tg.Limiter("1000/second burst 700", clock=clock)
    for (count, burst), cost, pause_ms in calls:
        clock.advance_ns(pause_ms * 10**6)
        limit = tg.Limit(f"{count}/second burst {burst}", id="api")
        limiter = tg.Limiter(limit, storage=store, clock=clock)
        room = limiter.peek("k").remaining
        allowed = limiter.hit("k", min(cost, burst)).allowed
        assert allowed == (room >= min(cost, burst))
        assert allowed <= reference.hit("k", min(cost, burst)).allowed
