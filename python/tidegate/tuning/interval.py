"""The confidence interval of a recommended count: bootstraps over clients and over days."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate.tuning.promise import kept_for
from tidegate.tuning.requests import limit_of

if TYPE_CHECKING:
    from tidegate.tuning.goal import Goal
    from tidegate.tuning.promise import Promise, Shape
    from tidegate.tuning.requests import Requests

__all__ = ["Days", "interval_of"]

_DAY_NS = 86_400 * 10**9
_DRAWS = 1_000
# The number of draws whose weights are in memory at once.
_AT_ONCE = 100
# Days are joined into blocks if there are more of them, or if a table of clients by days would
# be too large.
_MOST_BLOCKS = 28
_MOST_CELLS = 20_000_000
# Clients are resampled in groups if there are more of them.
_MOST_GROUPS = 2_000
_AROUND = (0.1, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0)


class Days:
    """The days, in UTC, that a log covers; neighbours are joined into blocks if there are many."""

    def __init__(self, requests: Requests) -> None:
        days = requests.ns // _DAY_NS
        starts = np.flatnonzero(np.diff(days)) + 1
        self.count = len(starts) + 1
        blocks = max(1, min(self.count, _MOST_BLOCKS, _MOST_CELLS // requests.clients))
        ends = np.append(starts, len(requests))
        block_of_day = np.arange(self.count) * blocks // self.count
        lengths = np.diff(np.concatenate([[0], ends]))
        self.blocks = blocks
        self.block_of: NDArray[np.int64] = np.repeat(block_of_day, lengths)
        """The block of each request."""


def interval_of(
    count: int, goal: Goal, requests: Requests, least: NDArray[np.int64], days: Days
) -> tuple[int, int]:
    """Returns the lowest and the highest count of the confidence interval."""
    promise, shape = goal.promise, goal.shape
    random = np.random.default_rng(goal.seed)
    tails = ((1 - goal.confidence) / 2, (1 + goal.confidence) / 2)
    if promise.of == "requests":
        drawn = _draws_of_requests(count, promise, shape, requests, least, days, random)
        low, high = _quantiles(drawn, tails)
        return min(low, count), max(high, count)
    low, high = _quantiles(_draws_of_clients(promise, least, random), tails)
    if days.blocks > 1:
        table = _peaks_by_block(shape, requests, days)
        whole = kept_for(table.max(axis=0), promise.most(requests.clients))
        least_of_days, most_of_days = _quantiles(_draws_of_days(promise, table, random), tails)
        # A maximum over fewer days can only fall, so the basic bootstrap turns falls into rises.
        low = min(low, count + whole - most_of_days)
        high = max(high, count + whole - least_of_days)
    return max(1, min(low, count)), max(high, count)


def _quantiles(drawn: NDArray[np.int64], tails: tuple[float, float]) -> tuple[int, int]:
    low, high = np.quantile(drawn, tails, method="inverted_cdf")
    return int(low), int(high)


def _draws_of_clients(
    promise: Promise, least: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """Returns counts for clients drawn with replacement, without drawing each client.

    The m-th smallest of n uniform numbers is distributed as Beta(m, n - m + 1). Scaled to n and
    rounded up, it is the m-th smallest of n draws from n ranks.
    """
    clients = len(least)
    rank = clients - promise.most(clients)
    drawn = np.ceil(clients * random.beta(rank, clients - rank + 1, _DRAWS)).astype(np.int64)
    ordered = np.sort(least)
    return ordered[np.clip(drawn, 1, clients) - 1]


def _peaks_by_block(shape: Shape, requests: Requests, days: Days) -> NDArray[np.int64]:
    """The least limit of each client in each block of days; 0 where it had no requests."""
    codes = (days.block_of * requests.clients + requests.codes).astype(np.uint32)
    least: NDArray[np.int64] = _core.least_limits(
        limit_of(1, shape.period, shape.algorithm),
        codes,
        days.blocks * requests.clients,
        requests.ns,
        requests.costs,
    )
    return least.reshape(days.blocks, requests.clients)


def _draws_of_days(
    promise: Promise, table: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """Returns counts for blocks of days drawn with replacement; repeats do not change a maximum."""
    blocks = len(table)
    draws = int(np.clip(200_000_000 // table.size, 50, _DRAWS))
    drawn = np.zeros((draws, blocks), np.bool_)
    drawn[np.arange(draws)[:, None], random.integers(0, blocks, (draws, blocks))] = True
    chosen, which = np.unique(drawn, axis=0, return_inverse=True)
    counts = []
    for rows in chosen:
        peaks = table[rows].max(axis=0)
        peaks = peaks[peaks > 0]
        counts.append(kept_for(peaks, promise.most(len(peaks))))
    return np.array(counts, np.int64)[which.reshape(-1)]


def _draws_of_requests(
    count: int,
    promise: Promise,
    shape: Shape,
    requests: Requests,
    least: NDArray[np.int64],
    days: Days,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """Returns counts for clients and blocks of days that are both drawn with replacement.

    Replays at some counts around the recommended one give the refusals by day and by group of
    clients. Each draw weights them. Between two counts, the share is interpolated linearly in
    logarithms.
    """
    groups = min(requests.clients, _MOST_GROUPS)
    group_of = random.permutation(requests.clients) % groups
    cells = days.block_of * groups + group_of[requests.codes]
    counts = np.unique(np.maximum(1, np.round(count * np.array(_AROUND)))).astype(np.int64)
    shape_of = (days.blocks, groups)
    part, of_part, cells_of_part = requests, least, cells
    asked = np.bincount(cells, minlength=days.blocks * groups).reshape(shape_of)
    refused = np.empty((*shape_of, len(counts)))
    for number, each in enumerate(counts.tolist()):
        concerned = of_part > each
        if np.count_nonzero(concerned) < 0.7 * len(concerned):
            cells_of_part = cells_of_part[concerned[part.codes]]
            part, of_part = part.of_clients(concerned), of_part[concerned]
        limit = limit_of(each, shape.period, shape.algorithm)
        allowed = part.replay(limit).allowed
        refused[:, :, number] = np.bincount(
            cells_of_part[~allowed], minlength=days.blocks * groups
        ).reshape(shape_of)
    some = refused.any(axis=(0, 2))  # most groups have no refusals
    refused = refused[:, some]
    drawn = []
    for _ in range(_DRAWS // _AT_ONCE):
        of_days = _weights(random, days.blocks)
        of_groups = _weights(random, groups)
        by_group = np.tensordot(of_days, refused, (1, 0))
        all_refused = np.einsum("bcg,bc->bg", by_group, of_groups[:, some])
        all_asked = np.einsum("bc,bc->b", of_days @ asked, of_groups)
        drawn += [
            _crossing(counts, shares / max(total, 1), promise.share)
            for shares, total in zip(all_refused, all_asked)
        ]
    return np.array(drawn, np.int64)


def _weights(random: np.random.Generator, size: int) -> NDArray[np.int64]:
    """Returns how often each of `size` items occurs, in several draws with replacement."""
    drawn = random.integers(0, size, (_AT_ONCE, size)) + size * np.arange(_AT_ONCE)[:, None]
    return np.bincount(drawn.ravel(), minlength=_AT_ONCE * size).reshape(_AT_ONCE, size)


def _crossing(counts: NDArray[np.int64], shares: NDArray[np.float64], share: float) -> int:
    """Returns the count at which the falling `shares` reach `share`; at most the last count."""
    below = shares <= share
    if not below.any():
        return int(counts[-1])
    at = int(below.argmax())
    if at == 0:
        return int(counts[0])
    x0, x1 = np.log(counts[at - 1 : at + 1])
    floor = 1e-9
    y0, y1, y = (np.log(max(each, floor)) for each in (shares[at - 1], shares[at], share))
    return int(np.ceil(np.exp(x0 + (x1 - x0) * (y0 - y) / (y0 - y1))))
