"""Which counts are anomalies, and what is done about them."""

from __future__ import annotations

import json
import math
import random
import zlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate import ConfigurationError, TidegateError
from tidegate.anomaly import Action, Anomaly, AnomalyDetector

MINUTE = 60.0
HOUR = 3600.0
DAY = 24 * HOUR
WEEK = 7 * DAY
# A Monday, 00:00 UTC.
START = 1_696_204_800.0


class Traffic:
    """Judges one interval after the other, beside `others` steady callers."""

    def __init__(self, seed: int = 1, others: int = 25, **options: Any) -> None:
        self.detector = AnomalyDetector(**options)
        self.others = {f"other {i}": 28 + i % 5 for i in range(others)}
        self.now = START
        self._random = random.Random(seed)

    def minute(self, counts: dict[str, int], **options: Any) -> list[Anomaly]:
        found = self.detector.judge({**self.others, **counts}, self.now, **options)
        self.now += self.detector.interval
        return found

    def usual(self, minutes: int, mean: float = 30, caller: str = "a") -> list[Anomaly]:
        """Poisson counts of one caller."""
        found = []
        for _ in range(minutes):
            found += self.minute({caller: self.poisson(mean)})
        return found

    def poisson(self, mean: float) -> int:
        threshold, product, count = math.exp(-mean), 1.0, 0
        while (product := product * self._random.random()) > threshold:
            count += 1
        return count

    def action_of(self, count: int, caller: str = "a", **options: Any) -> Action:
        found = self.minute({caller: count}, **options)
        return next((each.action for each in found if each.caller == caller), Action.ALLOW)


def after_an_hour(**options: Any) -> Traffic:
    traffic = Traffic(**options)
    traffic.usual(60)
    return traffic


def test_a_flood_is_monitored_at_once_and_blocked_after_three_intervals() -> None:
    traffic = after_an_hour()
    actions = [traffic.action_of(400) for _ in range(4)]
    assert actions == [Action.MONITOR, Action.MONITOR, Action.BLOCK, Action.BLOCK]


def test_a_rise_is_throttled_and_its_end_is_seen_at_once() -> None:
    traffic = after_an_hour()
    actions = [traffic.action_of(70) for _ in range(3)]
    assert actions == [Action.MONITOR, Action.MONITOR, Action.THROTTLE]
    assert traffic.action_of(30) is Action.ALLOW


def test_a_single_high_interval_is_only_monitored() -> None:
    traffic = after_an_hour()
    for _ in range(5):
        assert traffic.action_of(400) is Action.MONITOR
        traffic.usual(5)


def test_two_of_five_high_intervals_are_too_few() -> None:
    traffic = after_an_hour()
    assert traffic.action_of(400) is Action.MONITOR
    traffic.usual(3)
    assert traffic.action_of(400) is Action.MONITOR


def test_intervals_without_requests_count_among_the_last_five() -> None:
    traffic = after_an_hour()
    for _ in range(3):
        assert traffic.action_of(400) is Action.MONITOR
        for _ in range(3):
            assert traffic.minute({}) == []


def test_the_score_of_a_flood_is_not_bounded_by_the_size_of_the_sample() -> None:
    """Among 10 values of which it is one, none lies more than 2.85 standard deviations away."""
    traffic = Traffic()
    traffic.usual(10)
    (anomaly,) = traffic.minute({"a": 400})
    assert anomaly.score > 10


def test_an_attack_does_not_become_usual() -> None:
    traffic = after_an_hour()
    first = traffic.minute({"a": 400})[0]
    for _ in range(600):
        last = traffic.minute({"a": 400})[0]
    assert last.usual == first.usual
    assert last.action is Action.BLOCK


def test_a_client_that_has_grown_for_good_becomes_usual_after_a_day() -> None:
    traffic = after_an_hour(half_life=HOUR)
    day = 24 * 60
    assert all(traffic.action_of(90) is not Action.ALLOW for _ in range(day))
    for _ in range(6 * 60):
        traffic.minute({"a": 90})
    assert traffic.action_of(90) is Action.ALLOW


