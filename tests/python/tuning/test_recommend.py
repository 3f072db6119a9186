"""A recommended limit keeps its promise, and the next smaller one breaks it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate import Limit, tuning
from tidegate.tuning import traffic
from tuning_logs import ALGORITHMS, PERIOD, SECOND, START, Log, logs, replayed, touched

shares = st.sampled_from([0, 0.001, 0.1, 0.2, 0.34, 0.5, 0.75])
algorithms = st.sampled_from(ALGORITHMS)


def recommended(log: Log, **arguments: Any) -> tuning.Recommendation:
    return tuning.recommend(
        log.keys, log.times, costs=log.costs, period=PERIOD / SECOND, **arguments
    )


def limit(like: Limit, count: int, burst: int | None = None) -> Limit:
    return Limit(count, PERIOD / SECOND, burst=burst, algorithm=like.algorithm)


def most_of(log: Log, share: float, of: str) -> int:
    """The most clients, or requests, that a promise lets a limit refuse."""
    total = len(set(log.keys)) if of == "clients" else len(log.keys)
    return math.floor(share * total + 1e-9)


def refused_of(log: Log, limit: Limit, of: str) -> int:
    """The clients, or requests, that a limit refuses."""
    replay = replayed(log, limit)
    return len(touched(log, replay)) if of == "clients" else replay.refused


@pytest.mark.parametrize("of", ["clients", "requests"])
@settings(max_examples=200, deadline=None)
@given(logs(), shares, algorithms)
def test_a_promise_is_kept_and_one_less_breaks_it(
    of: str, log: Log, share: float, algorithm: str
) -> None:
    result = recommended(log, **{f"refuse_{of}": share}, algorithm=algorithm)
    most = most_of(log, share, of)
    assert refused_of(log, result.limit, of) <= most
    assert refused_of(log, limit(result.limit, result.count - 1), of) > most


@settings(max_examples=150, deadline=None)
@given(logs(), shares, st.sampled_from(["clients", "requests"]), st.sampled_from(ALGORITHMS[:2]))
def test_each_pair_keeps_the_promise_and_a_burst_of_one_less_breaks_it(
    log: Log, share: float, of: str, algorithm: str
) -> None:
    result = recommended(log, **{f"refuse_{of}": share}, algorithm=algorithm)
    assert result.pairs is not None
    most = most_of(log, share, of)

    def refused(count: int, burst: int) -> int:
        return refused_of(log, limit(result.limit, count, burst), of)

    for count, burst in zip(np.asarray(result.pairs["count"]), np.asarray(result.pairs["burst"])):
        assert refused(int(count), int(burst)) <= most
        assert burst == 1 or refused(int(count), int(burst) - 1) > most


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
def test_pairs_keep_the_promise_if_some_clients_need_far_more(share: float) -> None:
    """Every pair touches the clients of the greatest need, and they count among the exceptions."""
    log = traffic.mix(
        traffic.zipf(20, 900, clients=150, exponent=0.7, seed=3),
        traffic.bursts(15, 200, 900, clients=40, seed=4, name="page"),
        traffic.poisson(20, 900, clients=3, seed=5, name="robot"),
    )
    result = tuning.recommend(log.keys, log.times, refuse_clients=share)
    assert result.pairs is not None
    assert len(result.pairs) >= 4
    most = math.floor(share * len(log.keys.names))
    for count, burst in zip(np.asarray(result.pairs["count"]), np.asarray(result.pairs["burst"])):
        for less, is_kept in ((0, True), (1, False)):
            replay = tuning.replay(
                Limit(int(count), "minute", burst=int(burst) - less), log.keys, log.times
            )
            refused = np.unique(log.keys.codes[~replay.allowed])
            assert (len(refused) <= most) is is_kept, (count, burst)


@settings(max_examples=50, deadline=None)
@given(logs(), shares, algorithms)
def test_the_effect_equals_a_replay(log: Log, share: float, algorithm: str) -> None:
    result = recommended(log, refuse_clients=share, algorithm=algorithm)
    replay = replayed(log, result.limit)
    assert result.effect == tuning.Effect(
        result.limit, len(log.keys), replay.refused, len(set(log.keys)), len(touched(log, replay))
    )


@settings(max_examples=50, deadline=None)
@given(logs(), shares, st.sampled_from(["clients", "requests"]), algorithms)
def test_the_interval_contains_the_count_and_is_repeatable_with_a_seed(
    log: Log, share: float, of: str, algorithm: str
) -> None:
    arguments = {f"refuse_{of}": share, "algorithm": algorithm, "seed": 3}
    result = recommended(log, **arguments)
    low, high = result.interval
    assert 1 <= low <= result.count <= high
    assert result.cautious.count == high
    assert recommended(log, **arguments).interval == result.interval


def test_the_interval_covers_the_true_quantile_as_often_as_its_confidence() -> None:
    """In each of 200 logs every client sends a random number of requests at once."""
    random = np.random.default_rng(5)
    population_p90 = (
        11  # the quantile of a geometric distribution with p = 0.2: 1 - 0.8**11 = 0.914
    )
    held = above = 0
    for _ in range(200):
        needs = random.geometric(0.2, 300)
        keys = np.repeat(np.arange(300), needs)
        result = tuning.recommend(keys, np.full(len(keys), START), refuse_clients=0.1)
        low, high = result.interval
        assert low >= 7
        assert high <= 18
        held += low <= population_p90 <= high
        above += high > result.count
    assert held >= 185
    assert above >= 150


def test_the_interval_about_requests_covers_what_other_logs_recommend() -> None:
    random = np.random.default_rng(6)
    results = []
    for _ in range(60):
        needs = random.geometric(0.1, 300)
        keys = np.repeat(np.arange(300), needs)
        times = np.full(len(keys), START)
        results.append(tuning.recommend(keys, times, refuse_requests=0.05))
    middle = int(np.median([result.count for result in results]))
    held = [low <= middle <= high for low, high in (result.interval for result in results)]
    assert sum(held) >= 52
    assert all(result.interval[0] < result.count < result.interval[1] for result in results)
    assert all(result.interval[0] >= 0.6 * middle for result in results)
    assert all(result.interval[1] <= 1.6 * middle for result in results)


def test_days_that_differ_widen_the_interval() -> None:
    """The log has ten quiet days and a busy one; without the busy one a smaller limit would do."""
    of_days = [
        traffic.bursts(30 if day == 5 else 5, 600, 86_000, clients=40, seed=day,
                       start=traffic.START + day * 86_400 * SECOND)
        for day in range(11)
    ]  # fmt: skip
    log = traffic.mix(*of_days)
    several = tuning.recommend(log.keys, log.times, refuse_clients=0.05)
    one = tuning.recommend(of_days[5].keys, of_days[5].times, refuse_clients=0.05)
    assert several.days == 11
    assert several.interval[1] - several.interval[0] > one.interval[1] - one.interval[0]


def test_the_limit_of_a_group_depends_on_its_own_requests_only() -> None:
    free = traffic.bursts(5, 300, 7200, clients=20, seed=1, name="free")
    paid = traffic.bursts(40, 300, 7200, clients=20, seed=2, name="paid")
    log = traffic.mix(free, paid)
    tiers = [name.partition("-")[0] for name in log.keys]
    result = tuning.recommend(log.keys, log.times, by=tiers, refuse_clients=0)
    assert list(result) == ["paid", "free"]  # the group with more requests comes first
    alone = tuning.recommend(free.keys, free.times, refuse_clients=0)
    assert result["free"].limit == alone.limit
    assert result["paid"].count > 4 * result["free"].count
    assert result.frame.to_dict()["group"] == ["paid", "free"]
    assert set(json.loads(json.dumps(result.to_dict()))) == {"free", "paid"}


def test_unordered_requests_keep_their_groups_and_statuses() -> None:
    log = traffic.mix(traffic.poisson(1, 500, clients=3, seed=1, name="a"),
                      traffic.bursts(20, 60, 500, clients=3, seed=2, name="b"))  # fmt: skip
    shuffled = np.random.default_rng(0).permutation(len(log))
    tiers = np.array([name[0] for name in log.keys])
    status = np.where(tiers == "b", 429, 200)
    result = tuning.recommend(
        log.keys[shuffled], log.times[shuffled], by=tiers[shuffled], status=status[shuffled]
    )
    for tier in "ab":
        own = tiers == tier
        assert result[tier].limit == tuning.recommend(log.keys[own], log.times[own]).limit
    assert any("429" in note for note in result["b"].notes)
    assert not any("429" in note for note in result["a"].notes)


def test_a_log_of_one_instant_has_a_recommendation_and_a_warning() -> None:
    result = tuning.recommend(list("aabbbc"), [START] * 6, refuse_clients=0)
    assert result.count == 3
    assert any("spans 0 s" in warning for warning in result.warnings)


def test_a_log_of_one_client_has_a_recommendation_and_warnings() -> None:
    result = tuning.recommend(["a"] * 4, [START + n for n in range(4)])
    assert result.count == 4
    assert any("less than one:" in warning for warning in result.warnings)
    assert any("few clients, 1;" in warning for warning in result.warnings)


def test_notes_say_what_a_log_cannot_tell() -> None:
    keys = ["203.0.113.9", "2001:db8::1", "198.51.100.7"]
    result = tuning.recommend(keys, [START] * 3, status=[200, 429, 200])
    notes = " ".join(result.notes)
    assert "1 of the requests (33.3 %) were answered with 429" in notes
    assert "addresses" in notes
    assert "one day" in notes
    assert "whole seconds" in notes
    assert "growth" in notes
    other = tuning.recommend(["ann", "bob"], [START + 5, START + 86_400 * SECOND + 7])
    notes = " ".join(other.notes)
    assert "addresses" not in notes
    assert "one day" not in notes
    assert "whole seconds" not in notes
    assert "not known here" in notes


def test_the_text_the_html_and_the_dict_show_the_limit() -> None:
    log = traffic.zipf(20, 600, clients=50, seed=1)
    result = tuning.recommend(log.keys, log.times)
    assert str(result).splitlines()[0] == f"limit:         {result.limit} (token-bucket)"
    assert str(result.limit) in result._repr_html_()
    assert json.loads(json.dumps(result.to_dict()))["limit"] == str(result.limit)
    assert result.peaks["p50"] <= result.peaks["p90"] <= result.peaks["p99"] <= result.peaks["max"]
    assert result.by_variance is not None
    assert result.by_variance >= result.peaks["mean"]


def test_the_count_by_variance_keeps_the_promise() -> None:
    log = traffic.zipf(50, 600, clients=200, exponent=1.3, seed=1)
    result = tuning.recommend(log.keys, log.times, refuse_clients=0.02)
    assert result.by_variance is not None
    least = tuning.least_limits(log.keys, log.times, "minute")
    assert (least > result.by_variance).mean() <= 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"refuse_clients": 1}, "refuse_clients is 1; expected a share"),
        ({"refuse_clients": -0.1}, "refuse_clients is -0.1; expected a share"),
        ({"refuse_clients": float("nan")}, "refuse_clients is nan; expected a share"),
        ({"refuse_clients": "1%"}, "refuse_clients is '1%' of type str; expected a share"),
        ({"refuse_requests": 5}, "refuse_requests is 5; expected a share"),
        ({"refuse_clients": 0.1, "refuse_requests": 0.1}, "expected one of the two"),
        ({"period": "fortnight"}, "fortnight.* expected"),
        ({"period": 0}, "the period is 0 .*expected"),
        ({"algorithm": "concurrency"}, "'concurrency'.* expected token-bucket"),
        ({"algorithm": "magic"}, "magic.* expected"),
        ({"confidence": 0}, "confidence is 0; expected"),
        ({"confidence": 95}, "confidence is 95; expected .* below 1, such as 0.95, which is 95 %"),
        ({"confidence": "95"}, "confidence is '95' of type str; expected a share such as 0.95, "),
        ({"confidence": 1}, "confidence is 1; expected"),
        ({"seed": -1}, "seed is -1 .*expected an int"),
        ({"by": ["x"]}, "1 groups were given with 2 times; expected"),
        ({"status": [200]}, "1 statuses were given with 2 times; expected"),
        ({"status": ["ok", "ok"]}, "the status is a column of .*; expected ints"),
        ({"costs": [2**61, 2**61]}, r"the costs add up to 4.61e\+18; expected less than 2\*\*62"),
        ({"costs": [1, 0]}, "the cost at index 1 is 0 .*expected"),
    ],
)
def test_bad_arguments_are_errors_that_say_what_is_expected(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tuning.recommend(["a", "b"], [START, START], **arguments)


@pytest.mark.parametrize(
    "ask",
    [
        tuning.recommend,
        tuning.backtest,
        tuning.what_if,
        lambda keys, times: tuning.compare("1/minute", keys, times),
    ],
    ids=["recommend", "backtest", "what_if", "compare"],
)
def test_a_log_without_requests_is_an_error(ask: Any) -> None:
    with pytest.raises(ValueError, match="there are 0 requests; expected at least one"):
        ask([], [])
