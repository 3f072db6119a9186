"""The baseline of one caller, which says how large a count is usual."""

from __future__ import annotations

import math
from array import array

__all__ = ["Baseline", "count_at", "scaled"]

_HOURS = 168  # the hours of a week
_WEEKS = 3
# Hours take 16 bits each: scaled counts in steps of 1/32, which covers counts up to a million.
_STEPS = 32.0
_MOST = (2**16 - 1) / _STEPS


def scaled(count: float) -> float:
    """Scales a count so that the standard deviation does not depend on its size.

    With Anscombe's transform a Poisson count has a standard deviation of about 1, whatever its mean
    (F. J. Anscombe, Biometrika 35, 1948).
    """
    return 2.0 * math.sqrt(count + 0.375)


def count_at(value: float) -> float:
    """The inverse of scaled()."""
    return max(value * value / 4.0 - 0.375, 0.0)


class Baseline:
    """The exponentially weighted mean and variance of one caller's counts, scaled.

    It learns the counts of intervals with traffic, so it describes the caller's active intervals. A
    count is judged by the counts before it. `hour` is the number of its hour since some Monday,
    00:00.
    """

    __slots__ = ("_first_hour", "_hours", "_last_hour", "mean", "samples", "variance", "weight")

    def __init__(self, hour: int) -> None:
        self.samples = 0
        """The number of counts learned so far."""
        self.weight = 0.0
        """The total weight of these counts; older counts weigh less."""
        self.mean = 0.0
        self.variance = 0.0
        self._first_hour = hour
        self._last_hour = hour
        # By hour, for this week and the three weeks before it; created in the caller's second week.
        self._hours: array[int] | None = None

    def z(self, value: float, hour: int) -> float:
        """Returns how many standard deviations `value` lies above the usual value at this hour.

        The standard deviation is at least that of a Poisson count, and larger while there are few
        samples, as for a prediction.
        """
        spread = math.sqrt(max(self.variance, 1.0) * (1.0 + 1.0 / self.weight))
        return (value - self.usual(hour)) / spread

    def usual(self, hour: int) -> float:
        """The usual scaled count: the recent one, or the one of this hour of the week if higher.

        The hour's count is the median of the last three weeks, so that an attack in one week does
        not make another attack usual.
        """
        if self._hours is None or hour - self._first_hour < _WEEKS * _HOURS:
            return self.mean
        before = [self._hours[self._place(hour - week * _HOURS)] for week in (1, 2, 3)]
        return max(self.mean, sorted(before)[1] / _STEPS)

    def learn(self, value: float, kept: float) -> None:
        """Adds a sample. The past keeps the share `kept` of its weight (West, 1979)."""
        self.samples += 1
        old = self.weight * kept
        self.weight = old + 1.0
        apart = value - self.mean
        self.mean += apart / self.weight
        self.variance = old / self.weight * (self.variance + apart * apart / self.weight)

    def learn_hour(self, value: float, hour: int) -> None:
        """Adds a sample to its hour of the week, where it gets half of the weight."""
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
