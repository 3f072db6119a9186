"""The watch for anomalies of a service with very many callers."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate._service import listeners
from tidegate._service.listeners import AnomalyWatch
from tidegate._service.recording import Recorded, Row


class Detector:
    """Keeps the counts that it should judge."""

    interval = 60

    def __init__(self) -> None:
        self.judged: list[tuple[dict[str, int], dict[str, str]]] = []

    def judge(self, counts: Any, at: float, tiers: Any) -> list[Any]:
        self.judged.append((dict(counts), dict(tiers)))
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
