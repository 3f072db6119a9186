"""The requests of a log, as every analysis takes them: in the order of their times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._limit import Limit
from tidegate._tuning.columns import as_costs, check_length, shown
from tidegate._tuning.keys import Keys, as_keys
from tidegate._tuning.replay import Replay, replay
from tidegate._tuning.times import as_times

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from typing import Union

    from tidegate._limit import LimitLike
    from tidegate.types import Algorithm

    Period = Union[str, float, timedelta]

__all__ = ["BUCKETS", "Requests", "as_share", "limit_of"]

# So that no sum of costs wraps round.
_MOST_UNITS = 2**62
BUCKETS = ("token-bucket", "gcra", "leaky-bucket")


class Requests:
    """Requests by time; clients are numbered, and each of them has requests."""

    __slots__ = ("clients", "codes", "costs", "names", "ns", "order")
    ns: NDArray[np.int64]
    codes: NDArray[np.uint32]
    costs: NDArray[np.int64] | None
    clients: int
    names: Any
    """Of each client its key."""
    order: NDArray[np.int64] | None
    """The position that each request was given at; None where they came in order."""

    def __init__(
        self,
        ns: NDArray[np.int64],
        codes: NDArray[np.uint32],
        costs: NDArray[np.int64] | None,
        names: Any,
        order: NDArray[np.int64] | None = None,
    ) -> None:
        """`codes` may leave out numbers of `names`; those are no clients then."""
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
        """As callers give them. Raises ConfigurationError for bad input, and for none at all."""
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
        """Some of them, by a mask, positions in order, or a slice."""
        costs = None if self.costs is None else self.costs[wanted]
        return Requests(self.ns[wanted], self.codes[wanted], costs, self.names)

    def of_clients(self, wanted: NDArray[np.bool_]) -> Requests:
        """Those of some clients."""
        return self if wanted.all() else self.select(wanted[self.codes])

    def counts(self) -> NDArray[np.int64]:
        """How many requests each client has."""
        return np.bincount(self.codes, minlength=self.clients).astype(np.int64)

    def replay(
        self, limit: LimitLike, algorithm: Algorithm = "token-bucket", columns: Iterable[str] = ()
    ) -> Replay:
        """What `limit` would have said."""
        keys = Keys(self.codes, np.arange(self.clients))
        # As datetimes they were checked already.
        times = self.ns.view("datetime64[ns]")
        return replay(
            limit, keys, times, self.costs, algorithm=algorithm, columns=columns, progress=False
        )

    def least_limits(self, period: Period, algorithm: Algorithm) -> NDArray[np.int64]:
        """See tuning.least_limits(): of each client."""
        shape = limit_of(1, period, algorithm)
        least: NDArray[np.int64] = _core.least_limits(
            shape, self.codes, self.clients, self.ns, self.costs
        )
        return least

    def least_bursts(self, count: int, period: Period, algorithm: Algorithm) -> NDArray[np.int64]:
        """Of each client the least burst with which a bucket of `count` refuses it nothing."""
        spent = np.bincount(self.codes, self.costs, self.clients)
        plenty = max(int(spent.max()), count)
        limit = limit_of(count, period, algorithm, plenty)
        remaining = self.replay(limit, columns=("remaining",)).remaining
        least_left = np.full(self.clients, plenty, np.int64)
        np.minimum.at(least_left, self.codes, remaining)
        return plenty - least_left

    def in_order_given(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column by time, put back in the order in which the requests were given."""
        if self.order is None:
            return column
        given = np.empty_like(column)
        given[self.order] = column
        return given


def limit_of(
    count: int, period: Period, algorithm: Algorithm = "token-bucket", burst: int | None = None
) -> Limit:
    """A limit; without a burst where that is the count, or the algorithm has none."""
    if burst is None or burst == count:
        return Limit(count, period, algorithm=algorithm)
    return Limit(count, period, burst=burst, algorithm=algorithm)


def as_share(value: Any, what: str) -> float:
    """A share from 0 up to, but not, 1. Raises ConfigurationError for others."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise ArgumentTypeError(
            f"{what} is {shown(value)}; expected a share such as 0.001, which is 0.1 %"
        )
    if not 0 <= value < 1:
        raise ConfigurationError(
            f"{what} is {value}; expected a share from 0 up to, but not, 1, such as 0.001, which "
            "is 0.1 %"
        )
    return float(value)
