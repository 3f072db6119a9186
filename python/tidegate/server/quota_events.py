"""Reports the soft events of quotas: in the log, and in the metrics."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.limiter.quotas.watch import QuotaEvent

__all__ = ["QuotaLog"]

log = logging.getLogger("tidegate.quotas")


class QuotaLog:
    """Logs each event, and counts the events by percentage."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def __call__(self, event: QuotaEvent) -> None:
        self._counts[event.percent] += 1
        resets_at = event.resets_at.isoformat().replace("+00:00", "Z")
        log.warning(
            "%r has used %d %% of the quota %s: %d used, %d available until %s",
            event.key,
            event.percent,
            event.quota,
            event.used,
            event.available,
            resets_at,
            extra={
                "quota": {
                    "key": event.key,
                    "name": event.quota,
                    "percent": event.percent,
                    "used": event.used,
                    "available": event.available,
                    "resets_at": resets_at,
                }
            },
        )

    def counters(self) -> dict[str, int]:
        """Returns the numbers of the metrics, by name."""
        return {f"quota_events_{percent}": self._counts[percent] for percent in (80, 100)}
