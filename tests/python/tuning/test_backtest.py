"""A backtest recommends a limit from the first part of a log and replays it on the second."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tidegate import tuning
from tidegate.tuning import traffic
from tuning_logs import ALGORITHMS, SECOND, START, Log, logs


@settings(max_examples=100, deadline=None)
@given(logs(), st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from(ALGORITHMS))
def test_the_two_parts_add_up_to_the_log(log: Log, split: float, algorithm: str) -> None:
    begin, end = min(log.times), max(log.times)
    at = begin + round((end - begin) * split)
    first = [n for n, time in enumerate(log.times) if time < at]
    second = [n for n, time in enumerate(log.times) if time >= at]
    assume(first and second)
    arguments: dict[str, Any] = {"refuse_clients": 0.2, "period": 10, "algorithm": algorithm}
    result = tuning.backtest(log.keys, log.times, split=split, costs=log.costs, **arguments)

    def part(numbers: list[int]) -> dict[str, Any]:
        columns = {"keys": log.keys, "times": log.times, "costs": log.costs}
        return {
            name: None if column is None else [column[n] for n in numbers]
            for name, column in columns.items()
        }

    assert result.recommendation.limit == tuning.recommend(**part(first), **arguments).limit
    for numbers, effect in ((first, result.first), (second, result.second)):
        replay = tuning.replay(result.recommendation.limit, **part(numbers))
        assert effect.requests == len(numbers)
        assert effect.refused == replay.refused
        assert effect.clients == len({log.keys[n] for n in numbers})
    assert result.first.requests + result.second.requests == len(log.keys)
    assert result.split_at == np.datetime64(at, "ns")


def test_a_promise_is_kept_if_traffic_does_not_change() -> None:
    today = traffic.bursts(6, 120, 3600, clients=300, seed=4)
    tomorrow = traffic.Traffic(today.times + 86_400 * SECOND, today.keys)
    log = traffic.mix(today, tomorrow)
    result = tuning.backtest(log.keys, log.times, refuse_clients=0.02)
    assert result.kept
    assert result.first == result.second
    assert result.second.clients_touched > 0
    assert "kept" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["kept"] is True
    assert result.frame.to_dict()["part"] == ["first", "second"]


@pytest.mark.parametrize("arguments", [{"refuse_clients": 0.3}, {"refuse_requests": 6 / 55}])
def test_exactly_the_promised_number_is_not_too_many(arguments: dict[str, float]) -> None:
    """Client i sends i requests at once, on both days."""
    keys = np.repeat(np.arange(1, 11), np.arange(1, 11))
    times = np.full(len(keys), START)
    result = tuning.backtest(
        np.concatenate([keys, keys]), np.concatenate([times, times + 86_400 * SECOND]), **arguments
    )
    assert result.recommendation.count == 7
    assert (result.second.clients_touched, result.second.refused) == (3, 6)
    assert result.kept


def test_a_client_that_changed_its_integration_breaks_a_promise() -> None:
    log = traffic.changed_integration(0.2, 7200, batch=60, seed=4)
    result = tuning.backtest(log.keys, log.times, refuse_requests=0.01)
    assert not result.kept
    assert result.first.refused_share <= 0.01
    assert result.second.refused_share > 0.3
    assert "broken" in str(result)


def test_a_recommendation_ignores_the_statuses_of_the_second_part() -> None:
    times = [START, START + 1, START + 9, START + 10]
    result = tuning.backtest(list("abab"), times, status=[200, 200, 429, 429])
    assert not any("429" in note for note in result.recommendation.notes)


@pytest.mark.parametrize("split", [0, 1, -1, 1.5, "half", True])
def test_a_split_outside_0_to_1_is_an_error(split: Any) -> None:
    with pytest.raises(ValueError, match=r"split is .*; expected a share"):
        tuning.backtest(["a", "a"], [START, START + 10], split=split)


def test_a_log_of_one_instant_cannot_be_split() -> None:
    with pytest.raises(ValueError, match=r"leave a part without any.*expected requests in both"):
        tuning.backtest(["a", "b"], [START, START])
