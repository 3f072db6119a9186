"""Recommends a limit from the first part of a log and checks it on the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.caveats import refused_then
from tidegate.tuning.effect import Effect, effect_columns, effect_of, texts
from tidegate.tuning.frame import Frame
from tidegate.tuning.goal import Goal
from tidegate.tuning.log_arguments import takes_columns
from tidegate.tuning.recommend import Recommendation, recommend_for
from tidegate.tuning.requests import Requests, as_share

if TYPE_CHECKING:
    from tidegate.tuning.promise import Promise
    from tidegate.tuning.requests import Period
    from tidegate.types import Algorithm

__all__ = ["Backtest", "backtest"]


@dataclass(frozen=True)
class Backtest:
    """The promise made from the first part of a log, and the limit's effect on the second."""

    recommendation: Recommendation
    split_at: np.datetime64
    """The instant, in UTC, at which the second part begins."""
    first: Effect
    second: Effect
    """The effect on the second part, which is replayed from an empty state."""

    @property
    def promise(self) -> Promise:
        """What the recommendation promised."""
        return self.recommendation.promise

    @property
    def kept(self) -> bool:
        """Whether the promise was kept on the second part."""
        second = self.second
        if self.promise.of == "clients":
            return second.clients_touched <= self.promise.most(second.clients)
        return second.refused <= self.promise.most(second.requests)

    @property
    def frame(self) -> Frame:
        """One row for each part."""
        parts = (self.first, self.second)
        return Frame(
            {
                "part": texts(("first", "second")),
                "limit": texts(str(part.limit) for part in parts),
                **effect_columns(parts),
                "promise": texts([str(self.promise)] * 2),
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values that JSON can encode."""
        return {
            "split_at": str(self.split_at),
            "kept": self.kept,
            "parts": self.frame.to_dict(),
            "recommendation": self.recommendation.to_dict(),
        }

    def __str__(self) -> str:
        kept = "kept" if self.kept else "broken"
        return (
            f"{self.recommendation.limit} from the requests before {self.split_at} UTC promised "
            f"{self.promise}.\nOn the later requests, the promise was {kept}:\n{self.frame!r}"
        )

    def _repr_html_(self) -> str:
        kept = "kept" if self.kept else "broken"
        return (
            f"<p>{self.recommendation.limit}: the promise was {kept}.</p>{self.frame._repr_html_()}"
        )


@takes_columns
def backtest(
    keys: Any,
    times: Any,
    *,
    split: float = 0.5,
    refuse_clients: float | None = None,
    refuse_requests: float | None = None,
    period: Period = "minute",
    algorithm: Algorithm = "token-bucket",
    costs: Any = None,
    status: Any = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Backtest:
    """Recommends a limit from the first part of a log and replays it on the second.

    `split` is the share of the log's time that the first part takes: 0.5 splits it in half. The
    other arguments are those of recommend(). Raises ConfigurationError if a part has no requests.
    """
    goal = Goal.of(refuse_clients, refuse_requests, period, algorithm, confidence, seed)
    if as_share(split, "split", "0.5, which is half") == 0:
        raise ConfigurationError("split is 0; expected a share of the log's time, such as 0.5")
    requests = Requests.of(keys, times, costs)
    begin, end = int(requests.ns[0]), int(requests.ns[-1])
    at = begin + round((end - begin) * split)
    middle = int(np.searchsorted(requests.ns, at, side="left"))
    if not 0 < middle < len(requests):
        raise ConfigurationError(
            f"the {len(requests):,} requests within {(end - begin) / 1e9:,.4g} s leave a part "
            f"without any at a split of {split}; expected requests in both parts"
        )
    refused = None if status is None else refused_then(_by_time(status, requests)[:middle], middle)
    first, second = requests.select(slice(middle)), requests.select(slice(middle, None))
    recommendation = recommend_for(first, goal, refused)
    return Backtest(
        recommendation,
        np.datetime64(at, "ns"),
        recommendation.effect,
        effect_of(recommendation.limit, second, None),
    )


def _by_time(status: Any, requests: Requests) -> Any:
    refused_then(status, len(requests))
    column = np.asarray(status)
    return column if requests.order is None else column[requests.order]
