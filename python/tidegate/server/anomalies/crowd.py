"""What all callers do together, so that nobody is accused of what the whole service does."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LEAST_CROWD", "Crowd", "crowd_of"]

LEAST_CROWD = 5
"""With fewer callers, nothing is known about the others."""
# The standard deviation of a normal distribution, in median absolute deviations.
_DEVIATIONS = 1.4826
# The standard error of a median, in standard errors of a mean.
_MEDIAN_ERROR = 1.2533


class Crowd(NamedTuple):
    """How the known callers of one interval differ from what is usual for each of them."""

    size: int
    """The number of known callers with requests."""
    level: float = 1.0
    """The median of their scaled counts, each divided by its caller's usual one."""
    level_error: float = 0.0
    """The standard error of `level`."""
    apart: float = 0.0
    """How far callers differ from the level beyond their own variance, as a deviation of the
    logarithm."""

    @property
    def rise(self) -> float:
        """The factor by which the crowd excuses a scaled count: the level if it has risen."""
        return max(self.level, 1.0)


def crowd_of(ratios: Sequence[float], deviations: Sequence[float]) -> Crowd:
    """Returns the crowd of callers whose scaled counts are `ratios` of what is usual for them.

    `deviations` are the standard deviations that these ratios have by themselves. Each caller has
    one vote, however many requests it sends: fewer than half of the callers do not move the level
    far.
    """
    if len(ratios) < LEAST_CROWD:
        return Crowd(len(ratios))
    level = median(ratios)
    spread = _DEVIATIONS * median(abs(math.log(ratio / level)) for ratio in ratios)
    own = median(deviations)
    return Crowd(
        len(ratios),
        level,
        _MEDIAN_ERROR * spread * level / math.sqrt(len(ratios)),
        math.sqrt(max(spread * spread - own * own, 0.0)),
    )
