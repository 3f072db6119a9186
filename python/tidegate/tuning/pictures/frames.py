"""The tables behind the pictures."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from tidegate.limiter.checks import check_int
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limit import Limit
from tidegate.tuning.columns import shown
from tidegate.tuning.frame import Frame
from tidegate.tuning.keys import Keys
from tidegate.tuning.least import least_limits
from tidegate.tuning.replay import Replay, replay
from tidegate.tuning.times import as_times
from tidegate.types import BUCKETS

if TYPE_CHECKING:
    from tidegate.tuning.least import Period
    from tidegate.types import Algorithm

__all__ = [
    "DAYS",
    "bucket_frame",
    "hours_frame",
    "over_time_frame",
    "peaks_frame",
    "top_clients_frame",
    "what_if_frame",
]

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SECOND, _HOUR = 10**9, 3600 * 10**9
_MOST_BINS = 150
_SINGLE_PEAKS = 60
# Widths of bins in nanoseconds: decimal below a second, then divisors of minutes, hours and days.
_WIDTHS = [
    *(factor * 10**power for power in range(9) for factor in (1, 2, 5)),
    *(each * _SECOND for each in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)),
    *(each * _HOUR for each in (1, 2, 3, 6, 12, 24, 168)),
]


def over_time_frame(result: Replay, every: float | None = None) -> Frame:
    """Counts requests in spans of `every` seconds: time, seconds, allowed, refused, refused_share.

    Spans are aligned to the epoch; by default there are at most 150 of them.
    """
    _check_replay(result)
    times = result.times
    if not len(times):
        raise ConfigurationError("the replay has no requests; expected at least one")
    first, last = int(times.min()), int(times.max())
    width = _width(first, last, every)
    bins = (times // width) - first // width
    count = int(last // width - first // width) + 1
    total = np.bincount(bins, minlength=count)
    refused = np.bincount(bins[~result.allowed], minlength=count)
    starts = (first // width + np.arange(count)) * width
    return Frame(
        {
            "time": starts.view("datetime64[ns]"),
            "seconds": np.full(count, width / _SECOND),
            "allowed": total - refused,
            "refused": refused,
            "refused_share": refused / np.maximum(total, 1),
        }
    )


def _width(first: int, last: int, every: float | None) -> int:
    if every is None:
        if first == last:
            return _SECOND
        for width in _WIDTHS:
            if last // width - first // width < _MOST_BINS:
                return int(width)
        return int((last - first) // _MOST_BINS + 1)
    if isinstance(every, bool) or not isinstance(every, (int, float)):
        raise ArgumentTypeError(f"every is {shown(every)}; expected seconds")
    width = round(every * _SECOND) if 0 < every < 1e9 else 0
    if width < 1 or (last - first) // width > 1_000_000:
        raise ConfigurationError(
            f"every is {every}; expected seconds, of which the log has at most a million"
        )
    return width


def peaks_frame(
    keys: Any,
    times: Any,
    period: Period,
    costs: Any = None,
    *,
    algorithm: Algorithm = "token-bucket",
) -> Frame:
    """Counts clients by their peak: peak_from, peak_to (inclusive), clients.

    The peak of a client is the least count in `period` that would have refused none of its
    requests.
    """
    return peaks_table(least_limits(keys, times, period, costs, algorithm=algorithm))


def peaks_table(least: NDArray[np.int64]) -> Frame:
    """Like peaks_frame(), from the least limits of the clients."""
    least = least[least > 0]
    if not len(least):
        raise ConfigurationError("there are no clients; expected at least one")
    most = int(least.max())
    if most <= _SINGLE_PEAKS:
        edges = np.arange(1, most + 2)
    else:
        edges = np.unique(np.ceil(np.geomspace(1, most + 1, 41)).astype(np.int64))
    clients, _ = np.histogram(least, edges)
    return Frame({"peak_from": edges[:-1], "peak_to": edges[1:] - 1, "clients": clients})


def what_if_frame(what: Any) -> Frame:
    """Returns the curve of a WhatIf, or a Frame of tuning.what_if() unchanged."""
    frame = what if isinstance(what, Frame) else getattr(what, "curve", lambda: None)()
    expected = ("count", "burst", "refused_share", "clients_touched_share")
    if not isinstance(frame, Frame) or any(name not in frame.columns for name in expected):
        raise ArgumentTypeError(
            f"the what-if is {shown(what)}; expected what tuning.what_if() returns, or a WhatIf"
        )
    return frame


def top_clients_frame(result: Replay, most: int = 15, by: str | None = None) -> Frame:
    """Returns the first rows of result.totals(): key, requests, allowed, refused, refused_share."""
    _check_replay(result)
    check_int("most", most, "an int from 1 up", least=1)
    totals = result.totals(by)
    return Frame({name: column[:most] for name, column in totals.columns.items()})


def hours_frame(times: Any, zone: str = "UTC") -> Frame:
    """Counts requests by the hour of the week: weekday, hour, requests, hours, mean.

    `hours` counts how often that hour lies in the log, wholly or partly, and `mean` is the mean of
    these hours; NaN if the log does not cover the hour. `zone` is the time zone of the hours, such
    as ``"Europe/Berlin"``.
    """
    ns = as_times(times).ns
    if not len(ns):
        raise ConfigurationError("there are no times; expected at least one")
    # The offsets of zones are multiples of a quarter of an hour.
    quarters, each = np.unique(ns // (_HOUR // 4), return_counts=True)
    covered = np.arange(quarters[0], quarters[-1] + 1)
    if len(covered) > 4_000_000:
        raise ConfigurationError("the times span more than a century; expected less")
    local = covered + _offsets(covered, zone)
    hour_of_week = (local // 4 + 72) % 168  # the epoch was a Thursday
    requests = np.bincount(hour_of_week[quarters - quarters[0]], each, 168).astype(np.int64)
    distinct = np.unique(local // 4)
    hours = np.bincount((distinct + 72) % 168, minlength=168)
    with np.errstate(invalid="ignore"):
        mean = requests / np.where(hours, hours, np.nan)
    codes = np.repeat(np.arange(7, dtype=np.uint32), 24)
    return Frame(
        {
            "weekday": Keys(codes, list(DAYS)),
            "hour": np.tile(np.arange(24), 7),
            "requests": requests,
            "hours": hours,
            "mean": mean,
        }
    )


def _offsets(quarters: NDArray[np.int64], zone: str) -> NDArray[np.int64]:
    """The offset of the zone from UTC, in quarters of an hour."""
    if zone == "UTC":
        return np.zeros(len(quarters), np.int64)
    try:
        clock = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise ConfigurationError(
            f"the zone is {zone!r}; expected a name such as 'Europe/Berlin'"
        ) from None
    offsets = np.empty(len(quarters), np.int64)
    for at, quarter in enumerate(quarters.tolist()):
        ahead = datetime.fromtimestamp(quarter * 900, timezone.utc).astimezone(clock).utcoffset()
        offsets[at] = round(ahead.total_seconds() / 900) if ahead is not None else 0
    return offsets


def bucket_frame(limit: str | Limit, times: Any, costs: Any = None) -> Frame:
    """Traces one client's bucket at each of its requests: time, cost, allowed, before, after.

    `before` and `after` are the units in the bucket before and after the decision.
    """
    bucket = limit if isinstance(limit, Limit) else Limit(limit)
    if bucket.algorithm not in BUCKETS:
        raise ConfigurationError(
            f"the limit {bucket} is a {bucket.algorithm}; expected a token or leaky bucket"
        )
    ns = as_times(times).ns
    if not len(ns):
        raise ConfigurationError("there are no times; expected at least one")
    result = replay(bucket, np.zeros(len(ns), np.int64), times, costs, columns=[])
    charged = np.ones(len(ns), np.int64) if costs is None else np.asarray(costs, np.int64)
    order = np.argsort(ns, kind="stable")
    before, after = np.empty(len(ns)), np.empty(len(ns))
    level, last = float(bucket.capacity), int(ns[order[0]])
    for at in order.tolist():
        gained = (int(ns[at]) - last) * bucket.count / bucket.period_ns
        before[at] = min(bucket.capacity, level + gained)
        level = before[at] - (charged[at] if result.allowed[at] else 0)
        # This floating-point sum may be off, while the decision is exact.
        level = max(level, 0.0)
        after[at], last = level, int(ns[at])
    columns = {
        "time": ns.view("datetime64[ns]"),
        "cost": charged,
        "allowed": result.allowed,
        "before": before,
        "after": after,
    }
    return Frame({name: column[order] for name, column in columns.items()})


def _check_replay(result: Any) -> None:
    if not isinstance(result, Replay):
        raise ArgumentTypeError(f"the result is {shown(result)}; expected what replay() returns")
