"""Soft events: once in a period for each key, off the path of a charge."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import tidegate as tg
from polling import eventually
from tidegate.quotas import Quota, QuotaEvent, QuotaWatch

NOW = 1_700_000_000 * 10**9


def watched(
    quota: Quota, every: float | None = None, storage: str = "memory://"
) -> tuple[tg.Limiter, tg.ManualClock, list[QuotaEvent], QuotaWatch]:
    clock = tg.ManualClock(NOW)
    limiter = tg.Limiter(quota, clock=clock, storage=storage)
    events: list[QuotaEvent] = []
    return limiter, clock, events, QuotaWatch(limiter, events.append, every=every)


@pytest.mark.parametrize("storage", ["memory://", "shm://{}/table?capacity=1000"])
def test_events_come_once_in_a_period(storage: str, tmp_path: Path) -> None:
    limiter, clock, events, watch = watched(
        Quota(10, name="monthly"), storage=storage.format(tmp_path)
    )
    for _ in range(7):
        limiter.hit("k")
    assert watch.deliver() == 0
    limiter.hit("k")
    assert watch.deliver() == 1
    limiter.refund("k", 2)
    limiter.hit("k", 4)
    limiter.hit("k")
    limiter.refund("k")
    limiter.hit("k")
    watch.deliver()
    assert [(e.key, e.quota, e.percent, e.used, e.available) for e in events] == [
        ("k", "monthly", 80, 8, 2),
        ("k", "monthly", 100, 10, 0),
    ]
    clock.set_ns(int(events[0].resets_at.timestamp()) * 10**9)
    limiter.hit("k", 10)
    assert watch.deliver() == 2


def test_carried_units_and_top_ups_count_too() -> None:
    limiter, _, events, watch = watched(Quota(10))
    limiter.top_up("k", 10)
    limiter.hit("k", 15)
    assert watch.deliver() == 0
    limiter.hit("k")
    watch.close()
    assert [event.percent for event in events] == [80]


def test_a_thread_delivers() -> None:
    limiter, _, events, watch = watched(Quota(10), every=0.01)
    limiter.hit(b"\xff", 8)
    eventually(lambda: [event.key for event in events] == [b"\xff"], 20)
    watch.close()


def test_what_a_callback_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    limiter, _, _, _ = watched(Quota(10))
    watch = QuotaWatch(limiter, lambda event: 1 / 0, every=None)
    limiter.hit("k", 10)
    with caplog.at_level(logging.ERROR, "tidegate"):
        assert watch.deliver() == 2
    assert "the callback of a QuotaWatch failed" in caplog.text


def test_a_flood_of_events_is_bounded() -> None:
    limiter, _, events, watch = watched(Quota(1))
    for i in range(2_000):
        limiter.hit(f"k{i}")
    watch.close()
    assert len(events) == 1_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_of_fork_delivers_its_own() -> None:
    limiter, _, events, _watch = watched(Quota(10), every=0.01)
    limiter.hit("parent", 8)
    child = os.fork()
    if child == 0:
        try:
            events.clear()
            limiter.hit("child", 8)
            eventually(lambda: [event.key for event in events] == ["child"], 20)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    eventually(lambda: [event.key for event in events] == ["parent"], 20)


def test_what_cannot_be_watched() -> None:
    limiter, _, events, _ = watched(Quota(10))
    with pytest.raises(tg.ConfigurationError, match="expected one with a quota"):
        QuotaWatch(tg.Limiter("5/second"), events.append)
    with pytest.raises(tg.ArgumentTypeError, match="expected a function"):
        QuotaWatch(limiter, 5)  # type: ignore[arg-type]
    with pytest.raises(tg.ConfigurationError, match="more than 0 seconds"):
        QuotaWatch(limiter, events.append, every=0)
    with pytest.raises(tg.ConfigurationError, match="every is 'x'; expected more than 0 seconds"):
        QuotaWatch(limiter, events.append, every="x")  # type: ignore[arg-type]
    for other in (5, tg.Plan([limiter])):
        with pytest.raises(tg.ArgumentTypeError, match=r"the limiter is .*; expected a Limiter"):
            QuotaWatch(other, events.append)  # type: ignore[arg-type]


RULES = """
rules:
  - id: monthly
    by: user
    limits:
      free: {free}
      premium: quota 100/month
"""


def ruled(free: str = "quota 10/month") -> tg.RuleSet:
    return tg.RuleSet.parse(RULES.format(free=free))


@pytest.mark.parametrize("storage", ["memory://", "shm://{}/table?capacity=1000"])
def test_events_of_quotas_in_rules(storage: str, tmp_path: Path) -> None:
    clock = tg.ManualClock(NOW)
    limiter = tg.Limiter(rules=ruled(), clock=clock, storage=storage.format(tmp_path))
    events: list[QuotaEvent] = []
    watch = QuotaWatch(limiter, events.append, every=None)
    assert limiter.check(user="42", tier="free", cost=7)
    assert watch.deliver() == 0
    assert limiter.check(user="42", tier="free")
    assert limiter.check(user="42", tier="free", cost=2)
    assert not limiter.check(user="42", tier="free")
    assert limiter.check(user="7", tier="premium", cost=80)
    assert watch.deliver() == 3
    assert [(e.key, e.quota, e.percent, e.used, e.available) for e in events] == [
        ("42", "monthly", 80, 8, 2),
        ("42", "monthly", 100, 10, 0),
        ("7", "monthly", 80, 80, 20),
    ]
    limiter.close()
    watch.close()


def test_events_that_nobody_has_taken_outlast_a_change_of_rules() -> None:
    limiter = tg.Limiter(rules=ruled(), clock=tg.ManualClock(NOW))
    events: list[QuotaEvent] = []
    watch = QuotaWatch(limiter, events.append, every=None)
    limiter.check(user="42", tier="free", cost=8)
    limiter.check(user="7", tier="premium", cost=80)
    limiter.use(ruled("quota 20/month"))
    left = limiter.quota_status(user="43", tier="free")["monthly"].available
    limiter.check(user="43", tier="free", cost=left)
    assert watch.deliver() == 4
    assert sorted((e.key, e.percent) for e in events) == [
        ("42", 80),
        ("43", 80),
        ("43", 100),
        ("7", 80),
    ]
    limiter.use(tg.RuleSet.parse("rules: []"))
    assert watch.deliver() == 0
