"""The watch for anomalies of a service with very many callers."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate.anomaly import AnomalyDetector
from tidegate.server import listeners
from tidegate.server.listeners import AnomalyWatch
from tidegate.server.recording import Recorded, Row


class Detector:
    """Keeps the counts that it should judge."""

    interval = 60

    def __init__(self) -> None:
        self.judged: list[tuple[dict[str, int], dict[str, str]]] = []
        self.times: list[float] = []

    def judge(self, counts: Any, at: float, tiers: Any) -> list[Any]:
        self.judged.append((dict(counts), dict(tiers)))
        self.times.append(at)
        return []


def test_callers_of_one_request_do_not_displace_those_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "_MOST_CALLERS", 10)
    detector: Any = Detector()
    watch = AnomalyWatch(detector, None)
    for second in range(59):
        rows = [Row(f"{second}-{i}", "/a", "free", None, None, 1, 0, 0, 0, 1) for i in range(15)]
        flood = Row("flood", "/a", "free", None, None, 40, 9, 0, 0, 40)
        watch(Recorded(60.0 + second, [flood, *rows]))
    watch(Recorded(120.0, []))
    [(counts, tiers)] = detector.judged
    assert counts["user:flood"] == 59 * 49
    assert len(counts) <= 20
    assert tiers.keys() <= counts.keys()


def anyone(at: float, others: int = 0, count: int = 1) -> Recorded:
    users = ["a", *(f"other {i}" for i in range(others))]
    counts = [count, *[30] * others]
    return Recorded(
        at, [Row(u, "/a", None, None, None, n, 0, 0, 0, n) for u, n in zip(users, counts)]
    )


def test_a_clock_that_was_ahead_and_is_set_back_does_not_end_the_watch() -> None:
    detector: Any = Detector()
    watch = AnomalyWatch(detector, None)
    year = 365 * 86_400.0
    for at in (60.0, 120.0, year + 180.0, 240.0, 300.0, 360.0):
        watch(anyone(at))
    assert [counts["user:a"] for counts, _ in detector.judged] == [1] * 5
    times = detector.times
    assert times == sorted(times)
    week = 7 * 86_400
    assert [at % week for at in times] == [60, 120, (year + 180) % week, 240, 300]


def test_what_is_found_after_a_clock_was_set_back_is_reported_by_that_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = AnomalyWatch(AnomalyDetector(interval=60, k=1, warm_up=1), None)
    for at in (1_000_020.0, 1_000_080.0, 60.0, 120.0):
        watch(anyone(at, others=30))
    watch(anyone(180.0, others=30, count=900))
    watch(anyone(240.0))
    assert [vars(each)["anomaly"]["at"] for each in caplog.records] == [180.0]


def test_a_clock_that_is_set_back_by_less_than_an_interval_only_makes_one_longer() -> None:
    detector: Any = Detector()
    watch = AnomalyWatch(detector, None)
    for at in (60.0, 121.0, 80.0, 179.0, 180.0):
        watch(anyone(at))
    assert [counts["user:a"] for counts, _ in detector.judged] == [1, 3]
    assert detector.times == [60.0, 120.0]


def test_an_interval_that_could_not_be_judged_is_not_judged_again() -> None:
    class Failing(Detector):
        def judge(self, counts: Any, at: float, tiers: Any) -> list[Any]:
            super().judge(counts, at, tiers)
            if at == 60.0:
                raise MemoryError
            return []

    detector: Any = Failing()
    watch = AnomalyWatch(detector, None)
    watch(anyone(60.0))
    with pytest.raises(MemoryError):
        watch(anyone(120.0))
    for at in (121.0, 180.0, 240.0):
        watch(anyone(at))
    assert detector.times == [60.0, 120.0, 180.0]
