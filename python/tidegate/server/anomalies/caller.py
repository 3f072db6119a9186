"""What the detector keeps of one caller."""

from __future__ import annotations

import math
from typing import Any

from tidegate.server.anomalies.baseline import Baseline

__all__ = ["Caller"]

# What an operator accepts may grow to this multiple of it, in scaled counts: 1.5 in counts.
_GROWTH = math.sqrt(1.5)


class Caller:
    """A caller's baseline, and which of the caller's last intervals were too high."""

    __slots__ = (
        "accepted",
        "accepted_until",
        "baseline",
        "high",
        "high_since",
        "is_new",
        "last",
        "last_value",
        "rose_with_others",
    )

    def __init__(self, hour: int, *, is_new: bool) -> None:
        self.is_new = is_new  # otherwise it may have a past that the detector has not seen
        self.baseline = Baseline(hour)
        self.high = 0  # a bit for each interval; the lowest bit is the last interval
        self.high_since = 0.0
        self.rose_with_others = False
        self.accepted = 0.0  # the scaled count that an operator accepted, and until when
        self.accepted_until = -math.inf
        self.last = 0
        self.last_value = 0.0

    def note(self, value: float, is_high: bool, number: int, at: float, m: int) -> None:
        passed = min(number - self.last, m) if self.last else m
        self.last = number
        self.last_value = value
        self.high = (self.high << passed) & ((1 << m) - 1)
        if self.high == 0:
            self.rose_with_others = False
        if is_high:
            if self.high == 0:
                self.high_since = at
            self.high |= 1

    def seniority(self) -> tuple[int, float]:
        return self.baseline.samples, self.baseline.mean

    def high_intervals(self, m: int) -> int:
        return bin(self.high & ((1 << m) - 1)).count("1")

    def accept(self, at: float, until: float) -> None:
        """Accepts the present count, and somewhat more, until the time `until`."""
        self.accepted = self.last_value * _GROWTH
        self.accepted_until = until
        self.high_since = at

    def relearn(self) -> None:
        """Forgets what was usual, so that the next counts are."""
        self.baseline.restart()
        self.is_new = False
        self.high = 0

    def is_accepted(self, value: float, at: float) -> bool:
        return at < self.accepted_until and value <= self.accepted

    def state(self) -> list[Any]:
        """Returns everything that restore() needs, as JSON has it."""
        return [
            self.is_new,
            self.high,
            self.high_since,
            self.rose_with_others,
            self.accepted,
            self.accepted_until if math.isfinite(self.accepted_until) else None,
            self.last,
            self.last_value,
            self.baseline.state(),
        ]

    @classmethod
    def restore(cls, state: list[Any]) -> Caller:
        """Makes a caller of what state() returned; raises ValueError or TypeError otherwise."""
        is_new, high, since, together, accepted, until, last, value, baseline = state
        made = cls(0, is_new=bool(is_new))
        made.baseline = Baseline.restore(baseline)
        made.high, made.high_since = int(high), float(since)
        made.rose_with_others = bool(together)
        made.accepted = float(accepted)
        made.accepted_until = -math.inf if until is None else float(until)
        made.last, made.last_value = int(last), float(value)
        return made
