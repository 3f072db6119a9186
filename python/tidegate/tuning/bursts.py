"""The most units that come within any span of time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.requests import Requests, limit_of

__all__ = ["most_of_each_client", "most_together"]


def most_together(requests: Requests, span_ns: int) -> int:
    """The most units of all clients in any span shorter than `span_ns`."""
    if not len(requests):
        return 0
    together = np.zeros(len(requests), np.uint32)
    return int(_most(together, 1, requests.ns, requests.costs, span_ns)[0])


def most_of_each_client(requests: Requests, span_ns: int) -> NDArray[np.int64]:
    """For each client, the most units in any span shorter than `span_ns`."""
    return _most(requests.codes, requests.clients, requests.ns, requests.costs, span_ns)


def _most(
    codes: NDArray[np.uint32],
    clients: int,
    ns: NDArray[np.int64],
    costs: NDArray[np.int64] | None,
    span_ns: int,
) -> NDArray[np.int64]:
    """The least sliding log that refuses nothing, if a sliding log can have that capacity.

    Otherwise the same number is counted here, which takes about ten times as long.
    """
    shape = limit_of(1, span_ns / 1e9, "sliding-log")
    try:
        least: NDArray[np.int64] = _core.least_limits(shape, codes, clients, ns, costs)
        return least
    except ConfigurationError:
        order = np.argsort(codes, kind="stable")
        begins = np.searchsorted(codes[order], np.arange(clients + 1))
        units = np.ones(len(ns), np.int64) if costs is None else costs
        owns = (order[begin:end] for begin, end in zip(begins[:-1], begins[1:]))
        return np.array([_most_in_order(ns[own], units[own], span_ns) for own in owns], np.int64)


def _most_in_order(ns: NDArray[np.int64], units: NDArray[np.int64], span_ns: int) -> int:
    """Counts the span that ends with each request, without requests that are too old."""
    total = np.cumsum(units)
    first = np.searchsorted(ns, ns - span_ns, side="right")
    return int((total - total[first] + units[first]).max(initial=0))
