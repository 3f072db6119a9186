"""Each row of compare() has the figures that a plain count of a replay gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate import Limit, tuning
from tidegate.tuning import traffic
from tuning_logs import (
    ALGORITHMS,
    PERIOD,
    SECOND,
    START,
    Log,
    logs,
    replayed,
    touched,
    worst_burst,
)


@settings(max_examples=150, deadline=None)
@given(logs(), st.integers(1, 6), st.sampled_from(ALGORITHMS))
def test_a_row_equals_a_plain_count(log: Log, count: int, algorithm: str) -> None:
    limit = Limit(count, PERIOD / SECOND, algorithm=algorithm)
    frame = tuning.compare([limit], log.keys, log.times, log.costs)
    row = {name: column[0] for name, column in frame.to_dict().items()}
    replay = replayed(log, limit)
    events = list(zip(log.keys, log.times, log.costs or [1] * len(log.keys)))
    passed = [
        (key, time + round(delay * 1e9), units)
        for (key, time, units), allowed, delay in zip(events, replay.allowed, replay.delay)
        if allowed
    ]
    together = [(time, units) for _, time, units in passed]
    of_each = [
        worst_burst([(time, units) for key, time, units in passed if key == client], PERIOD)
        for client in set(log.keys)
    ]
    peaks = {
        client: worst_burst([(time, units) for key, time, units in events if key == client], PERIOD)
        for client in set(log.keys)
    }
    p99 = sorted(peaks.values())[math.ceil(0.99 * (len(peaks) - 1))]
    ordinary = {client for client, peak in peaks.items() if peak <= p99}
    assert row["requests"] == len(log.keys)
    assert row["refused"] == replay.refused
    assert row["clients_touched"] == len(touched(log, replay))
    assert row["ordinary_touched"] == len(touched(log, replay) & ordinary)
    assert row["worst_burst_client"] == max(of_each)
    assert row["worst_burst_all"] == worst_burst(together, PERIOD)
    assert row["peak_rate"] == worst_burst(together, SECOND)
    assert row["longest_wait"] == max(*replay.retry_after, *replay.delay, 0)
    assert row["window"] == PERIOD / SECOND


def test_a_fixed_window_lets_twice_the_limit_through_and_a_sliding_log_does_not() -> None:
    """Ten requests at the end of a minute, and ten at the beginning of the next."""
    edge = START - START % (60 * SECOND) + 60 * SECOND
    times = [edge - SECOND] * 10 + [edge] * 10
    frame = tuning.compare("10/minute", ["a"] * 20, times)
    worst = dict(zip(frame["algorithm"], frame["worst_burst_client"]))
    assert worst["fixed-window"] == 20
    assert worst["sliding-log"] == 10
    assert worst["sliding-window"] <= 10
    assert worst["token-bucket"] == 10
    assert set(worst) == set(ALGORITHMS)


def test_rows_may_be_named_and_have_an_algorithm_or_several_limits() -> None:
    log = traffic.zipf(20, 300, clients=20, seed=1)
    frame = tuning.compare(
        {
            "now": "60/minute",
            "next": ("60/minute", "sliding-log"),
            "both": ["2/second", "60/minute"],
        },
        log.keys,
        log.times,
    )
    assert list(frame["name"]) == ["now", "next", "both"]
    assert list(frame["limit"]) == ["60/minute", "60/minute", "2/second; 60/minute"]
    assert list(frame["algorithm"]) == ["token-bucket", "sliding-log", "token-bucket"]
    assert (
        frame["refused"][2] == tuning.replay(["2/second", "60/minute"], log.keys, log.times).refused
    )
    assert frame["window"].tolist() == [60, 60, 60]
    assert any("ordinary" in note for note in frame.notes)
    assert "ordinary" in repr(frame)


def test_a_list_names_its_rows_by_limit_and_algorithm() -> None:
    frame = tuning.compare([("5/minute", "sliding-window"), "5/minute"], ["a"], [START])
    assert list(frame["name"]) == ["5/minute sliding-window", "5/minute token-bucket"]


def test_a_limit_with_a_burst_is_compared_by_buckets_only() -> None:
    frame = tuning.compare("5/minute burst 9", ["a"], [START])
    assert list(frame["algorithm"]) == ["token-bucket", "leaky-bucket"]


def test_a_given_window_is_used_for_all_rows() -> None:
    frame = tuning.compare(["5/minute", "100/hour"], ["a"] * 9, [START] * 9, window="10 seconds")
    assert frame["window"].tolist() == [10, 10]
    assert frame["worst_burst_all"].tolist() == [5, 9]


@pytest.mark.parametrize("algorithm", ALGORITHMS[:4])
def test_bursts_beyond_the_capacity_of_a_sliding_log_are_counted(algorithm: str) -> None:
    """A sliding log has a capacity of at most a million."""
    times = [START, START, START + PERIOD - 1, START + PERIOD, START + PERIOD]
    costs = [700_000, 400_000, 900_000, 300_000, 1]
    limit = Limit(10_000_000, PERIOD / SECOND, algorithm=algorithm)
    frame = tuning.compare([limit], list("ababb"), times, costs, window=PERIOD / SECOND)
    if algorithm != "leaky-bucket":  # a leaky bucket spreads bursts
        assert frame["worst_burst_client"].tolist() == [1_600_000]
        assert frame["worst_burst_all"].tolist() == [2_000_000]
        assert frame["peak_rate"].tolist() == [1_200_001]
    assert frame["refused"].tolist() == [0]


def test_the_longest_wait_of_what_can_never_pass_is_infinite() -> None:
    frame = tuning.compare(["5/minute"], ["a"], [START], [6])
    assert frame["longest_wait"].tolist() == [math.inf]
    assert frame["worst_burst_all"].tolist() == [0]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ([], "no limit was given; expected"),
        ({}, "no limit was given; expected"),
        (5, "the limits are 5 of type int; expected"),
        ([("5/minute", "magic")], "magic.*expected"),
        ([("5/minute", "token-bucket", "x")], "a row is .*; expected a limit"),
        ({"a": "often"}, "often.*expected"),
    ],
)
def test_bad_limits_are_errors_that_say_what_is_expected(limits: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tuning.compare(limits, ["a"], [START])
