"""Crowds of simulated callers, honest and not, on a virtual clock."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Callable

import numpy as np
from tidegate.anomaly import Action, AnomalyDetector

MINUTE = 60.0
HOUR = 3600.0
DAY = 24 * HOUR
# A Monday, 00:00 UTC.
START = 1_696_204_800.0

Course = Callable[[float], Any]
"""The factor of all callers, or of each, at a time in seconds since START."""


class Crowd:
    """Callers with Poisson counts of `rates` a minute, judged interval by interval."""

    def __init__(self, rates: Any, *, seed: int = 1, interval: float = MINUTE, **options: Any):
        self.rates = np.asarray(rates, dtype=float)
        self.names = [f"user:{i}" for i in range(len(self.rates))]
        self.random = np.random.default_rng(seed)
        self.detector = AnomalyDetector(interval=interval, **options)
        self.now = 0.0
        self.asked: Counter[str] = Counter()
        self.penalties: Counter[Action] = Counter()
        """How often each action was called for against one of the crowd."""

    def run(
        self,
        seconds: float,
        course: Course,
        others: Callable[[float], dict[str, int]] = (lambda now: {}),
    ) -> dict[str, tuple[Action, float]]:
        """Runs on for `seconds`. Returns the strictest action against each of the others, and how
        many intervals after the begin it was first called for."""
        interval = self.detector.interval
        begun = self.now
        worst: dict[str, tuple[Action, float]] = {}
        while self.now < begun + seconds:
            drawn = self.random.poisson(self.rates * course(self.now) * (interval / MINUTE))
            counts = {name: n for name, n in zip(self.names, drawn.tolist()) if n}
            for name, count in others(self.now).items():
                counts[name] = counts.get(name, 0) + count
            strangers = set(others(self.now))
            for each in self.detector.judge(counts, START + self.now):
                if each.caller in strangers:
                    before = worst.get(each.caller, (Action.ALLOW, math.inf))
                    if each.action > before[0]:
                        passed = (self.now - begun) / interval + 1
                        worst[each.caller] = (each.action, passed)
                elif each.action >= Action.THROTTLE:
                    self.penalties[each.action] += 1
            self.now += interval
        return worst


def steady(now: float) -> float:
    return 1.0


def ramp(begin: float, end: float, factor: float) -> Course:
    """1 until `begin`, `factor` from `end` on, and a straight line between."""
    return lambda now: 1 + (factor - 1) * min(max((now - begin) / (end - begin), 0), 1)


def daily(now: float) -> float:
    """A day: 1 at 14:00, a twentieth at 2:00."""
    return 0.525 - 0.475 * math.cos(2 * math.pi * (now / DAY - 2 / 24))


def weekly(now: float) -> float:
    """Days with quiet weekends, and Mondays that begin with twice as much."""
    weekday = int(now // DAY) % 7
    of_day = {0: 1.5, 5: 0.3, 6: 0.25}.get(weekday, 1.0)
    rush = 2.0 if weekday == 0 and 8 * HOUR < now % DAY < 11 * HOUR else 1.0
    return daily(now) * of_day * rush
