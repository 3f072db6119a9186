"""The what-if curve has the figures of a replay for each limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate import Limit, tuning
from tidegate.tuning import traffic
from tuning_logs import ALGORITHMS, PERIOD, SECOND, START, Log, logs, replayed, touched


@settings(max_examples=100, deadline=None)
@given(logs(), st.sampled_from(ALGORITHMS))
def test_each_row_equals_a_replay(log: Log, algorithm: str) -> None:
    frame = tuning.what_if(
        log.keys, log.times, costs=log.costs, period=PERIOD / SECOND, algorithm=algorithm
    )
    clients = len(set(log.keys))
    rows = frame.to_dict()
    assert rows["count"] == sorted(set(rows["count"]))
    for at, count in enumerate(rows["count"]):
        replay = replayed(log, Limit(count, PERIOD / SECOND, algorithm=algorithm))
        assert rows["refused"][at] == replay.refused
        assert rows["refused_share"][at] == replay.refused / len(log.keys)
        assert rows["clients_touched"][at] == len(touched(log, replay))
        assert rows["clients_touched_share"][at] == len(touched(log, replay)) / clients
    assert rows["refused"][-1] == 0, "the greatest limit refuses nobody"


@settings(max_examples=100, deadline=None)
@given(logs(), st.integers(0, 12), st.integers(1, 12), st.sampled_from(ALGORITHMS[:2]))
def test_a_what_if_of_count_and_burst_equals_a_replay(
    log: Log, count: int, burst: int, algorithm: str
) -> None:
    what_if = tuning.WhatIf(
        log.keys, log.times, log.costs, period=PERIOD / SECOND, algorithm=algorithm
    )
    limit = Limit(count, PERIOD / SECOND, burst=burst if count else None, algorithm=algorithm)
    replay = replayed(log, limit)
    assert what_if.at(count, burst if count else None) == tuning.Effect(
        limit, len(log.keys), replay.refused, len(set(log.keys)), len(touched(log, replay))
    )
    assert what_if.allowed(count, burst if count else None).tolist() == replay.allowed.tolist()


def test_limits_may_be_given_as_ints_texts_or_limits() -> None:
    log = traffic.zipf(20, 300, clients=20, seed=1)
    given: list[Any] = [5, "7/minute", Limit("100/hour burst 20")]
    frame = tuning.what_if(log.keys, log.times, given)
    assert list(frame["limit"]) == ["100/hour burst 20", "5/minute", "7/minute"]
    for limit, refused in zip(frame["limit"], frame["refused"]):
        assert tuning.replay(limit, log.keys, log.times).refused == refused
    assert len(tuning.what_if(log.keys, log.times, "7/minute")) == 1


def test_each_count_is_combined_with_each_burst() -> None:
    log = traffic.zipf(20, 300, clients=20, seed=1)
    frame = tuning.what_if(log.keys, log.times, [10, 20], bursts=[5, 10])
    assert list(frame["limit"]) == [
        "10/minute burst 5", "10/minute", "20/minute burst 5", "20/minute burst 10",
    ]  # fmt: skip


def test_a_million_requests_have_few_counts_and_remembered_answers() -> None:
    log = traffic.zipf(300, 3600, clients=20_000, seed=1)
    what_if = tuning.WhatIf(log.keys, log.times)
    assert 10 <= len(what_if.counts()) <= 30
    assert what_if.at(60) is what_if.at(60)
    assert what_if.requests == len(log)
    assert what_if.least[-1] == what_if.least.max()
    assert np.count_nonzero(what_if.least > 60) == what_if.at(60).clients_touched


@pytest.mark.parametrize(
    ("what", "ask"),
    [
        ("what if", lambda keys, times: tuning.what_if(keys, times, [1, 2, 3], progress=True)),
        (
            "compare",
            lambda keys, times: tuning.compare(["1/minute"] * 3, keys, times, progress=True),
        ),
        (
            "recommend",
            lambda keys, times: tuning.recommend(keys, times, by=[1, 2, 3], progress=True),
        ),
    ],
)
def test_a_progress_bar_counts_rows(
    what: str, ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    ask(["a", "b", "c"], [START] * 3)
    shown = capsys.readouterr().err
    assert what in shown
    assert "/3.00" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limits": []}, "no limit was given; expected"),
        ({"limits": [1.5]}, "the limits have 1.5 of type float; expected an int"),
        ({"limits": ["often"]}, "often.*expected"),
        ({"limits": [5], "bursts": ["x"]}, "the burst is 'x' of type str; expected an int"),
        ({"limits": [5], "bursts": [0]}, "burst.*expected"),
        (
            {"bursts": [5], "algorithm": "sliding-log"},
            "bursts were given for sliding-log.*expected",
        ),
        ({"period": "fortnight"}, "fortnight.*expected"),
        ({"algorithm": "concurrency"}, "concurrency.*expected"),
    ],
)
def test_bad_arguments_are_errors_that_say_what_is_expected(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tuning.what_if(["a"], [START], **arguments)