def test_what_an_operator_accepts_passes_for_a_day_without_becoming_usual() -> None:
    traffic = after_an_hour()
    for _ in range(5):
        traffic.action_of(400)
    assert traffic.detector.accept("a")
    assert {traffic.action_of(400) for _ in range(60)} == {Action.ALLOW}
    assert traffic.action_of(590) is Action.ALLOW, "half as much again is accepted"
    assert traffic.action_of(900) is Action.BLOCK, "more is not"
    traffic.usual(24 * 60)
    assert [traffic.action_of(400) for _ in range(3)][-1] is Action.BLOCK, "it ended, and is back"
    assert not traffic.detector.accept("unknown")


def test_what_an_operator_accepts_is_usual_once_it_has_lasted_a_day() -> None:
    traffic = after_an_hour()
    for _ in range(5):
        traffic.action_of(400)
    traffic.detector.accept("a")
    assert max(traffic.action_of(400) for _ in range(26 * 60)) <= Action.MONITOR


@pytest.mark.parametrize("mean", [2, 8, 30, 120, 500])
def test_poisson_counts_of_any_size_raise_few_alarms(mean: int) -> None:
    traffic = Traffic(seed=mean, least=1)
    traffic.usual(60, mean)
    actions = Counter(each.action for each in traffic.usual(3000, mean))
    # Of a normal distribution 2.3 % lie above 2 deviations, and 0.13 % above 3.
    assert actions[Action.MONITOR] < 150
    assert actions[Action.THROTTLE] == actions[Action.BLOCK] == 0


def test_a_caller_whose_counts_vary_much_may_vary_much() -> None:
    steady, wild = Traffic(), Traffic()
    steady.usual(120, 30)
    for count in [5, 60] * 60:
        wild.minute({"a": count})
    assert steady.action_of(60) is Action.MONITOR
    assert wild.action_of(60) is Action.ALLOW


def test_counts_below_the_least_are_never_anomalies() -> None:
    traffic = Traffic(least=50)
    traffic.usual(60, 2)
    assert traffic.action_of(49) is Action.ALLOW
    assert traffic.action_of(50) is Action.MONITOR


def crowd(count: int, callers: int = 40) -> dict[str, int]:
    return {f"peer {i}": count + i % 5 for i in range(callers)}


def test_a_new_caller_is_judged_by_its_peers() -> None:
    traffic = Traffic(others=0)
    traffic.minute(crowd(10))
    found = traffic.minute({**crowd(10), "new": 60})
    assert [(each.caller, each.action) for each in found] == [("new", Action.MONITOR)]
    assert "being new" in found[0].reason


def test_a_new_caller_that_floods_is_throttled_and_never_blocked() -> None:
    traffic = Traffic()
    for _ in range(10):
        traffic.minute(crowd(10))
    actions = [traffic.action_of(5000) for _ in range(6)]
    assert actions[:2] == [Action.MONITOR] * 2
    assert set(actions[2:]) == {Action.THROTTLE}


def test_a_steady_caller_far_above_its_peers_is_not_throttled_after_a_start() -> None:
    """The detector has seen nobody yet: all callers are new to it, and few of them are."""
    traffic = Traffic()
    for _ in range(60):
        counts = {**crowd(10), "large": traffic.poisson(600)}
        found = traffic.minute(counts)
        assert {each.action for each in found} <= {Action.MONITOR}
    assert traffic.action_of(3000, "large") is Action.MONITOR
    assert traffic.action_of(3000, "large") is Action.MONITOR
    assert traffic.action_of(3000, "large") is Action.BLOCK, "its own past counts"


def test_made_up_callers_do_not_get_a_steady_one_throttled() -> None:
    """Beyond the capacity callers are forgotten. One who is back then must not seem new."""
    traffic = Traffic(capacity=1000)
    large = {f"large {i}": 300 for i in range(20)}
    for _ in range(30):
        traffic.minute(large)
    for minute in range(20):
        found = traffic.minute({**large, **{f"{minute} {i}": 1 for i in range(2000)}})
        assert {each.action for each in found} <= {Action.MONITOR}
        assert len(traffic.detector) == 1000
    assert traffic.detector._callers["large 0"].baseline.samples == 50, "it was never forgotten"


