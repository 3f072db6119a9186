"""The baseline of one caller, which says how large a count is usual."""

from __future__ import annotations

import base64
import math
from array import array
from typing import Any

__all__ = ["Baseline", "count_at", "scaled"]

# The anchor forgets this many times slower than the mean, which may be at most twice as high: four
# times in counts.
_SLOWER = 28
_ABOVE_ANCHOR = 2.0

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

    A second mean, the anchor, forgets much slower, and bounds the first: a caller that grows a
    little each hour does not make any count usual.
    """

    __slots__ = (
        "_anchor",
        "_anchor_weight",
        "_first_hour",
        "_hours",
        "_last_hour",
        "mean",
        "samples",
        "variance",
        "weight",
    )

    def __init__(self, hour: int) -> None:
        self.samples = 0
        """The number of counts learned so far."""
        self.weight = 0.0
        """The total weight of these counts; older counts weigh less."""
        self.mean = 0.0
        self.variance = 0.0
        self._anchor = 0.0
        self._anchor_weight = 0.0
        self._first_hour = hour
        self._last_hour = hour
        # By hour, for this week and the three weeks before it; created in the caller's second week.
        self._hours: array[int] | None = None

    def spread(self, rise: float = 1.0) -> float:
        """The standard deviation of a scaled count.

        It is at least that of a Poisson count, and larger while there are few samples, as for a
        prediction. What varies more than a Poisson count varies more when the crowd has risen.
        """
        beyond = max(self.variance - 1.0, 0.0) * rise * rise
        return math.sqrt((1.0 + beyond) * (1.0 + 1.0 / self.weight))

    def usual(self, hour: int) -> float:
        """The usual scaled count: the recent one, or the one of this hour of the week if higher.

        The hour's count is the median of the last three weeks, so that an attack in one week does
        not make another attack usual.
        """
        mean = min(self.mean, _ABOVE_ANCHOR * self._anchor)
        if self._hours is None or hour - self._first_hour < _WEEKS * _HOURS:
            return mean
        before = [self._hours[self._place(hour - week * _HOURS)] for week in (1, 2, 3)]
        return max(mean, sorted(before)[1] / _STEPS)

    def learn(self, value: float, kept: float, level: float = 1.0) -> None:
        """Adds a sample. The past keeps the share `kept` of its weight (West, 1979).

        The variance is that around the mean, or around what the `level` of the crowd makes of it,
        whichever is closer: what all callers do together is no variance of one.
        """
        self.samples += 1
        old = self.weight * kept
        self.weight = old + 1.0
        apart = value - self.mean
        from_crowd = value - self.mean * level
        if self.samples > 1 and abs(from_crowd) < abs(apart):
            squared = from_crowd * from_crowd
        else:
            squared = apart * apart
        self.variance = old / self.weight * (self.variance + squared / self.weight)
        self.mean += apart / self.weight
        self._learn_anchor(value, kept)

    def follow(self, value: float, kept: float) -> None:
        """Lets the means follow the crowd, in place of a sample that is too high to be learned."""
        self.weight = self.weight * kept + 1.0
        self.mean += (value - self.mean) / self.weight
        self._learn_anchor(value, kept)

    def _learn_anchor(self, value: float, kept: float) -> None:
        self._anchor_weight = self._anchor_weight * kept ** (1 / _SLOWER) + 1.0
        self._anchor += (value - self._anchor) / self._anchor_weight

    def restart(self) -> None:
        """Forgets all but the hours of the week."""
        self.samples = 0
        self.weight = self.mean = self.variance = self._anchor = self._anchor_weight = 0.0

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

    def state(self) -> list[Any]:
        """Returns everything that restore() needs, as JSON has it."""
        hours = self._hours
        return [
            self.samples,
            self.weight,
            self.mean,
            self.variance,
            self._anchor,
            self._anchor_weight,
            self._first_hour,
            self._last_hour,
            None if hours is None else base64.b85encode(hours.tobytes()).decode(),
        ]

    @classmethod
    def restore(cls, state: list[Any]) -> Baseline:
        """Makes a baseline of what state() returned; raises ValueError or TypeError otherwise."""
        samples, weight, mean, variance, anchor, anchor_weight, first, last, hours = state
        numbers = [weight, mean, variance, anchor, anchor_weight]
        if not all(isinstance(each, (int, float)) for each in numbers):
            raise TypeError("expected numbers")
        if not all(0 <= each < math.inf for each in numbers) or (samples and weight < 1):
            raise ValueError("expected finite numbers, and a weight of 1 or more")
        made = cls(int(first))
        made.samples = int(samples)
        made.weight, made.mean, made.variance = weight, mean, variance
        made._anchor, made._anchor_weight = anchor, anchor_weight
        made._last_hour = int(last)
        if hours is not None:
            made._hours = array("H", base64.b85decode(hours))
            if len(made._hours) != (_WEEKS + 1) * _HOURS:
                raise ValueError("expected the hours of four weeks")
        return made
