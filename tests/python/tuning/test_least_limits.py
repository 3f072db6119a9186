"""The least limit of a key refuses none of its requests; a limit that is one less refuses some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate import ConfigurationError, Limit, tuning

START = 1_700_000_000_123_456_789
SECOND = 10**9
ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


def refused(
    count: int, period: Any, algorithm: Any, keys: Any, times: Any, costs: Any
) -> np.ndarray[Any, Any]:
    """How many requests of each key a limit of this count refuses."""
    limit = Limit(count, period, algorithm=algorithm)
    result = tuning.replay(limit, keys, times, costs)
    codes = result.keys["key"].codes
    return np.bincount(codes, ~result.allowed)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(ALGORITHMS),
    st.sampled_from([1e-9, 7e-9, 0.7, 1.0, 60.0, "month"]),
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.one_of(st.integers(0, 20), st.integers(0, 100 * SECOND)),
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=60,
    ),
    st.booleans(),
)
def test_the_least_limit_refuses_nothing_and_one_less_refuses_something(
    algorithm: Any, period: Any, events: list[tuple[int, int, int]], with_costs: bool
) -> None:
    keys = [key for key, _, _ in events]
    times = [START + after for _, after, _ in events]
    costs = [cost for _, _, cost in events] if with_costs else None
    least = tuning.least_limits(keys, times, period, costs, algorithm=algorithm)
    assert len(least) == len(set(keys))
    for code, count in enumerate(least.tolist()):
        assert count >= 1
        assert refused(count, period, algorithm, keys, times, costs)[code] == 0, count
        assert refused(count - 1, period, algorithm, keys, times, costs)[code] > 0, count


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_least_limits_of_a_long_log_are_exact(algorithm: Any) -> None:
    random = np.random.default_rng(3)
    times = START + np.sort(random.integers(0, 3_600 * SECOND, 50_000))
    keys = random.zipf(1.5, 50_000) % 50
    least = tuning.least_limits(keys, times, "minute", algorithm=algorithm)
    for count in np.unique(least).tolist():
        assert (refused(count, "minute", algorithm, keys, times, None)[least == count] == 0).all()
        less = refused(count - 1, "minute", algorithm, keys, times, None)
        assert (less[least == count] > 0).all()


def test_runs_that_doubles_cannot_distinguish_are_counted_exactly() -> None:
    """Requests come every 10 ns; the interval between the limit's units is not a whole number."""
    times = START + np.arange(10_000) * 10
    costs = np.full(10_000, 3_000_017)
    least = int(tuning.least_limits(np.zeros(10_000, int), times, 1.0, costs)[0])
    keys = [0] * 10_000
    assert refused(least, 1.0, "token-bucket", keys, times, costs)[0] == 0
    assert refused(least - 1, 1.0, "token-bucket", keys, times, costs)[0] > 0


def test_the_order_of_requests_changes_nothing() -> None:
    random = np.random.default_rng(4)
    times = START + random.integers(0, 60 * SECOND, 1_000)
    costs = random.integers(1, 9, 1_000)
    keys = random.integers(0, 5, 1_000)
    order = np.argsort(times, kind="stable")
    for algorithm in ALGORITHMS:
        mixed = tuning.least_limits(keys, times, 10, costs, algorithm=algorithm)
        sorted_ = tuning.least_limits(
            keys[order], times[order], 10, costs[order], algorithm=algorithm
        )
        by_name = dict(zip(tuning.as_keys(keys[order]).names.tolist(), sorted_.tolist()))
        assert mixed.tolist() == [by_name[name] for name in tuning.as_keys(keys).names.tolist()]


def test_the_least_limit_of_a_key_without_requests_is_0() -> None:
    keys = tuning.Keys(np.array([1], np.uint32), ["a", "b", "c"])
    assert tuning.least_limits(keys, [START], "hour").tolist() == [0, 1, 0]
    assert tuning.least_limits([], [], "hour").tolist() == []


def test_concurrency_has_no_least_limit() -> None:
    with pytest.raises(ConfigurationError, match=r"concurrency.*expected token-bucket"):
        tuning.least_limits(["a"], [START], "hour", algorithm="concurrency")


@pytest.mark.parametrize(
    ("algorithm", "most"),
    [("token-bucket", 2**53 - 1), ("fixed-window", 2**32 - 1), ("sliding-log", 1_000_000)],
)
def test_a_key_beyond_the_greatest_limit_is_an_error(algorithm: Any, most: int) -> None:
    keys, times = ["a", "a"], [START, START]
    least = tuning.least_limits(keys, times, "hour", [1, most - 1], algorithm=algorithm)
    assert least.tolist() == [most]
    with pytest.raises(ConfigurationError, match=rf"key number 0 needs more than {most}.*expected"):
        tuning.least_limits(keys, times, "hour", [1, most], algorithm=algorithm)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"period": "fortnight"}, "fortnight"),
        ({"period": 0}, "expected 1 nanosecond"),
        ({"keys": ["a"]}, "1 keys were given with 2 times"),
        ({"times": [1, None]}, "index 1 is None"),
        ({"costs": [1, 0]}, "index 1 is 0"),
        ({"algorithm": "guess"}, "guess"),
    ],
)
def test_bad_input_is_an_error(change: dict[str, Any], message: str) -> None:
    arguments = {"keys": ["a", "b"], "times": [1, 2], "period": "hour", **change}
    with pytest.raises(ConfigurationError, match=message):
        tuning.least_limits(**arguments)
