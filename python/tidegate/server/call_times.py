"""How long the calls of the service took, of late and altogether."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Callable, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Bucket", "CallTimes", "RecentTimes", "Taken", "quantile"]

_KEPT_SECONDS = 300


class Bucket(NamedTuple):
    bound: float
    """The longest time in the bucket, in seconds; infinite for the last one."""
    calls: int
    """Calls that took longer than the bound before, and not longer than this one."""


class CallTimes(NamedTuple):
    """The calls of a service by one protocol since the start."""

    service: str
    """``checks`` or ``envoy``."""
    protocol: str
    """``http1``, ``http2`` or ``grpc``."""
    seconds: float
    """The sum of the times of all calls."""
    buckets: list[Bucket]


class Taken(NamedTuple):
    """The calls of about one second."""

    at: float
    """When they were counted, in seconds since the epoch."""
    buckets: list[Bucket]


def quantile(buckets: Iterable[Iterable[Bucket]], share: float) -> float | None:
    """Returns the time within which the `share` of all calls was answered; None without calls.

    Within a bucket the times are taken to be even. Beyond the last bound that is finite, it is that
    bound.
    """
    counts: dict[float, int] = {}
    for each in buckets:
        for bound, count in each:
            counts[bound] = counts.get(bound, 0) + count
    wanted = share * sum(counts.values())
    before, below = 0, 0.0
    for bound, count in sorted(counts.items()):
        if count and before + count >= wanted:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (wanted - before) / count
        before += count
        below = bound
    return None


class RecentTimes:
    """The times of calls in each of the last 300 seconds. Any thread may read them.

    `read` returns those since the start; one thread calls take() once a second.
    """

    def __init__(
        self, read: Callable[[], list[CallTimes]], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._read = read
        self._clock = clock
        self._before: dict[float, int] = {}
        self._recent: deque[Taken] = deque(maxlen=_KEPT_SECONDS)

    def take(self) -> None:
        """Keeps the calls since the last time, if there were any."""
        counts: dict[float, int] = {}
        for each in self._read():
            for bound, count in each.buckets:
                counts[bound] = counts.get(bound, 0) + count
        before, self._before = self._before, counts
        taken = [Bucket(bound, count - before.get(bound, 0)) for bound, count in counts.items()]
        if any(bucket.calls for bucket in taken):
            self._recent.append(Taken(self._clock(), taken))

    def recent(self) -> list[Taken]:
        """Returns the calls of the last 300 seconds, the earliest first."""
        since = self._clock() - _KEPT_SECONDS
        return [each for each in list(self._recent) if each.at >= since]
