"""What is logged of units that were used and not charged, as their keys owe too much."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.limiter.rule_limiter import RuleLimiter

__all__ = ["WriteOffLog"]

log = logging.getLogger("tidegate")


class WriteOffLog:
    """A listener of decisions that logs written-off units, each time that their number has doubled.

    `limiter` and `envoy`, an EnvoyService or None, count them.
    """

    def __init__(self, limiter: RuleLimiter, envoy: Any = None) -> None:
        self._limiter = limiter
        self._envoy = envoy
        self._logged = 0

    def __call__(self, recorded: object) -> None:
        number = self._limiter.stats().written_off
        if self._envoy is not None:
            number += self._envoy.written_off
        if number == 0 or number < 2 * self._logged:
            return
        self._logged = number
        log.warning(
            "%d units that were used were written off by now, as their keys owe the max_debt of"
            " their limits",
            number,
        )
