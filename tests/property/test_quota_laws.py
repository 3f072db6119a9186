"""Quotas: the laws, and the same answers as a plain model."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import tidegate
from hypothesis import given, settings
from hypothesis import strategies as st
from quota_calls import check, random_calls, random_terms
from quota_model import SECOND, Terms
from tidegate.quotas import Quota, Rollover

START = 1_700_000_000


@pytest.mark.parametrize("seed", range(60))
def test_memory_answers_as_the_model(seed: int) -> None:
    rng = random.Random(seed)
    terms = random_terms(rng)
    limit = rng.choice([1, 7, 100, 10_000])
    start = rng.choice([0, START, rng.randrange(2 * 10**9)])
    check("memory://", terms, limit, start, random_calls(rng, terms, limit, 60))


@pytest.mark.parametrize("seed", range(30))
def test_shared_memory_answers_as_the_model(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    terms = random_terms(rng)
    limit = rng.choice([1, 100, 2**48 - 1])
    start = rng.choice([0, START, rng.randrange(2 * 10**9)])
    uri = f"shm://{tmp_path}/table?capacity=5000"
    check(uri, terms, limit, start, random_calls(rng, terms, limit, 60))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**63))
def test_memory_answers_as_the_model_for_any_seed(seed: int) -> None:
    rng = random.Random(seed)
    terms = random_terms(rng)
    check("memory://", terms, 50, rng.randrange(2 * 10**9), random_calls(rng, terms, 50, 15))


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


def limiter_at(text: str, quota: Quota) -> tuple[tidegate.Limiter, tidegate.ManualClock]:
    clock = tidegate.ManualClock(at(text))
    return tidegate.Limiter(quota, clock=clock), clock


@given(
    unused=st.integers(0, 100),
    missed=st.integers(1, 30),
    periods=st.integers(1, 12),
    cap=st.integers(1, 150),
)
@settings(max_examples=100, deadline=None)
def test_a_roll_over_missed_periods_equals_single_rolls(
    unused: int, missed: int, periods: int, cap: int
) -> None:
    quota = Quota(100, rollover=Rollover(cap, periods=periods), id="q")
    states = []
    for looks in (False, True):
        limiter, clock = limiter_at("2024-01-10", quota)
        limiter.hit("k", max(1, 100 - unused))
        # A refund leaves the units, and writes the state: a single roll.
        for month in range(1, missed + 1):
            clock.set_ns(at(f"{2024 + month // 12}-{month % 12 + 1:02}-10"))
            if looks and month < missed and month % 13 != 0:
                assert limiter.hit("k", 1)
                limiter.refund("k", 1)
        states.append(limiter.quota_status("k"))
    if missed < 12:  # then a key that is not used is as a new one
        assert states[0] == states[1]


@given(costs=st.lists(st.integers(1, 60), min_size=1, max_size=200), step=st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_never_more_passes_than_was_granted(costs: list[int], step: int) -> None:
    limiter, clock = limiter_at("2024-01-01", Quota(100, rollover=Rollover(40, periods=2)))
    passed: dict[tuple[int, int], int] = {}
    for cost in costs:
        if limiter.hit("k", cost):
            now = datetime.fromtimestamp(clock.now_ns() / 1e9, timezone.utc)
            month = (now.year, now.month)
            passed[month] = passed.get(month, 0) + cost
        clock.advance(step * 86_400 / 4)
    months = sorted(passed)
    for month in months:
        assert passed[month] <= 100 + 2 * 40
    # Over all, what was granted and could be carried.
    assert sum(passed.values()) <= 100 * len(months) + 2 * 40 + 100


@pytest.mark.parametrize(
    ("now", "resets"),
    [
        ("2024-01-31", "2024-02-29"),
        ("2024-02-29", "2024-03-31"),
        ("2023-02-27", "2023-02-28"),
        ("2023-02-28", "2023-03-31"),
        ("2023-04-29T23:59:59", "2023-04-30"),
        ("2023-04-30", "2023-05-31"),
    ],
)
def test_an_anchor_beyond_a_month_is_its_last_day_and_comes_back(now: str, resets: str) -> None:
    limiter, _ = limiter_at(now, Quota(10, anchor_day=31))
    assert limiter.quota_status("k").resets_at == datetime.fromisoformat(resets).replace(
        tzinfo=timezone.utc
    )


@pytest.mark.parametrize(
    ("zone", "day", "midnight"),
    [
        ("Europe/Berlin", "2024-04-01", "2024-03-31T22:00:00"),  # summer time since the day before
        ("Europe/Berlin", "2024-11-01", "2024-10-31T23:00:00"),
        ("America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00:00"),  # no midnight
        ("America/Havana", "2023-11-05", "2023-11-05T04:00:00"),  # midnight twice: the first
        ("Africa/Cairo", "2024-04-26", "2024-04-25T22:00:00"),  # no midnight
        ("Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00"),  # a day that did not exist
    ],
)
def test_a_period_begins_at_local_midnight_or_the_first_instant_after(
    zone: str, day: str, midnight: str
) -> None:
    edge = datetime.fromisoformat(midnight).replace(tzinfo=timezone.utc)
    anchor = int(day[-2:])
    before = (edge - timedelta(seconds=1)).isoformat()[:19]
    limiter, clock = limiter_at(before, Quota(10, anchor_day=anchor, tz=zone))
    limiter.hit("k", 10)
    assert limiter.quota_status("k").resets_at == edge
    assert not limiter.hit("k")
    clock.advance_ns(SECOND - 1)
    assert not limiter.hit("k")
    clock.advance_ns(1)
    assert limiter.hit("k")


def test_the_units_that_expire_first_are_spent_first() -> None:
    limiter, clock = limiter_at("2024-01-10", Quota(100, rollover=Rollover(50, periods=2)))
    limiter.hit("k", 70)
    clock.set_ns(at("2024-02-10"))
    limiter.hit("k", 1)
    clock.set_ns(at("2024-03-10"))
    limiter.top_up("k", 5, expires_at=at("2024-03-20") // SECOND)
    limiter.top_up("k", 6, priority=1)
    limiter.top_up("k", 7, priority=-1)
    kinds = [(g.kind, g.units, g.priority) for g in limiter.quota_status("k").grants]
    assert kinds == [
        ("top-up", 7, -1),
        ("top-up", 5, 0),
        ("carried", 30, 0),  # of January: February spent of its own units, which expired first
        ("base", 100, 0),
        ("carried", 50, 0),  # of February: they last until the end of April
        ("top-up", 6, 1),
    ]
    limiter.hit("k", 7 + 5 + 30 + 1)
    left = [g.left for g in limiter.quota_status("k").grants]
    assert left == [0, 0, 0, 99, 50, 6]
    limiter.refund("k", 3)
    assert [g.left for g in limiter.quota_status("k").grants] == [0, 0, 2, 100, 50, 6]


def test_an_upgrade_adds_its_share_of_the_rest_at_once_and_a_downgrade_waits() -> None:
    clock = tidegate.ManualClock(at("2024-04-01"))
    small, large = Quota(100, id="q"), Quota(400, id="q")
    limiter = tidegate.Limiter(small, clock=clock)
    assert limiter.hit("k", 100)
    clock.set_ns(at("2024-04-16"))  # half of April is left
    upgraded = tidegate.Limiter(large, storage=limiter.storage, clock=clock)
    assert upgraded.quota_status("k").available == 150
    assert upgraded.hit("k", 100)
    assert limiter.quota_status("k").available == 50  # after a downgrade
    assert upgraded.quota_status("k").available == 50  # which does not add it again
    clock.set_ns(at("2024-05-01"))
    assert limiter.quota_status("k").available == 100
    assert upgraded.quota_status("k").available == 400


def test_the_first_period_may_be_prorated() -> None:
    limiter, clock = limiter_at("2024-04-16", Quota(100, first_period="prorated"))
    assert limiter.quota_status("k").available == 50
    assert limiter.hit("k", 50)
    clock.set_ns(at("2024-05-01"))
    assert limiter.quota_status("k").available == 100


def test_a_refused_call_passes_when_it_was_told_to() -> None:
    limiter, clock = limiter_at("2024-01-10", Quota(100, rollover=50))
    assert limiter.hit("k", 100)
    for cost in (1, 100, 150):
        decision = limiter.peek("k", cost)
        assert not decision
        later = tidegate.Limiter(limiter.limits, storage=limiter.storage, clock=clock)
        now = clock.now_ns()
        clock.advance_ns(round(decision.retry_after * 1e9) - 1)
        assert not later.peek("k", cost)
        clock.advance_ns(1)
        assert later.peek("k", cost)
        clock.set_ns(now)
    assert limiter.peek("k", 151).retry_after == float("inf")


@pytest.mark.parametrize("days_back", [1, 40, 400])
def test_a_clock_that_goes_back_grants_nothing_and_locks_nobody_out(days_back: int) -> None:
    limiter, clock = limiter_at("2024-06-10", Quota(100, rollover=50))
    assert limiter.hit("k", 90)
    clock.advance(-86_400 * days_back)
    assert not limiter.hit("k", 11)
    assert limiter.hit("k", 10)
    wait = limiter.peek("k").retry_after
    assert wait <= 31 * 86_400
    clock.advance(wait)
    assert limiter.hit("k", 100)


def test_quotas_are_part_of_a_plan() -> None:
    limiter, clock = limiter_at("2024-01-10", Quota(100, name="monthly"))
    both = tidegate.Limiter(
        [Quota(100, name="monthly"), "5/minute"], storage=limiter.storage, clock=clock
    )
    assert both.hit("k", 5)
    refused = both.hit("k", 5)
    assert refused.rule == "5/minute"
    assert both.quota_status("k").used == 5
    assert limiter.hit("k", 95)
    clock.advance(60)
    refused = both.hit("k")
    assert refused.rule == "monthly"
    clock.advance(86_400 * 31)
    assert both.hit("k", 5)


def test_terms_say_what_the_model_says() -> None:
    terms = Terms("quarter", 31, 2, "Europe/Berlin", 5, 20, 3, True)
    text = terms.text(10)
    assert str(tidegate.Limit(text)) == text
