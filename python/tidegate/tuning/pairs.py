"""Pairs of a sustained rate and a burst that keep one promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tidegate.tuning.effect import texts
from tidegate.tuning.frame import Frame
from tidegate.tuning.promise import Promise, Shape, kept_for, least_burst
from tidegate.tuning.requests import limit_of

if TYPE_CHECKING:
    from tidegate.limiter.limit import Limit
    from tidegate.tuning.requests import Requests

__all__ = ["pairs_of", "tightest"]

# Sustained rates go from this share of the recommended count up to the whole count.
_LEAST_RATE = 0.1
_RATES = 9
# Fewer rates are tried for a promise about requests, because each needs a search by replay.
_RATES_OF_REQUESTS = 3
# A rate is too low if it needs a burst of more than this many times the count.
_MOST_BURST = 10


def pairs_of(count: int, promise: Promise, shape: Shape, requests: Requests) -> Frame:
    """Returns the least burst that keeps the promise for each sustained rate up to `count`.

    Rates that need too great a burst are left out. The columns are limit, count, burst and
    most_in_a_period: the most that one client can use in a period, which is count + burst.
    """
    many = _RATES if promise.of == "clients" else _RATES_OF_REQUESTS
    rates = np.geomspace(max(1, count * _LEAST_RATE), count, many)
    counts = np.unique(np.round(rates).astype(np.int64))
    if promise.of == "clients":
        bursts = _bursts_for_clients(counts, promise, shape, requests)
    else:
        bursts = _bursts_for_requests(counts, promise, shape, requests)
    sensible = np.array(bursts) <= _MOST_BURST * count
    counts, bursts = counts[sensible], [burst for burst in bursts if burst <= _MOST_BURST * count]
    limits = [
        limit_of(rate, shape.period, shape.algorithm, burst)
        for rate, burst in zip(counts.tolist(), bursts)
    ]
    return Frame(
        {
            "limit": texts(map(str, limits)),
            "count": counts,
            "burst": np.array(bursts, np.int64),
            "most_in_a_period": counts + np.array(bursts, np.int64),
        }
    )


def tightest(pairs: Frame, shape: Shape) -> Limit:
    """Returns the pair with the least count + burst; among equals, the one of the highest count."""
    counts, bursts = np.asarray(pairs["count"]), np.asarray(pairs["burst"])
    at = int(np.lexsort((-counts, counts + bursts))[0])
    return limit_of(int(counts[at]), shape.period, shape.algorithm, int(bursts[at]))


def _bursts_for_clients(
    counts: NDArray[np.int64], promise: Promise, shape: Shape, requests: Requests
) -> list[int]:
    """Replays both ends, which shows for which clients the answer differs between them."""
    exceptions = promise.most(requests.clients)
    at_least = requests.least_bursts(int(counts[0]), shape.period, shape.algorithm)
    most = kept_for(at_least, exceptions)
    if len(counts) == 1:
        return [most]
    at_most = requests.least_bursts(int(counts[-1]), shape.period, shape.algorithm)
    least = kept_for(at_most, exceptions)
    always = at_most > most
    open_ones = (at_least > least) & ~always
    left = exceptions - int(np.count_nonzero(always))
    between = [least] * (len(counts) - 2)
    if np.count_nonzero(open_ones) > left:
        part = requests.of_clients(open_ones)
        between = [
            max(least, kept_for(part.least_bursts(rate, shape.period, shape.algorithm), left))
            for rate in counts[1:-1].tolist()
        ]
    return [most, *between, least]


def _bursts_for_requests(
    counts: NDArray[np.int64], promise: Promise, shape: Shape, requests: Requests
) -> list[int]:
    recommended = int(counts[-1])
    bursts = []
    for rate in counts.tolist():
        burst = least_burst(
            rate,
            promise,
            shape,
            requests,
            requests.least_bursts(rate, shape.period, shape.algorithm),
            known=recommended if rate == recommended else None,
            too_great=_MOST_BURST * recommended + 1,
        )
        bursts.append(burst)
    return bursts
