"""The what-if curve: what each of many limits would have refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limit import Limit, as_limits
from tidegate.tuning.columns import shown
from tidegate.tuning.effect import Effect, effect_of, effects_frame
from tidegate.tuning.frame import Frame
from tidegate.tuning.log_arguments import takes_columns
from tidegate.tuning.progress import each_shown
from tidegate.tuning.requests import Requests, limit_of
from tidegate.types import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate.tuning.requests import Period
    from tidegate.types import Algorithm

__all__ = ["WhatIf", "what_if"]

# Shares of touched clients at which the curve bends.
_TOUCHED = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
_EVEN = 14
# Rows times requests that take some seconds.
_LONG = 100_000_000


@takes_columns
def what_if(
    keys: Any,
    times: Any,
    limits: Any = None,
    costs: Any = None,
    *,
    period: Period = "minute",
    algorithm: Algorithm = "token-bucket",
    bursts: Iterable[int] | None = None,
    progress: bool | None = None,
) -> Frame:
    """Replays several limits and returns the requests refused and the clients touched by each.

    `limits` are counts in `period`, texts or Limits; by default about two dozen counts, chosen
    from the least limits of the clients. With `bursts`, each count of a bucket is combined with
    each burst; otherwise the burst equals the count. A client that is refused at least once is
    touched.

    The columns are limit, count, burst, refused, refused_share, clients_touched and
    clients_touched_share. The other arguments are those of replay(); the progress bar counts rows.
    For many questions about one log, make a WhatIf.
    """
    requests = Requests.of(keys, times, costs)
    return WhatIf._of(requests, period, algorithm).curve(limits, bursts, progress)


class WhatIf:
    """A log prepared for questions about many limits, such as those of a slider.

    Every answer is exact: it replays the requests of the clients that the limit may refuse, which
    takes about 20 ms for a log of a million. Answers are remembered.
    """

    period: float
    """The period of the limits in seconds."""
    algorithm: Algorithm
    requests: int
    clients: int
    least: NDArray[np.int64]
    """The least limits of the clients, ascending."""

    def __init__(
        self,
        keys: Any,
        times: Any,
        costs: Any = None,
        *,
        period: Period = "minute",
        algorithm: Algorithm = "token-bucket",
    ) -> None:
        """The arguments are those of replay(), and of least_limits()."""
        self._take(Requests.of(keys, times, costs), period, algorithm)

    @classmethod
    def _of(cls, requests: Requests, period: Period, algorithm: Algorithm) -> WhatIf:
        self = cls.__new__(cls)
        self._take(requests, period, algorithm)
        return self

    def _take(self, requests: Requests, period: Period, algorithm: Algorithm) -> None:
        shape = limit_of(1, period, algorithm)
        self.period, self.algorithm = shape.period, shape.algorithm
        self.requests, self.clients = len(requests), requests.clients
        self._period, self._requests = period, requests
        self._least = requests.least_limits(period, shape.algorithm)
        self.least = np.sort(self._least)
        self._known: dict[Limit, Effect] = {}

    def at(self, count: int, burst: int | None = None) -> Effect:
        """Returns the effect of `count` in the period; a bucket's burst is `burst` or `count`."""
        return self._effect(self._limit(count, burst))

    def allowed(self, count: int, burst: int | None = None) -> NDArray[np.bool_]:
        """Returns the mask of requests that pass a limit, in the given order of the requests."""
        answer = self._requests.replay(self._limit(count, burst)).allowed
        return self._requests.in_order_given(answer)

    def counts(self) -> NDArray[np.int64]:
        """Returns about two dozen counts at which the curve is worth examining."""
        most = int(self.least[-1])
        ranks = np.ceil((1 - np.array(_TOUCHED)) * self.clients).astype(np.int64) - 1
        bends = self.least[np.clip(ranks, 0, self.clients - 1)]
        even = np.geomspace(max(1, int(self.least[self.clients // 2])), most, _EVEN)
        return np.unique(np.concatenate([bends, np.round(even).astype(np.int64), [1, most]]))

    def curve(
        self,
        limits: Any = None,
        bursts: Iterable[int] | None = None,
        progress: bool | None = None,
    ) -> Frame:
        """Returns the columns of what_if(), with a row for each of `limits` and `bursts`."""
        if bursts is not None and self.algorithm not in BUCKETS:
            raise ConfigurationError(
                f"bursts were given for {self.algorithm}, which has none; expected token-bucket or "
                "leaky-bucket"
            )
        asked = self.counts().tolist() if limits is None else self._given(limits)
        if bursts is not None:
            given = [limit.count if isinstance(limit, Limit) else limit for limit in asked]
            asked = [self._limit(count, burst) for count in given for burst in bursts]
        chosen = [one if isinstance(one, Limit) else self._limit(one, None) for one in asked]
        chosen.sort(key=lambda limit: (limit.count / limit.period, limit.capacity))
        long = len(chosen) * self.requests >= _LONG
        in_turn = each_shown(progress, chosen, "what if", long=long)
        return effects_frame([self._effect(limit) for limit in in_turn])

    def _given(self, limits: Any) -> list[Any]:
        if isinstance(limits, (str, Limit)) or not hasattr(limits, "__iter__"):
            limits = [limits]
        asked: list[Any] = []
        for limit in limits:
            if isinstance(limit, (str, Limit)):
                asked += as_limits(limit, self.algorithm)
            else:
                asked.append(_count(limit, "the limits have"))
        if not asked:
            raise ConfigurationError("no limit was given; expected at least one")
        return asked

    def _limit(self, count: int, burst: int | None) -> Limit:
        checked = None if burst is None else _count(burst, "the burst is")
        return limit_of(_count(count, "the count is"), self._period, self.algorithm, checked)

    def _effect(self, limit: Limit) -> Effect:
        known = self._known.get(limit)
        if known is None:
            known = effect_of(limit, self._requests, self._concerned(limit))
            self._known[limit] = known
        return known

    def _concerned(self, limit: Limit) -> NDArray[np.bool_] | None:
        """Returns the clients that `limit` may refuse; None for all."""
        if limit.period != self.period or limit.algorithm != self.algorithm:
            return None
        # A burst greater than the count refuses no more than a burst of the count.
        concerned = self._least > min(limit.count, limit.capacity)
        return None if concerned.mean() > 0.9 else concerned

    def __repr__(self) -> str:
        return (
            f"WhatIf({self.requests:,} requests of {self.clients:,} clients, {self.algorithm}, "
            f"period of {self.period:g} s)"
        )


def _count(value: Any, what: str) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ArgumentTypeError(
            f"{what} {shown(value)}; expected an int, or a limit such as '100/minute'"
        )
    return int(value)
