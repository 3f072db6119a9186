"""What all callers do together accuses nobody, and what one of them does is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from crowds import DAY, HOUR, Crowd, daily, ramp, steady, weekly
from tidegate.anomaly import Action


def rates_of(callers: int, spread: float = 0.7, seed: int = 1) -> Any:
    """Rates of about 20 a minute; a spread of 0.7 puts one caller in twenty above 63."""
    return np.random.default_rng(seed).lognormal(3, spread, callers)


@pytest.mark.parametrize("callers", [3, 8, 30, 100])
def test_a_morning_accuses_nobody(callers: int) -> None:
    crowd = Crowd([30] * callers)
    crowd.run(2 * HOUR, steady)
    crowd.run(2 * HOUR, ramp(crowd.now, crowd.now + 2 * HOUR, 6))
    crowd.run(2 * HOUR, lambda now: 6.0)
    assert crowd.penalties == {}


def test_a_morning_of_thousands_with_mixed_rates_accuses_nobody() -> None:
    crowd = Crowd(rates_of(3000), interval=600)
    crowd.run(2 * HOUR, steady)
    crowd.run(2 * HOUR, ramp(crowd.now, crowd.now + 2 * HOUR, 6))
    crowd.run(HOUR, lambda now: 6.0)
    assert crowd.penalties == {}


@pytest.mark.parametrize(
    ("callers", "interval"), [(3, 300), (8, 1800), (30, 1800), (50, 1800), (100, 1800)]
)
def test_four_weeks_with_newsletters_and_launches_accuse_nobody(
    callers: int, interval: float
) -> None:
    crowd = Crowd(rates_of(callers, spread=1.0), interval=interval)
    readers = np.where(np.arange(callers) < callers // 10, 8.0, 1.0)
    factors = np.random.default_rng(2).lognormal(np.log(10), 0.5, callers)

    def course(now: float) -> Any:
        day, hour = now // DAY, now % DAY / HOUR
        rate = weekly(now) * np.ones(callers)
        if day % 7 == 2 and 10 <= hour < 14:
            rate = rate * (1 + (readers - 1) * np.exp(-(hour - 10) * 2))
        if day % 14 == 9 and 12 <= hour < 18:
            ebb = np.exp(-max(hour - 12.17, 0))
            rate = rate * (1 + (factors - 1) * min((hour - 12) * 6, 1) * ebb)
        return rate

    crowd.run(28 * DAY, course)
    assert crowd.penalties == {}


def test_three_hundred_callers_that_grow_fourfold_accuse_nobody() -> None:
    crowd = Crowd(rates_of(300), interval=300)
    crowd.run(2 * HOUR, steady)
    crowd.run(3 * HOUR, ramp(crowd.now, crowd.now + 3 * HOUR, 4))
    crowd.run(2 * HOUR, lambda now: 4.0)
    assert crowd.penalties == {}


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_a_launch_accuses_nobody_however_much_callers_differ(spread: float) -> None:
    """Ten times as many requests in ten minutes; each caller has its own factor."""
    crowd = Crowd(rates_of(100))
    crowd.run(HOUR, steady)
    factors = np.random.default_rng(2).lognormal(np.log(10), spread, 100)
    begin = crowd.now

    def launch(now: float) -> Any:
        passed = now - begin
        return 1 + (factors - 1) * min(passed / 600, 1) * np.exp(-max(passed - 600, 0) / 3600)

    crowd.run(2 * HOUR, launch)
    assert crowd.penalties == {}


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("minutes", [1, 10])
def test_a_newsletter_to_some_callers_accuses_none_of_them(share: float, minutes: int) -> None:
    """The others' counts do not change, so that the median of all does not."""
    crowd = Crowd(rates_of(100))
    crowd.run(HOUR, steady)
    factors = np.where(np.arange(100) < share * 100, 8.0, 1.0)
    begin = crowd.now

    def newsletter(now: float) -> Any:
        passed = (now - begin) / 60
        ebb = np.exp(-max(passed - minutes, 0) / 30)
        return 1 + (factors - 1) * min(passed / minutes, 1) * ebb

    crowd.run(2 * HOUR, newsletter)
    assert crowd.penalties == {}


def test_four_weeks_with_mondays_accuse_nobody() -> None:
    crowd = Crowd(rates_of(30, spread=1.0), interval=1800)
    crowd.run(28 * DAY, weekly)
    assert crowd.penalties == {}


@pytest.mark.parametrize("factor", [5, 25])
@pytest.mark.parametrize("busy", [False, True])
def test_a_flood_in_one_name_is_blocked_in_the_third_interval(factor: int, busy: bool) -> None:
    """Also while the day's traffic rises."""
    crowd = Crowd([30] * 40)
    course = daily if busy else steady
    crowd.now = 8 * HOUR if busy else 0.0
    crowd.run(2 * HOUR, course)
    more = int(30 * (factor - 1) * (daily(crowd.now) if busy else 1))
    found = crowd.run(0.5 * HOUR, course, lambda now: {"user:0": more})
    assert found == {"user:0": (Action.BLOCK, 3.0)}
    assert crowd.penalties == {}


def test_a_flood_in_a_few_names_is_blocked_and_one_in_many_is_taken_for_a_crowd() -> None:
    for names, action in ((4, Action.BLOCK), (30, Action.MONITOR)):
        crowd = Crowd([30] * 100)
        crowd.run(HOUR, steady)
        flood = {f"user:{i}": 24 * 30 for i in range(names)}
        found = crowd.run(0.5 * HOUR, steady, lambda now, flood=flood: flood)  # type: ignore[misc]
        assert {each for each, _ in found.values()} == {action}
        assert crowd.penalties == {}


@pytest.mark.parametrize(
    ("callers", "outcome"), [(1000, (Action.MONITOR, 1.0)), (3000, (Action.BLOCK, 3.0))]
)
def test_a_flood_in_a_hundred_names_is_blocked_among_thousands(callers: int, outcome: Any) -> None:
    crowd = Crowd([30] * callers)
    crowd.run(0.5 * HOUR, steady)
    flood = {f"user:{i}": 4 * 30 for i in range(100)}
    found = crowd.run(0.2 * HOUR, steady, lambda now: flood)
    assert set(found.values()) == {outcome}
    assert len(found) == 100
    assert crowd.penalties == {}


def test_slow_training_ends_at_a_multiple_of_the_first_rate() -> None:
    """10 % more each hour: without the anchor the caller reached any rate unseen."""
    crowd = Crowd([30] * 30, interval=300)
    crowd.run(DAY, steady)
    begin = crowd.now
    found = crowd.run(
        36 * HOUR, steady, lambda now: {"user:0": int(150 * (1.1 ** ((now - begin) // HOUR) - 1))}
    )
    action, intervals = found["user:0"]
    assert action is Action.BLOCK
    assert 1.1 ** (intervals / 12) < 10
    assert crowd.penalties == {}


def test_a_caller_that_is_busy_while_the_others_sleep_is_not_accused() -> None:
    crowd = Crowd([40] * 30, interval=300)
    crowd.run(DAY, lambda now: np.where(np.arange(30) < 1, 1.0, daily(now)))
    assert crowd.penalties == {}


def test_invented_names_do_not_move_the_crowd() -> None:
    crowd = Crowd([30] * 40)
    crowd.run(HOUR, steady)
    invented = {f"user:new {i}": 1 for i in range(200)}
    found = crowd.run(0.5 * HOUR, steady, lambda now: {"user:0": 720, **invented})
    assert found["user:0"] == (Action.BLOCK, 3.0)
    assert crowd.penalties == {}
