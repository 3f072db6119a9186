"""The usual counts of the callers of one tier."""

from __future__ import annotations

from collections import OrderedDict
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LEAST_PEERS", "Peers"]

# With fewer callers, nobody can stand out from the others.
LEAST_PEERS = 20
_MOST = 2000
# The standard deviation of a normal distribution, in median absolute deviations.
_DEVIATIONS = 1.4826


class Peers:
    """The median and the median absolute deviation of the last scaled counts of a tier's callers.

    Each of the recent callers has one value, so that all have the same weight, however large or
    frequent their counts are.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[str, float] = OrderedDict()
        self._spread = 1.0
        self.usual = 0.0
        """The median."""

    def learn(self, values: Mapping[str, float]) -> None:
        """Adds the values of an interval, by caller."""
        for caller, value in values.items():
            self._values[caller] = value
            self._values.move_to_end(caller)
        while len(self._values) > _MOST:
            self._values.popitem(last=False)
        if len(self._values) >= LEAST_PEERS:
            self.usual = median(self._values.values())
            apart = median(abs(value - self.usual) for value in self._values.values())
            self._spread = max(_DEVIATIONS * apart, 1.0)

    @property
    def highest(self) -> float:
        """The highest of the values."""
        return max(self._values.values(), default=0.0)

    def state(self) -> dict[str, float]:
        """Returns the values, by caller, the one that was learned last at the end."""
        return dict(self._values)

    @classmethod
    def restore(cls, values: Mapping[str, float]) -> Peers:
        """Makes peers of what state() returned."""
        made = cls()
        made.learn({str(caller): float(value) for caller, value in values.items()})
        return made

    def z(self, value: float) -> float | None:
        """How many deviations `value` lies above the median; None while there are too few peers."""
        if len(self._values) < LEAST_PEERS:
            return None
        return (value - self.usual) / self._spread
