"""Quotas from Python: arguments and their errors, status, top-ups, and limiters that have none."""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
from collections.abc import Callable
from zoneinfo import ZoneInfo

import pytest
import tidegate as tg
from processes import imported_by
from tidegate.quotas import Quota, QuotaGrant, QuotaStatus, Rollover

NOW = 1_700_000_000 * 10**9  # 14 November 2023
DECEMBER = dt.datetime(2023, 12, 1, tzinfo=dt.timezone.utc)


def test_the_default_is_ten_thousand_a_month_with_a_rollover_of_five_thousand() -> None:
    assert str(Quota()) == "quota 10000/month rollover 5000"
    assert Quota() == Quota(10_000, rollover=5_000) == tg.Limit("quota 10000/month rollover 5000")
    assert str(Quota(10_000)) == "quota 10000/month"
    assert str(Quota(tz="Europe/Berlin")) == "quota 10000/month in Europe/Berlin rollover 5000"


def test_a_rollover_of_none_carries_nothing_whether_or_not_a_limit_is_given() -> None:
    assert str(Quota(rollover=None)) == str(Quota(10_000, rollover=None)) == "quota 10000/month"
    assert str(Quota(rollover=7)) == "quota 10000/month rollover 7"


@pytest.mark.parametrize(
    ("quota", "text"),
    [
        (lambda: Quota(5, "day"), "quota 5/day"),
        (lambda: Quota(5, "week", anchor_day=7), "quota 5/week anchor 7"),
        (lambda: Quota(5, "week", anchor_day=dt.date(2024, 1, 3)), "quota 5/week anchor 3"),
        (lambda: Quota(5, anchor_day=dt.date(2024, 2, 3)), "quota 5/month anchor 3"),
        (lambda: Quota(5, "year", anchor_day=dt.date(2024, 4, 1)), "quota 5/year anchor 4-1"),
        (lambda: Quota(5, tz="Europe/Berlin"), "quota 5/month in Europe/Berlin"),
        (lambda: Quota(5, tz=ZoneInfo("Asia/Kolkata")), "quota 5/month in Asia/Kolkata"),
        (lambda: Quota(5, rollover="50%"), "quota 5/month rollover 50%"),
        (lambda: Quota(5, rollover=0), "quota 5/month"),
        (
            lambda: Quota(5, rollover=Rollover(3, 50, 2)),
            "quota 5/month rollover 3 rollover 50% for 2 periods",
        ),
        (lambda: Quota(5, first_period="prorated"), "quota 5/month first prorated"),
    ],
)
def test_a_quota_of_arguments_is_that_of_its_text(quota: Callable[[], Quota], text: str) -> None:
    made = quota()
    assert str(made) == text
    assert made == tg.Limit(text)
    assert made.algorithm == "quota"
    assert pickle.loads(pickle.dumps(made)) == made
    assert repr(made) == f"Limit('{text}')"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quota(-1), "expected 0 or more"),
        (lambda: Quota(2**48), "expected 1 to 281474976710655"),
        (lambda: Quota("5"), "expected an int"),  # type: ignore[arg-type]
        (lambda: Quota(True), "expected an int"),
        (lambda: Quota(5, "hour"), "expected day, week, month, quarter, year"),  # type: ignore[arg-type]
        (lambda: Quota(5, anchor_day=0), "expected 1 or more"),
        (lambda: Quota(5, anchor_day=32), "expected 1 to 31"),
        (lambda: Quota(5, anchor_day="1"), "expected an int or a date"),  # type: ignore[arg-type]
        (lambda: Quota(5, tz="Europe/Nowhere"), "expected a name of the IANA database"),
        (lambda: Quota(5, tz=""), "expected a name such as"),
        (lambda: Quota(5, tz="UTC rollover 5"), "expected a name such as"),
        (lambda: Quota(5, tz=dt.timezone.utc), "expected a name such as"),  # type: ignore[arg-type]
        (lambda: Quota(5, rollover=-1), "expected 1 or more, or None"),
        (lambda: Quota(5, rollover="much"), "expected units such as 5000"),
        (lambda: Quota(5, rollover="101%"), "expected 1 to 100"),
        (lambda: Quota(5, rollover=1.5), "expected an int, a share"),  # type: ignore[arg-type]
        (lambda: Quota(5, rollover=Rollover(5, periods=13)), "expected 1 to 12"),
        (lambda: Rollover(), "expected one of them"),
        (lambda: Rollover("5"), "expected an int"),  # type: ignore[arg-type]
        (lambda: Quota(5, was=5), "was is 5; expected pairs of a limit and the instant"),  # type: ignore[arg-type]
        (lambda: Quota(5, was=[5]), "was is [5]; expected pairs"),  # type: ignore[list-item]
        (lambda: Quota(5, was=[(5,)]), "was is [(5,)]; expected pairs"),  # type: ignore[list-item]
        (lambda: Quota(5, first_period="half"), "expected 'full' or 'prorated'"),  # type: ignore[arg-type]
        (lambda: tg.Limit(5, 60, algorithm="quota"), "expected quota for a quota such as"),
        (lambda: tg.Limit("quota 5/month", burst=3), "burst of 3 was given for quota"),
        (lambda: tg.Limiter("quota 5"), "expected 'quota COUNT/day"),
    ],
)
def test_what_is_wrong_is_said(make: Callable[[], object], message: str) -> None:
    with pytest.raises((tg.ConfigurationError, tg.ArgumentTypeError)) as error:
        make()
    assert message in str(error.value)


def limiter_of(*limits: tg.Limit | str) -> tuple[tg.Limiter, tg.ManualClock]:
    clock = tg.ManualClock(NOW)
    return tg.Limiter(list(limits), clock=clock), clock