def test_active_callers_beyond_the_capacity_are_not_throttled_as_new_ones() -> None:
    traffic = Traffic(capacity=100)
    small = {f"small {i}": 2 for i in range(150)}
    for _ in range(60):
        found = traffic.minute({"large": 300, **small})
        assert {each.action for each in found} <= {Action.MONITOR}


def test_callers_become_known_while_as_many_as_there_is_room_for_are_known() -> None:
    traffic = Traffic(others=0, capacity=100)
    for _ in range(20):
        traffic.minute({f"former {i}": 30 for i in range(100)})
    for minute in range(20):
        traffic.minute({"later": 15, **{f"{minute} {i}": 1 for i in range(200)}})
    assert traffic.detector._callers["later"].baseline.samples >= 15


def test_a_rise_to_what_peers_have_is_only_monitored() -> None:
    traffic = Traffic()
    for _ in range(60):
        traffic.minute({**crowd(100), "small": 20})
    for _ in range(5):
        (anomaly,) = traffic.minute({**crowd(100), "small": 90})
        assert anomaly.action is Action.MONITOR
        assert "its peers have as many" in anomaly.reason


def test_peers_are_those_of_the_same_tier() -> None:
    tiers = {**{f"peer {i}": "free" for i in range(40)}, "new": "enterprise"}
    traffic = Traffic()
    traffic.minute(crowd(10), tiers=tiers)
    assert traffic.minute({"new": 500}, tiers=tiers) == [], "its tier has no counts yet"
    tiers["other"] = "free"
    (anomaly,) = traffic.minute({"other": 500}, tiers=tiers)
    assert "the tier free" in anomaly.reason


def test_few_callers_with_huge_counts_do_not_hide_each_other() -> None:
    traffic = Traffic()
    for _ in range(3):
        traffic.minute({**crowd(10), **{f"bot {i}": 5000 for i in range(10)}})
    assert traffic.action_of(5000, "another") is not Action.ALLOW


def test_the_hour_of_the_week_counts_from_the_third_week_on() -> None:
    detector = AnomalyDetector(interval=HOUR, half_life=24 * HOUR, least=1)

    def week_of(number: int) -> list[float]:
        """When anomalies were: Tuesdays at 9 there are ten times as many requests."""
        found = []
        for hour in range(7 * 24):
            at = START + number * WEEK + hour * HOUR
            found += detector.judge({"a": 1000 if hour == 33 else 100}, at)
        return [(each.at - START) % WEEK / HOUR for each in found]

    assert week_of(0) == week_of(1) == week_of(2) == [33.0]
    assert week_of(3) == week_of(4) == []
    found = detector.judge({"a": 1000}, START + 5 * WEEK + 34 * HOUR)
    assert len(found) == 1, "at another hour it is unusual"


def test_callers_seen_longest_ago_are_forgotten_first() -> None:
    traffic = Traffic(others=0, capacity=10)
    for i in range(30):
        traffic.minute({f"caller {i}": 1})
    assert len(traffic.detector) == 10
    assert traffic.detector.forgotten == 20
    assert traffic.detector.forget("caller 29")
    assert not traffic.detector.forget("caller 0")


def test_an_anomalous_caller_is_not_forgotten_for_new_ones() -> None:
    traffic = after_an_hour(capacity=40)
    for i in range(4):
        traffic.minute({"a": 400, **{f"new {i} {j}": 1 for j in range(30)}})
        traffic.minute({f"newer {i} {j}": 1 for j in range(30)})
    assert traffic.action_of(400) is Action.BLOCK
    assert len(traffic.detector) <= 40


def test_anomalies_say_why_and_the_highest_score_comes_first() -> None:
    traffic = Traffic()
    for _ in range(60):
        traffic.minute({"a": 30, "b": 30})
    found = traffic.minute({"a": 100, "b": 200})
    assert [each.caller for each in found] == ["b", "a"]
    assert found[0].reason.startswith("200 requests in 60 s, 30 are usual of its own past")
    assert found[0].requests == 200
    assert found[0].usual == pytest.approx(30, abs=0.5)
    assert found[0].at == START + 60 * MINUTE


