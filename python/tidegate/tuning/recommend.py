"""Recommends the smallest limit that would have refused hardly anybody."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from tidegate.limiter.limit import Limit
from tidegate.tuning.caveats import notes_on, refused_then, warnings_on
from tidegate.tuning.columns import check_length
from tidegate.tuning.effect import Effect, effect_columns, effect_of, texts
from tidegate.tuning.frame import Frame
from tidegate.tuning.goal import Goal
from tidegate.tuning.interval import Days, interval_of
from tidegate.tuning.keys import as_keys
from tidegate.tuning.log_arguments import takes_columns
from tidegate.tuning.pairs import pairs_of, tightest
from tidegate.tuning.progress import each_shown
from tidegate.tuning.promise import Promise, least_count
from tidegate.tuning.requests import Requests, limit_of
from tidegate.types import BUCKETS

if TYPE_CHECKING:
    from tidegate.tuning.requests import Period
    from tidegate.types import Algorithm

__all__ = ["Recommendation", "Recommendations", "recommend", "recommend_for"]


@dataclass(frozen=True)
class Recommendation:
    """A recommended limit, its promise, its effect on the log, and the doubts about it."""

    promise: Promise
    limit: Limit
    """The least count that keeps the promise; a bucket has a burst of the count."""
    effect: Effect
    """The effect of `limit` on the log, by replay."""
    interval: tuple[int, int]
    """The confidence interval of the count, by bootstrap over clients and days."""
    confidence: float
    peaks: dict[str, float]
    """p50, p90, p99, max, mean and sd of the least limits of the clients."""
    by_variance: int | None
    """The count that keeps the promise for any distribution of needs with this mean and variance
    (Cantelli); None for a promise about requests, or a promise that nobody is refused."""
    pairs: Frame | None
    """For buckets, the least burst for each sustained rate, with limit, count, burst and
    most_in_a_period, which is count + burst."""
    tight: Limit | None
    """For buckets, the pair with which a client can use the least in a period."""
    days: int
    warnings: tuple[str, ...]
    """In what respect the log is too small."""
    notes: tuple[str, ...]
    """What the log does not show."""

    @property
    def count(self) -> int:
        """The count of `limit`."""
        return self.limit.count

    @property
    def cautious(self) -> Limit:
        """The limit at the upper end of the interval."""
        return _with_count(self.limit, self.interval[1])

    @property
    def frame(self) -> Frame:
        """One row with all numbers."""
        return _frame([self])

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values that JSON can encode."""
        return {
            **{name: items[0] for name, items in self.frame.to_dict().items()},
            "pairs": None if self.pairs is None else self.pairs.to_dict(),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [f"{name + ':':<14} {value}" for name, value in self._summary()]
        for heading, sentences in (("Warnings", self.warnings), ("Notes", self.notes)):
            if sentences:
                lines += [f"{heading}:", *(f"  - {sentence}" for sentence in sentences)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self._summary()
        )
        said = "".join(f"<li>{html.escape(each)}</li>" for each in (*self.warnings, *self.notes))
        pairs = "" if self.pairs is None else self.pairs._repr_html_()
        return f"<table>{rows}</table>{pairs}<ul>{said}</ul>"

    def _summary(self) -> list[tuple[str, str]]:
        effect, peaks = self.effect, self.peaks
        low, high = self.interval
        rows = [
            ("limit", f"{self.limit} ({self.limit.algorithm})"),
            ("promise", str(self.promise)),
            (
                "on this log",
                f"{effect.clients_touched:,} of {effect.clients:,} clients "
                f"({100 * effect.clients_touched_share:.3g} %) and {effect.refused:,} of "
                f"{effect.requests:,} requests ({100 * effect.refused_share:.3g} %) refused",
            ),
            ("interval", f"{low:,} to {high:,} at {100 * self.confidence:g} % confidence"),
            ("cautious", str(self.cautious)),
        ]
        if self.tight is not None:
            rows.append(("tight", str(self.tight)))
        if self.by_variance is not None:
            rows.append(("by variance", f"{self.by_variance:,}"))
        rows.append(
            ("clients need", ", ".join(f"{name} {value:,.4g}" for name, value in peaks.items()))
        )
        return rows


class Recommendations(Mapping[Any, Recommendation]):
    """A recommendation for each group, in descending order of their requests."""

    def __init__(self, groups: dict[Any, Recommendation]) -> None:
        self._groups = groups

    def __getitem__(self, name: Any) -> Recommendation:
        return self._groups[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def frame(self) -> Frame:
        """One row for each group."""
        return _frame(list(self._groups.values()), list(map(str, self._groups)))

    def to_dict(self) -> dict[str, Any]:
        """Returns Recommendation.to_dict() by the name of the group."""
        return {str(name): each.to_dict() for name, each in self._groups.items()}

    def __repr__(self) -> str:
        return repr(self.frame)

    def __str__(self) -> str:
        return "\n\n".join(f"== {name}\n{each}" for name, each in self._groups.items())

    def _repr_html_(self) -> str:
        return self.frame._repr_html_()


@overload
def recommend(
    keys: Any,
    times: Any,
    *,
    refuse_clients: float | None = None,
    refuse_requests: float | None = None,
    period: Period = "minute",
    algorithm: Algorithm = "token-bucket",
    costs: Any = None,
    by: None = None,
    status: Any = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: bool | None = None,
) -> Recommendation: ...
@overload
def recommend(
    keys: Any,
    times: Any,
    *,
    refuse_clients: float | None = None,
    refuse_requests: float | None = None,
    period: Period = "minute",
    algorithm: Algorithm = "token-bucket",
    costs: Any = None,
    by: Any,
    status: Any = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: bool | None = None,
) -> Recommendations: ...
@takes_columns
def recommend(
    keys: Any,
    times: Any,
    *,
    refuse_clients: float | None = None,
    refuse_requests: float | None = None,
    period: Period = "minute",
    algorithm: Algorithm = "token-bucket",
    costs: Any = None,
    by: Any = None,
    status: Any = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: bool | None = None,
) -> Recommendation | Recommendations:
    """Recommends the smallest limit that would have refused few enough of these requests.

    `refuse_clients` is the share of the clients that may be refused at least once (default 0.001,
    which is 0.1 %); `refuse_requests` is the share of the requests that may be refused instead.
    `by` is a column such as tiers or endpoints: each value gets its own recommendation, from its
    requests only, and the progress bar counts them. With `status`, the column of HTTP statuses, a
    note says how many requests were already refused. The other arguments are those of replay() and
    least_limits().

    The count is the least that keeps the promise in a replay of this log; one less would break it.
    `confidence` and `seed` are those of the bootstrap. docs/tuning-recommend.md describes the
    method. Raises ConfigurationError for bad input, and if there are no requests.
    """
    goal = Goal.of(refuse_clients, refuse_requests, period, algorithm, confidence, seed)
    requests = Requests.of(keys, times, costs)
    if by is None:
        return recommend_for(requests, goal, refused_then(status, len(requests)))
    groups = as_keys(by, "groups", optional=True)
    check_length(len(groups), "groups", len(requests))
    refused = None
    if status is not None:
        refused_then(status, len(requests))
        refused = np.asarray(status) == 429
        refused = refused if requests.order is None else refused[requests.order]
    codes = groups.codes if requests.order is None else groups.codes[requests.order]
    return Recommendations(
        {
            groups.names[code]: recommend_for(
                requests.select(at), goal, None if refused is None else int(refused[at].sum())
            )
            for code, at in each_shown(progress, _parts(codes), "recommend", long=True)
        }
    )


def _parts(codes: NDArray[np.uint32]) -> list[tuple[int, NDArray[np.int64]]]:
    """Returns the positions of each code, the most frequent code first."""
    counts = np.bincount(codes)
    by_code = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    return [
        (code, by_code[code])
        for code in np.argsort(-counts, kind="stable").tolist()
        if counts[code]
    ]


def recommend_for(requests: Requests, goal: Goal, refused: int | None) -> Recommendation:
    """Makes the recommendation for requests, of which `refused` were refused when they came."""
    promise, shape = goal.promise, goal.shape
    least = requests.least_limits(shape.period, shape.algorithm)
    count = least_count(promise, shape, requests, least)
    limit = limit_of(count, shape.period, shape.algorithm)
    days = Days(requests)
    pairs = tight = None
    if shape.algorithm in BUCKETS:
        pairs = pairs_of(count, promise, shape, requests)
        tight = tightest(pairs, shape)
    peaks = _peaks(least)
    return Recommendation(
        promise=promise,
        limit=limit,
        effect=effect_of(limit, requests, least > count),
        interval=interval_of(count, goal, requests, least, days),
        confidence=goal.confidence,
        peaks=peaks,
        by_variance=_by_variance(promise, peaks),
        pairs=pairs,
        tight=tight,
        days=days.count,
        warnings=warnings_on(requests, promise, limit.period),
        notes=notes_on(requests, days, refused),
    )


def _peaks(least: NDArray[np.int64]) -> dict[str, float]:
    p50, p90, p99 = np.quantile(least, (0.5, 0.9, 0.99), method="inverted_cdf").tolist()
    spread = float(least.std(ddof=1)) if len(least) > 1 else 0.0
    return {
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": int(least.max()),
        "mean": float(least.mean()),
        "sd": spread,
    }


def _by_variance(promise: Promise, peaks: dict[str, float]) -> int | None:
    if promise.of != "clients" or promise.share == 0:
        return None
    return math.ceil(peaks["mean"] + peaks["sd"] * math.sqrt(1 / promise.share - 1))


def _with_count(limit: Limit, count: int) -> Limit:
    period = str(limit).partition("/")[2]
    return Limit(f"{count}/{period.partition(' burst ')[0]}", algorithm=limit.algorithm)


def _frame(recommendations: list[Recommendation], groups: list[str] | None = None) -> Frame:
    every: dict[str, Any] = {} if groups is None else {"group": texts(groups)}
    every |= {
        "limit": texts(str(each.limit) for each in recommendations),
        "algorithm": texts(each.limit.algorithm for each in recommendations),
        "promise": texts(str(each.promise) for each in recommendations),
    }
    numbers: dict[str, Any] = {
        "count": [each.count for each in recommendations],
        "low": [each.interval[0] for each in recommendations],
        "high": [each.interval[1] for each in recommendations],
        **effect_columns([each.effect for each in recommendations]),
        **{
            name: [each.peaks[name] for each in recommendations]
            for name in ("p50", "p90", "p99", "max", "mean", "sd")
        },
        "days": [each.days for each in recommendations],
    }
    every |= {name: np.asarray(items) for name, items in numbers.items()}
    every["cautious"] = texts(str(each.cautious) for each in recommendations)
    if all(each.tight is not None for each in recommendations):
        every["tight"] = texts(str(each.tight) for each in recommendations)
    every["warnings"] = np.array([len(each.warnings) for each in recommendations])
    return Frame(every)
