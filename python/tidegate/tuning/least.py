"""The least limit that would have refused none of a key's requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate.limiter.limit import Limit
from tidegate.tuning.columns import as_costs, check_length
from tidegate.tuning.keys import as_keys
from tidegate.tuning.log_arguments import takes_columns
from tidegate.tuning.times import as_times

if TYPE_CHECKING:
    from datetime import timedelta

    from tidegate.types import Algorithm

    Period = Union[str, float, timedelta]

__all__ = ["least_limits"]


@takes_columns
def least_limits(
    keys: Any,
    times: Any,
    period: Period,
    costs: Any = None,
    *,
    algorithm: Algorithm = "token-bucket",
) -> NDArray[np.int64]:
    """Returns for each key the least count N with which `N/period` refuses none of its requests.

    A bucket has a burst of N. `period` is a unit such as ``"minute"`` or ``"5 minutes"``, seconds,
    or a timedelta. The other arguments are those of replay(). The result has one count for each
    name in ``tuning.as_keys(keys).names``, in that order, and 0 for names without requests. A
    limit of N - 1 would have refused at least one of the key's requests.

    Raises ConfigurationError if a key needs more than a limit can count, and for concurrency,
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
