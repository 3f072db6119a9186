"""The least limit that would have refused a key nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate._limit import Limit
from tidegate._tuning.columns import as_costs, check_length
from tidegate._tuning.keys import as_keys
from tidegate._tuning.times import as_times

if TYPE_CHECKING:
    from datetime import timedelta

    from tidegate.types import Algorithm

    Period = Union[str, float, timedelta]

__all__ = ["least_limits"]


def least_limits(
    keys: Any,
    times: Any,
    period: Period,
    costs: Any = None,
    *,
    algorithm: Algorithm = "token-bucket",
) -> NDArray[np.int64]:
    """For each key the least count N with which a limit of N in `period` refuses it nothing.

    A bucket has a burst of N. `period` is a unit such as ``"minute"`` or ``"5 minutes"``, seconds,
    or a timedelta. The other arguments are those of replay(). The result has one count for each
    of the names of `keys` (``tuning.as_keys(keys).names``), by their code; 0 for names without
    requests. A limit of N - 1 would have refused the key something.

    Raises ConfigurationError where a key needs more than a limit can count, and for concurrency,
    which depends on how long calls last.
    """
    checked = as_times(times)
    column = as_keys(keys)
    check_length(len(column), "keys", len(checked.ns))
    charged = as_costs(costs, len(checked.ns))
    codes, ns = np.ascontiguousarray(column.codes), checked.ns
    if checked.order is not None:
        codes, ns = codes[checked.order], ns[checked.order]
        charged = None if charged is None else charged[checked.order]
    shape = Limit(1, period, algorithm=algorithm)
    least: NDArray[np.int64] = _core.least_limits(shape, codes, len(column.names), ns, charged)
    return least
