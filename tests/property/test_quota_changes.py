"""Upgrades, downgrades and resets of quotas: whose units, and from which instant on."""

from __future__ import annotations

import dataclasses
import random
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import tidegate
from quota_calls import check, four_weeks, random_terms
from quota_model import SECOND
from tidegate.quotas import Quota, Rollover

JANUARY = datetime(2024, 1, 10, tzinfo=timezone.utc)
MARCH = datetime(2024, 3, 10, tzinfo=timezone.utc)
APRIL = datetime(2024, 4, 1, tzinfo=timezone.utc)
HALF_OF_APRIL = datetime(2024, 4, 16, tzinfo=timezone.utc)
LATER_IN_APRIL = datetime(2024, 4, 25, 12, tzinfo=timezone.utc)
MAY = datetime(2024, 5, 10, tzinfo=timezone.utc)
RULES = "rules: [{id: api, by: user, limits: {free: quota %s, premium: quota 40000/month}}]"


@pytest.fixture(params=["memory", "shm"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"shm://{tmp_path}/table?capacity=5000"


class Timeline:
    """Limiters of one store and one clock."""

    def __init__(self, storage: Any) -> None:
        self.clock = tidegate.ManualClock()
        self.storage: Any = storage

    def at(self, instant: datetime) -> None:
        self.clock.set_ns(int(instant.timestamp()) * SECOND)

    def limiter(self, limit: int, **terms: Any) -> tidegate.Limiter:
        made = tidegate.Limiter(
            Quota(limit, id="plan", **terms), storage=self.storage, clock=self.clock
        )
        self.storage = made.storage
        return made


@pytest.mark.parametrize("seed", range(40))
def test_four_weeks_of_changes_go_as_in_the_model(storage: str, seed: int) -> None:
    rng = random.Random(seed)
    terms = dataclasses.replace(
        random_terms(rng), period=rng.choice(["day", "week", "month"]), anchor_month=1, anchor_day=1
    )
    limit = rng.choice([7, 100, 10_000])
    start = rng.randrange(2 * 10**9)
    check(storage, terms, limit, start, four_weeks(rng, limit))


def test_an_upgrade_counts_from_its_instant_for_a_key_without_a_call(storage: str) -> None:
    timeline = Timeline(storage)
    timeline.at(LATER_IN_APRIL)
    premium = timeline.limiter(40_000, was=[(10_000, HALF_OF_APRIL)])
    assert premium.quota_status("new").available == 25_000
    assert premium.hit("new", 25_000)
    assert not premium.hit("new")
    timeline.at(MAY)
    assert premium.quota_status("new").available == 40_000


def test_a_planned_upgrade_adds_its_share_when_it_comes(storage: str) -> None:
    timeline = Timeline(storage)
    timeline.at(APRIL)
    limiter = timeline.limiter(40_000, was=[(10_000, HALF_OF_APRIL)])
    assert limiter.hit("k", 10_000)
    refused = limiter.hit("k", 15_000)
    assert not refused
    assert refused.retry_after == (HALF_OF_APRIL - APRIL).total_seconds()
    timeline.at(HALF_OF_APRIL)
    assert limiter.hit("k", 15_000)


def test_the_count_of_the_last_call_is_that_of_the_periods_missed_since(storage: str) -> None:
    timeline = Timeline(storage)
    timeline.at(JANUARY)
    terms: Any = {"rollover": Rollover(percent=100)}
    free, paid = timeline.limiter(50, **terms), timeline.limiter(20_000, **terms)
    assert free.hit("upgraded", 1)
    assert paid.hit("downgraded", 1)
    timeline.at(MARCH)
    assert paid.quota_status("upgraded").carried == 50
    assert free.quota_status("downgraded").carried == 20_000
    assert free.quota_status("downgraded").base == 50


def test_the_count_of_a_missed_period_is_the_one_that_was_recorded(storage: str) -> None:
    timeline = Timeline(storage)
    timeline.at(JANUARY)
    terms: Any = {"rollover": Rollover(percent=100, periods=3)}
    assert timeline.limiter(100, **terms).hit("k", 60)
    timeline.at(LATER_IN_APRIL)
    was = [(100, datetime(2024, 2, 1, tzinfo=timezone.utc)), (300, HALF_OF_APRIL)]
    later = timeline.limiter(900, was=was, **terms)
    status = later.quota_status("k")
    assert [(grant.kind, grant.units) for grant in status.grants] == [
        ("carried", 40),  # of January
        ("base", 300 + 600 // 2),
        ("carried", 300),  # of February
        ("carried", 300),
    ]


def test_an_upgrade_that_nothing_records_counts_from_the_next_call(storage: str) -> None:
    timeline = Timeline(storage)
    terms: Any = {"rollover": Rollover(1)}
    timeline.at(MARCH)
    free, premium = timeline.limiter(10_000, **terms), timeline.limiter(40_000, **terms)
    assert free.hit("k", 10_000)
    timeline.at(HALF_OF_APRIL)
    assert premium.hit("k")
    assert premium.quota_status("k").base == 25_000
    timeline.at(MAY)
    assert premium.quota_status("k").base == 40_000


def test_a_change_of_one_key_is_recorded_at_its_instant(storage: str) -> None:
    timeline = Timeline(storage)
    timeline.at(HALF_OF_APRIL)
    free, premium = timeline.limiter(10_000), timeline.limiter(40_000)
    for key, before, after in (("up", free, premium), ("down", premium, free)):
        before.bring_forward(key)
        after.bring_forward(key)
    timeline.at(LATER_IN_APRIL)
    assert premium.quota_status("up").available == 25_000
    assert free.quota_status("down").available == 40_000
    assert premium.quota_status("other").available == 40_000
    timeline.at(MAY)
    assert premium.quota_status("up").available == 40_000
    assert free.quota_status("down").available == 10_000


def rules_of(free: str) -> tidegate.RuleSet:
    return tidegate.RuleSet.parse(RULES % free)


def test_a_change_of_the_rules_is_recorded_when_they_are_used(storage: str) -> None:
    clock = tidegate.ManualClock(int(APRIL.timestamp()) * SECOND)
    limiter: Any = tidegate.Limiter(rules=rules_of("10000/month"), storage=storage, clock=clock)
    clock.set_ns(int(HALF_OF_APRIL.timestamp()) * SECOND)
    limiter.use(rules_of("40000/month"))
    clock.set_ns(int(LATER_IN_APRIL.timestamp()) * SECOND)
    limiter.use(rules_of("40000/month"))  # as a change elsewhere in the rules does
    free, premium = (limiter.quota_status(user="1", tier=tier) for tier in ("free", "premium"))
    assert free["api"].available == 25_000
    assert premium["api"].available == 40_000
    assert limiter.check(user="1", tier="free", cost=25_000)
    assert not limiter.check(user="1", tier="free")
    clock.set_ns(int(MAY.timestamp()) * SECOND)
    assert limiter.quota_status(user="1", tier="free")["api"].available == 40_000


def test_rules_say_since_when_a_quota_is_what_it_is(storage: str) -> None:
    clock = tidegate.ManualClock(int(LATER_IN_APRIL.timestamp()) * SECOND)
    rules = rules_of("40000/month was 10000 until 2024-04-16T02:00:00+02:00")
    limiter: Any = tidegate.Limiter(rules=rules, storage=storage, clock=clock)
    assert limiter.quota_status(user="1", tier="free")["api"].available == 25_000


def test_a_tier_that_changes_is_recorded_at_its_instant(storage: str) -> None:
    clock = tidegate.ManualClock(int(HALF_OF_APRIL.timestamp()) * SECOND)
    limiter: Any = tidegate.Limiter(rules=rules_of("10000/month"), storage=storage, clock=clock)
    limiter.bring_forward(user="1", tier="free")
    limiter.bring_forward(user="1", tier="premium")
    clock.set_ns(int(LATER_IN_APRIL.timestamp()) * SECOND)
    assert limiter.quota_status(user="1", tier="premium")["api"].available == 25_000


def test_a_reset_leaves_what_was_bought_and_carried(storage: str) -> None:
    timeline = Timeline(storage)
    timeline.at(MARCH)
    limiter = timeline.limiter(100, rollover=50)
    assert limiter.hit("k", 50)
    timeline.at(HALF_OF_APRIL)
    limiter.top_up("k", 5_000)
    assert limiter.hit("k", 50 + 100 + 3)
    limiter.reset("k")
    status = limiter.quota_status("k")
    assert [(grant.kind, grant.units, grant.left) for grant in status.grants] == [
        ("base", 100, 100),
        ("top-up", 4_997, 4_997),
    ]
    assert (status.available, status.used) == (5_097, 0)
    assert limiter.hit("k", 100)
    limiter.refund("k", 200)  # gives back what was used since, and nothing that was spent before
    assert limiter.quota_status("k").available == 5_097
    limiter.forget("k")
    assert limiter.quota_status("k").available == 100


def test_a_reset_of_a_request_leaves_what_was_bought(storage: str) -> None:
    clock = tidegate.ManualClock(int(APRIL.timestamp()) * SECOND)
    limiter: Any = tidegate.Limiter(rules=rules_of("100/month"), storage=storage, clock=clock)
    asked = {"user": "1", "tier": "free"}
    limiter.top_up(asked, 5_000)
    assert limiter.check(cost=90, **asked)
    limiter.reset(**asked)
    assert limiter.quota_status(**asked)["api"].available == 5_100
    limiter.forget(**asked)
    assert limiter.quota_status(**asked)["api"].available == 100


@pytest.mark.parametrize(
    ("was", "reason"),
    [
        ([(-1, 10)], "its part 'was' is wrong"),
        ([(2**48, 10)], "former count"),
        ([(5, 10), (6, 10)], "later than for the counts before it"),
        ([(5, 0)], "later than for the counts before it"),
        ([(5, 2.0**39)], "year 10000"),
        ([(5, HALF_OF_APRIL.replace(tzinfo=None))], "without a time zone"),
        ([(5, i + 1) for i in range(17)], "at most 16"),
    ],
)
def test_former_counts_are_checked(was: Any, reason: str) -> None:
    with pytest.raises(tidegate.ConfigurationError, match=reason):
        Quota(10, id="plan", was=was)


def test_former_counts_are_part_of_the_text_and_not_of_the_name() -> None:
    quota = Quota(40, id="plan", was=[(10, HALF_OF_APRIL)])
    assert str(quota) == "quota 40/month was 10 until 2024-04-16T00:00:00Z"
    assert quota.name == "quota 40/month"
    assert str(tidegate.Limit(str(quota))) == str(quota)
    assert quota != Quota(40, id="plan")
