"""Turns measured load into a factor that does not swing to and fro."""

from __future__ import annotations

import math

from tidegate.limiter.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FactorSteps"]

# Equals the core's LoadFactor::kLeast.
_LEAST = 1 / 1024


class FactorSteps:
    """A factor that falls at once when load rises above a step, and rises one step at a time.

    `steps` are (load, factor) pairs. Loads are smoothed exponentially, with a time constant of
    `smoothing` seconds. The factor rises where load has fallen below the step by more than
    `hysteresis`, and `recovery` seconds after the last change. Not thread-safe.
    """

    def __init__(
        self,
        steps: Sequence[tuple[float, float]],
        *,
        hysteresis: float,
        smoothing: float,
        recovery: float,
    ) -> None:
        self._steps = _checked(steps)
        for name, value in (
            ("hysteresis", hysteresis),
            ("smoothing", smoothing),
            ("recovery", recovery),
        ):
            if not _is_number(value) or value < 0:
                raise ConfigurationError(f"the {name} is {value!r}; expected a number from 0 up")
        if hysteresis >= self._steps[0][0]:
            raise ConfigurationError(
                f"the hysteresis is {hysteresis!r} and the first step is at a load of "
                f"{self._steps[0][0]!r}, from which the factor would never rise; expected a "
                "smaller hysteresis"
            )
        self._hysteresis = hysteresis
        self._smoothing = smoothing
        self._recovery = recovery
        self._level = 0  # how many of the steps are in force
        self._changed_at = -math.inf
        self._seen_at: float | None = None
        self.load = 0.0
        """The smoothed load."""

    @property
    def factor(self) -> float:
        """1.0 below the first step."""
        return 1.0 if self._level == 0 else self._steps[self._level - 1][1]

    def observe(self, load: float, now: float) -> bool:
        """Takes a load that was measured at `now`, in seconds. True where the factor changed."""
        self.load = self._smoothed(load, now)
        above = sum(1 for threshold, _ in self._steps if self.load > threshold)
        if above > self._level:
            self._level = above
        elif self._level and self._may_rise(now):
            self._level -= 1
        else:
            return False
        self._changed_at = now
        return True

    def _smoothed(self, load: float, now: float) -> float:
        passed = math.inf if self._seen_at is None else max(0.0, now - self._seen_at)
        self._seen_at = now
        if self._smoothing == 0 or passed == math.inf:
            return load
        return load + (self.load - load) * math.exp(-passed / self._smoothing)

    def _may_rise(self, now: float) -> bool:
        threshold = self._steps[self._level - 1][0]
        return self.load < threshold - self._hysteresis and now - self._changed_at >= self._recovery


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _checked(steps: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    expected = (
        "expected pairs of a load and a factor from 1/1024 up, such as [(0.6, 0.75), (0.8, 0.5)]"
    )
    try:
        pairs = [(load, factor) for load, factor in steps]
    except (TypeError, ValueError):
        raise ConfigurationError(f"the steps are {steps!r:.80}; {expected}") from None
    if not pairs:
        raise ConfigurationError(f"there are no steps; {expected}")
    before = (-math.inf, 1.0)
    for load, factor in pairs:
        if not _is_number(load) or not _is_number(factor) or not _LEAST <= factor <= 1:
            raise ConfigurationError(f"a step is {(load, factor)!r}; {expected}")
        if not 0 < load < 1:
            raise ConfigurationError(f"a step is at a load of {load!r}; expected one from 0 to 1")
        if load <= before[0] or factor >= before[1]:
            raise ConfigurationError(
                f"the step {(load, factor)!r} follows {before!r}; expected rising loads and "
                "falling factors"
                if before[0] != -math.inf
                else f"the first step is {(load, factor)!r}; expected a factor below 1"
            )
        before = (load, factor)
    return pairs