def test_the_status_of_a_key() -> None:
    limiter, clock = limiter_of(Quota(100, rollover=50))
    limiter.hit("k", 30)
    assert limiter.quota_status("k") == QuotaStatus(
        100, 100, 0, 0, 30, 70, DECEMBER, (QuotaGrant("base", 100, 70, DECEMBER, 0),)
    )
    clock.set_ns(int(DECEMBER.timestamp()) * 10**9)
    limiter.top_up("k", 7, expires_at=DECEMBER + dt.timedelta(days=1), priority=2)
    limiter.hit("k", 20)
    status = limiter.quota_status("k")
    assert (status.base, status.carried, status.topped_up) == (100, 50, 7)
    assert (status.used, status.available) == (20, 137)
    assert [(g.kind, g.units, g.left) for g in status.grants] == [
        ("carried", 50, 30),
        ("base", 100, 100),
        ("top-up", 7, 7),
    ]


def test_a_key_that_nobody_used_has_a_whole_period() -> None:
    limiter, _ = limiter_of(Quota(100, rollover=50))
    assert limiter.quota_status("new").available == 100
    assert limiter.stats().keys == 0


def test_one_of_several_quotas_is_asked_for_by_its_name() -> None:
    limiter, _ = limiter_of(Quota(100, name="monthly"), Quota(10, "day", name="daily"), "5/second")
    limiter.hit("k", 3)
    assert limiter.quota_status("k", quota="daily").available == 7
    limiter.top_up("k", 5, quota="monthly")
    assert limiter.quota_status("k", quota="monthly").available == 102
    with pytest.raises(tg.ConfigurationError, match="its name as quota="):
        limiter.quota_status("k")
    with pytest.raises(tg.ConfigurationError, match="of the name 'weekly'"):
        limiter.top_up("k", 5, quota="weekly")
    plain, _ = limiter_of("5/second")
    with pytest.raises(tg.ConfigurationError, match="expected exactly one such quota"):
        plain.quota_status("k")


def test_a_top_up_beyond_the_most_units_of_a_key_says_how_many_there_are() -> None:
    limiter, _ = limiter_of(Quota(100))
    limiter.top_up("k", 2**52 - 5)
    with pytest.raises(tg.ConfigurationError, match=r"is of 6 units; expected 1 to 5"):
        limiter.top_up("k", 6)
    limiter.top_up("k", 5)
    with pytest.raises(tg.ConfigurationError, match=r"top-ups of 4503599627370496 units that are"):
        limiter.top_up("k", 1)


@pytest.mark.parametrize(
    ("units", "options", "message"),
    [
        (0, {}, "expected 1 to"),
        (2**60, {}, "expected 1 to"),
        (1.5, {}, "expected an int from 1 up"),
        (1, {"priority": 101}, "expected an int from -100 to 100"),
        (1, {"expires_at": NOW / 1e9}, "expected a later instant"),
        (1, {"expires_at": dt.datetime(2030, 1, 1)}, "expected an aware datetime"),
        (1, {"expires_at": "tomorrow"}, "expected an aware datetime"),
        (1, {"expires_at": float("nan")}, "expected an aware datetime"),
    ],
)
def test_top_ups_that_cannot_be_added(units: int, options: dict[str, object], message: str) -> None:
    limiter, _ = limiter_of(Quota(100))
    with pytest.raises((tg.ConfigurationError, tg.ArgumentTypeError)) as error:
        limiter.top_up("k", units, **options)  # type: ignore[arg-type]
    assert message in str(error.value)
    assert limiter.quota_status("k").available == 100


def test_without_a_round_trip_the_asynchronous_calls_answer_at_once() -> None:
    async def run() -> QuotaStatus:
        limiter, _ = limiter_of(Quota(100))
        await limiter.top_up_async("k", 5)
        assert await limiter.hit_async("k", 103)
        assert (await limiter.charge_up_to_async("k", 9)).charged == 2
        return await limiter.quota_status_async("k")

    assert asyncio.run(run()).used == 105


@pytest.mark.parametrize("awaits", [False, True])
def test_a_change_that_is_brought_forward_counts_from_its_instant(awaits: bool) -> None:
    free, clock = limiter_of(Quota(3_000, id="plan"))
    premium = tg.Limiter(Quota(9_000, id="plan"), storage=free.storage, clock=clock)

    async def both() -> None:
        await free.bring_forward_async("k")
        await premium.bring_forward_async("k")

    clock.set_ns(int(dt.datetime(2023, 11, 16, tzinfo=dt.timezone.utc).timestamp()) * 10**9)
    if awaits:
        asyncio.run(both())
    else:
        free.bring_forward("k")
        premium.bring_forward("k")
    clock.set_ns(int(dt.datetime(2023, 11, 26, tzinfo=dt.timezone.utc).timestamp()) * 10**9)
    premium.hit("k")
    # Half of November was left of the 30 days, and so half of what the larger quota has more.
    assert premium.quota_status("k").base == 6_000


def test_a_replay_takes_quotas() -> None:
    times = [NOW + i * 86_400 * 10**9 for i in range(30)]
    answers = tg.replay("quota 20/month rollover 8", ["k"] * 30, times, [4] * 30)
    # Five in November, and five of December, into which nothing was carried.
    assert [bool(answer) for answer in answers[:17]] == [True] * 5 + [False] * 12
    assert [bool(answer) for answer in answers[17:]] == [True] * 5 + [False] * 8


def test_quotas_are_not_imported_with_the_package() -> None:
    assert [name for name in imported_by("import tidegate") if "quota" in name] == []
