"""The requests of a log, in the order of their times, as every analysis uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limit import Limit
from tidegate.tuning.columns import as_costs, check_length, shown
from tidegate.tuning.keys import Keys, as_keys
from tidegate.tuning.replay import Replay, replay
from tidegate.tuning.times import as_times

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from typing import Union

    from tidegate.limiter.limit import LimitLike
    from tidegate.types import Algorithm

    Period = Union[str, float, timedelta]

__all__ = ["Requests", "as_share", "limit_of"]

# The bound on the sum of costs, so that it cannot overflow.
_MOST_UNITS = 2**62


class Requests:
    """Requests sorted by time. Clients are numbered, and each has at least one request."""

    __slots__ = ("clients", "codes", "costs", "names", "ns", "order")
    ns: NDArray[np.int64]
    codes: NDArray[np.uint32]
    costs: NDArray[np.int64] | None
    clients: int
    names: Any
    """The key of each client."""
    order: NDArray[np.int64] | None
    """The given position of each request; None if requests came in order."""

    def __init__(
        self,
        ns: NDArray[np.int64],
        codes: NDArray[np.uint32],
        costs: NDArray[np.int64] | None,
        names: Any,
        order: NDArray[np.int64] | None = None,
    ) -> None:
        """Names without any of `codes` do not become clients."""
        counts = np.bincount(codes, minlength=len(names))
        used = np.flatnonzero(counts)
        if len(used) < len(names):
            numbers = np.zeros(len(names), np.uint32)
            numbers[used] = np.arange(len(used), dtype=np.uint32)
            codes = numbers[codes]
            names = names[used] if isinstance(names, np.ndarray) else [names[at] for at in used]
        self.ns, self.codes, self.costs, self.order = ns, codes, costs, order
        self.names, self.clients = names, len(names)

    @classmethod
    def of(cls, keys: Any, times: Any, costs: Any) -> Requests:
        """Reads the columns of a caller. Raises ConfigurationError for bad or empty input."""
        checked = as_times(times)
        column = as_keys(keys)
        check_length(len(column), "keys", len(checked.ns))
        charged = as_costs(costs, len(checked.ns))
        if not len(column):
            raise ConfigurationError("there are 0 requests; expected at least one")
        if charged is not None and charged.sum(dtype=np.float64) >= _MOST_UNITS:
            raise ConfigurationError(
                f"the costs add up to {charged.sum(dtype=np.float64):.3g}; expected less than 2**62"
            )
        ns, codes, order = checked.ns, np.ascontiguousarray(column.codes), checked.order
        if order is not None:
            ns, codes = ns[order], codes[order]
            charged = None if charged is None else charged[order]
        return cls(ns, codes, charged, column.names, order)

    def __len__(self) -> int:
        return len(self.ns)

    def select(self, wanted: NDArray[Any] | slice) -> Requests:
        """Returns some of the requests, by a mask, ascending positions, or a slice."""
        costs = None if self.costs is None else self.costs[wanted]
        return Requests(self.ns[wanted], self.codes[wanted], costs, self.names)

    def of_clients(self, wanted: NDArray[np.bool_]) -> Requests:
        """Returns the requests of some clients."""
        return self if wanted.all() else self.select(wanted[self.codes])

    def counts(self) -> NDArray[np.int64]:
        """Returns the number of requests of each client."""
        return np.bincount(self.codes, minlength=self.clients).astype(np.int64)

    def replay(
        self, limit: LimitLike, algorithm: Algorithm = "token-bucket", columns: Iterable[str] = ()
    ) -> Replay:
        """Replays the requests through `limit`."""
        keys = Keys(self.codes, np.arange(self.clients))
        # The times were checked when they were read as datetimes.
        times = self.ns.view("datetime64[ns]")
        return replay(
            limit, keys, times, self.costs, algorithm=algorithm, columns=columns, progress=False
        )

    def least_limits(self, period: Period, algorithm: Algorithm) -> NDArray[np.int64]:
        """Returns the least limit of each client; see tuning.least_limits()."""
        shape = limit_of(1, period, algorithm)
        least: NDArray[np.int64] = _core.least_limits(
            shape, self.codes, self.clients, self.ns, self.costs
        )
        return least

    def least_bursts(self, count: int, period: Period, algorithm: Algorithm) -> NDArray[np.int64]:
        """Returns for each client the least burst with which `count` refuses it nothing."""
        spent = np.bincount(self.codes, self.costs, self.clients)
        plenty = max(int(spent.max()), count)
        limit = limit_of(count, period, algorithm, plenty)
        remaining = self.replay(limit, columns=("remaining",)).remaining
        least_left = np.full(self.clients, plenty, np.int64)
        np.minimum.at(least_left, self.codes, remaining)
        return plenty - least_left

    def in_order_given(self, column: NDArray[Any]) -> NDArray[Any]:
        """Puts a column sorted by time back into the given order of the requests."""
        if self.order is None:
            return column
        given = np.empty_like(column)
        given[self.order] = column
        return given


def limit_of(
    count: int, period: Period, algorithm: Algorithm = "token-bucket", burst: int | None = None
) -> Limit:
    """Makes a limit; its burst is left out if it equals the count or the algorithm has none."""
    if burst is None or burst == count:
        return Limit(count, period, algorithm=algorithm)
    return Limit(count, period, burst=burst, algorithm=algorithm)


def as_share(value: Any, what: str, example: str = "0.001, which is 0.1 %") -> float:
    """Returns a share from 0 to below 1. Raises ConfigurationError for any other value."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise ArgumentTypeError(f"{what} is {shown(value)}; expected a share such as {example}")
    if not 0 <= value < 1:
        raise ConfigurationError(
            f"{what} is {value}; expected a share of at least 0 and below 1, such as {example}"
        )
    return float(value)
