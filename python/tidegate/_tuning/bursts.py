"""The most that comes in any span of time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegate._errors import ConfigurationError
from tidegate._tuning.requests import Requests

__all__ = ["most_of_each_client", "most_together"]


def most_together(ns: NDArray[np.int64], units: NDArray[np.int64], span_ns: int) -> int:
    """The most units in any span shorter than `span_ns`; `ns` are in order."""
    if not len(ns):
        return 0
    total = np.cumsum(units)
    # Each span ends with a request: what came up to it, but for what is too old.
    first = np.searchsorted(ns, ns - span_ns, side="right")
    return int((total - total[first] + units[first]).max())


def most_of_each_client(requests: Requests, span_ns: int) -> NDArray[np.int64]:
    """Of each client the most units in any span shorter than `span_ns`."""
    try:
        return requests.least_limits(span_ns / 1e9, "sliding-log")
    except ConfigurationError:  # more than a log can count
        order = np.argsort(requests.codes, kind="stable")
        begins = np.searchsorted(requests.codes[order], np.arange(requests.clients + 1))
        most = [
            most_together(requests.ns[own], requests.units[own], span_ns)
            for own in (order[a:b] for a, b in zip(begins[:-1], begins[1:]))
        ]
        return np.array(most, np.int64)
