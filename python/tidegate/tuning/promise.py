"""What a recommended limit promises, and the least limit and burst that keep it on a log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tidegate.tuning.requests import limit_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.tuning.requests import Period, Requests
    from tidegate.types import Algorithm

__all__ = ["Promise", "Shape", "least_burst", "least_count"]


@dataclass(frozen=True)
class Promise:
    """A promise that at most `share` of the clients or requests would have been refused."""

    of: str
    share: float

    def most(self, total: int) -> int:
        """The greatest number out of `total` that keeps the promise, without rounding errors."""
        return math.floor(self.share * total + 1e-9)

    def __str__(self) -> str:
        return f"at most {100 * self.share:g} % of the {self.of} refused"


@dataclass(frozen=True)
class Shape:
    """A limit without its count."""

    period: Period
    algorithm: Algorithm


def least_count(
    promise: Promise, shape: Shape, requests: Requests, least: NDArray[np.int64]
) -> int:
    """Returns the least count that keeps the promise, given the least limits of the clients."""
    if promise.of == "clients":
        return kept_for(least, promise.most(requests.clients))
    counts = requests.counts()
    return _search(
        lambda count, part: _refused(part, count, None, shape),
        requests,
        least,
        promise.most(len(requests)),
        _never_more(least, counts, promise.most(len(requests))),
    )


def least_burst(
    count: int,
    promise: Promise,
    shape: Shape,
    requests: Requests,
    bursts: NDArray[np.int64],
    *,
    known: int | None,
    too_great: int,
) -> int:
    """Returns the least burst for `count` that keeps a promise about requests, or `too_great`.

    `bursts` are the least bursts of the clients; `known` is a burst known to keep the promise.
    """
    most = promise.most(len(requests))
    enough = _never_more(bursts, requests.counts(), most)
    if known is not None:
        enough = min(enough, known)
    elif enough > too_great:
        enough = too_great
        if _refused(requests.of_clients(bursts > enough), count, enough, shape) > most:
            return too_great
    return _search(
        lambda burst, part: _refused(part, count, burst, shape), requests, bursts, most, enough
    )


def kept_for(least: NDArray[np.int64], exceptions: int) -> int:
    """Returns the least value that at most `exceptions` of `least` exceed."""
    rank = len(least) - 1 - exceptions
    return int(np.partition(least, rank)[rank])


def _never_more(least: NDArray[np.int64], counts: NDArray[np.int64], most: int) -> int:
    """Returns a value that touches only clients with at most `most` requests in total."""
    order = np.argsort(-least, kind="stable")
    kept = int(np.searchsorted(np.cumsum(counts[order]), most, side="right"))
    return int(least[order[min(kept, len(order) - 1)]])


def _refused(part: Requests, count: int, burst: int | None, shape: Shape) -> int:
    limit = limit_of(count, shape.period, shape.algorithm, burst)
    return part.replay(limit).refused


def _search(
    refused: Callable[[int, Requests], int],
    requests: Requests,
    least: NDArray[np.int64],
    most: int,
    enough: int,
) -> int:
    """Returns a value that refuses at most `most` requests, while one less refuses more.

    The search uses secants, since the curve is almost a straight line in logarithms, and bisection
    if these make no progress. `enough` is known to suffice. As the lower end rises, the requests
    of more and more clients need no replay.
    """
    low, high = 0, enough
    at_low, at_high = len(requests), 0
    part, of_part = requests, least
    halve = True
    while high - low > 1:
        middle = math.isqrt(low * high) if low else high // 4
        if not halve and at_low > at_high:
            x0, x1 = math.log(low + 1), math.log(high + 1)
            y0, y1, y = (math.log(n + 1) for n in (at_low, at_high, most))
            middle = round(math.exp(x0 + (x1 - x0) * (y0 - y) / (y0 - y1))) - 1
        middle = min(max(middle, low + 1), high - 1)
        width = high - low
        count = refused(middle, part)
        if count > most:
            low, at_low = middle, count
            kept = of_part > low
            if np.count_nonzero(kept) < 0.7 * len(kept):
                part, of_part = part.of_clients(kept), of_part[kept]
        else:
            high, at_high = middle, count
        halve = (high - low) * 2 > width
    return high
