"""What counts of one caller are usual."""

from __future__ import annotations

import math
from array import array

__all__ = ["Baseline", "count_at", "scaled"]

_HOURS = 168  # of a week
_WEEKS = 3
# Hours are kept in 16 bits: scaled counts in steps of 1/32, so counts up to a million.
_STEPS = 32.0
_MOST = (2**16 - 1) / _STEPS


def scaled(count: float) -> float:
    """A count on the scale on which counts of any size vary alike.

    Anscombe's transform: a Poisson count has a standard deviation of about 1 there, whatever its
    mean (F. J. Anscombe, Biometrika 35, 1948).
    """
    return 2.0 * math.sqrt(count + 0.375)


def count_at(value: float) -> float:
    """The count that scaled() puts at `value`."""
    return max(value * value / 4.0 - 0.375, 0.0)


class Baseline:
    """The exponentially weighted mean and variance of one caller's counts, scaled.

    It learns counts of intervals with traffic: how much an active interval of the caller has. A
    count is judged by what was learned before it. `hour` is the number of its hour since some
    Monday, 00:00.
    """

    __slots__ = ("_first_hour", "_hours", "_last_hour", "mean", "samples", "variance", "weight")

    def __init__(self, hour: int) -> None:
        self.samples = 0
        """How many counts it has learned."""
        self.weight = 0.0
        """Their weight: those long ago count for less."""
        self.mean = 0.0
        self.variance = 0.0
        self._first_hour = hour
        self._last_hour = hour
        # By hour, of this week and the three before it; made in the caller's second week.
        self._hours: array[int] | None = None

    def z(self, value: float, hour: int) -> float:
        """How many standard deviations `value` lies above what is usual at this hour.

        The standard deviation is at least that of a Poisson count, and larger while the samples
        are few, as for a prediction.
        """
        spread = math.sqrt(max(self.variance, 1.0) * (1.0 + 1.0 / self.weight))
        return (value - self.usual(hour)) / spread

    def usual(self, hour: int) -> float:
        """The scaled count that is usual: of late, or at this hour of the week if that is more.

        Of this hour in the last three weeks the median counts, so that an attack in one of them
        does not make another one usual.
        """
        if self._hours is None or hour - self._first_hour < _WEEKS * _HOURS:
            return self.mean
        before = [self._hours[self._place(hour - week * _HOURS)] for week in (1, 2, 3)]
        return max(self.mean, sorted(before)[1] / _STEPS)

    def learn(self, value: float, kept: float) -> None:
        """Adds a sample. `kept` is the share of its weight that the past keeps (West, 1979)."""
        self.samples += 1
        old = self.weight * kept
        self.weight = old + 1.0
        apart = value - self.mean
        self.mean += apart / self.weight
        self.variance = old / self.weight * (self.variance + apart * apart / self.weight)

    def learn_hour(self, value: float, hour: int) -> None:
        """Adds a sample to its hour of the week: each counts for half of those before it."""
        if self._hours is None:
            if hour - self._first_hour < _HOURS:
                return
            self._hours = array("H", bytes(2 * (_WEEKS + 1) * _HOURS))
            self._last_hour = hour - 1
        for passed in range(max(self._last_hour + 1, hour - (_WEEKS + 1) * _HOURS + 1), hour + 1):
            self._hours[self._place(passed)] = 0
        is_first = hour > self._last_hour
        self._last_hour = max(hour, self._last_hour)
        place = self._place(hour)
        sample = round(min(value, _MOST) * _STEPS)
        self._hours[place] = sample if is_first else (self._hours[place] + sample) // 2

    @staticmethod
    def _place(hour: int) -> int:
        return hour % ((_WEEKS + 1) * _HOURS)