def test_actions_have_an_order() -> None:
    assert Action.ALLOW < Action.MONITOR < Action.THROTTLE < Action.BLOCK
    assert Action.BLOCK >= Action.THROTTLE
    assert max([Action.MONITOR, Action.BLOCK, Action.ALLOW]) is Action.BLOCK


def test_intervals_come_in_order() -> None:
    traffic = Traffic()
    traffic.minute({"a": 1})
    with pytest.raises(ConfigurationError, match=r"expected 1696204860\.0 or later"):
        traffic.detector.judge({"a": 1}, START + 59)


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2**53)), max_size=40))
def test_any_counts_give_finite_scores_and_a_bounded_memory(rounds: list[dict[str, int]]) -> None:
    traffic = Traffic(others=0, capacity=3, warm_up=1, least=1)
    for counts in rounds:
        for anomaly in traffic.minute(counts):
            assert math.isfinite(anomaly.score)
            assert anomaly.score > 2
            assert anomaly.usual >= 0
            assert anomaly.requests == counts[anomaly.caller]
        assert len(traffic.detector) <= 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"interval": 0}, "interval is 0; expected seconds above 0"),
        ({"half_life": math.inf}, "half_life is inf; expected seconds above 0"),
        ({"relearn": True}, "relearn is True; expected seconds"),
        ({"k": 6}, "k is 6 and m is 5; expected k <= m <= 32"),
        ({"m": 33, "k": 1}, "k is 1 and m is 33; expected k <= m <= 32"),
        ({"warm_up": 0}, "warm_up is 0; expected 1 or more"),
        ({"least": 1.5}, "least is 1.5; expected an int"),
        ({"crowd_share": 0.0}, "crowd_share is 0.0; expected a share above 0, at most 1"),
        ({"monitor": 4.0}, "monitor=4.0, throttle=3.0 and block=10.0; expected 0 < monitor"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TidegateError) as caught:
        AnomalyDetector(**options)
    assert said in str(caught.value)


def test_what_was_learned_survives_a_restart_in_a_flood() -> None:
    """Without it, the flood would become the past of its caller."""
    traffic = after_an_hour()
    assert [traffic.action_of(400) for _ in range(3)][-1] is Action.BLOCK
    restarted = Traffic()
    restarted.detector.restore(traffic.detector.state())
    restarted.now = traffic.now + 60
    assert restarted.action_of(400) is Action.BLOCK, "in the first interval after the restart"
    assert restarted.action_of(30) is Action.ALLOW


def test_a_restored_detector_judges_like_the_one_that_went_on() -> None:
    traffic = Traffic(interval=HOUR, least=1, half_life=DAY)
    for hour in range(9 * 24):
        traffic.minute({"a": 100 + hour % 24, "b": 40}, tiers={"b": "free"})
    restarted = Traffic(interval=HOUR, least=1, half_life=DAY)
    restarted.detector.restore(traffic.detector.state())
    restarted.now = traffic.now
    for counts in ({"a": 300, "b": 900}, {"a": 110, "new": 5000}, {"a": 300, "b": 900}):
        found = restarted.minute(counts, tiers={"b": "free"})
        assert found == traffic.minute(counts, tiers={"b": "free"})
        assert found
    assert restarted.detector.state() == traffic.detector.state()


def test_a_state_that_cannot_be_read_changes_nothing() -> None:
    other = Traffic(interval=300)
    other.usual(3)
    fewer = zlib.compress(json.dumps({"format": 1, "interval": 60.0}).encode())
    traffic = Traffic()
    traffic.usual(3)
    before = traffic.detector.state()
    for state in (b"", b"abc", before[:-20], other.detector.state(), fewer):
        with pytest.raises(ConfigurationError, match="the state of anomaly detection is not read"):
            traffic.detector.restore(state)
    assert traffic.detector.state() == before


def test_other_threads_may_run_for_each_caller() -> None:
    pauses = []
    detector = AnomalyDetector(pause=lambda: pauses.append(1))
    counts = {f"user:{i}": 1 for i in range(100)}
    detector.judge(counts, START)
    assert len(pauses) >= len(counts)
    before = len(pauses)
    state = detector.state()
    assert len(pauses) >= before + len(counts)
    other = AnomalyDetector()
    other.restore(state)
    assert (len(other), other.state()) == (100, state)
