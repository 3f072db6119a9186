"""Compares limits and algorithms on the same requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from tidegate.limiter.clock import ManualClock
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limit import Limit
from tidegate.limiter.limiter import Limiter
from tidegate.tuning.bursts import most_of_each_client, most_together
from tidegate.tuning.columns import shown
from tidegate.tuning.effect import texts
from tidegate.tuning.frame import Frame
from tidegate.tuning.log_arguments import takes_columns
from tidegate.tuning.progress import each_shown
from tidegate.tuning.requests import Requests, limit_of
from tidegate.types import ALGORITHMS, BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tidegate.limiter.limit import LimitLike
    from tidegate.tuning.requests import Period
    from tidegate.types import Algorithm

    Row = Union[LimitLike, tuple[LimitLike, Algorithm]]

__all__ = ["Comparison", "compare"]

_ALGORITHMS = tuple(each for each in ALGORITHMS if each != "concurrency")
_ORDINARY = 0.99
# Rows times requests that take some seconds.
_LONG = 20_000_000
_NEVER = np.iinfo(np.int64).max
_NOTE_ORDINARY = (
    "An ordinary client is one whose own peak, the most units that it asked for in any window, is "
    "at most the p99 of the peaks of all clients."
)
_NOTE_BURSTS = (
    "The worst burst is the most units that passed in any span shorter than the window, of one "
    "client and of all together; what a leaky bucket delays counts when its delay is over. The "
    "peak rate is that of all together in a span of a second."
)


class Comparison(Frame):
    """The Frame of compare(), with notes."""

    __slots__ = ("notes",)
    notes: tuple[str, ...]
    """What the columns mean."""

    def __init__(self, columns: Mapping[str, Any], notes: Iterable[str]) -> None:
        super().__init__(columns)
        self.notes = tuple(notes)


@dataclass
class _Subject:
    name: str
    limits: tuple[Limit, ...]

    @property
    def period_ns(self) -> int:
        return max(limit.period_ns for limit in self.limits)


@takes_columns
def compare(
    limits: Row | Mapping[str, Row] | Iterable[Row],
    keys: Any,
    times: Any,
    costs: Any = None,
    *,
    algorithm: Algorithm = "token-bucket",
    window: Period | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Replays the same requests with several limits or algorithms.

    `limits` is a dict by name, or a list, with an item for each row: a limit, a list of limits
    (one plan), or a pair of one of these and its algorithm. A single limit is tried with every
    algorithm. Bursts are counted in any span shorter than `window`, by default the longest period
    of the row's limits. The other arguments are those of replay(); the progress bar counts rows.

    The columns are name, limit, algorithm, requests, refused, refused_share, clients_touched (the
    number refused at least once), clients_touched_share, ordinary_touched and
    ordinary_touched_share (the same for ordinary clients, see `notes`), window (seconds),
    worst_burst_client and worst_burst_all (units), peak_rate (units a second) and longest_wait
    (seconds that a refused or delayed request had to wait; inf if it can never pass).
    """
    requests = Requests.of(keys, times, costs)
    subjects = _subjects(limits, algorithm)
    window_ns = None if window is None else limit_of(1, window).period_ns
    ordinary: dict[int, NDArray[np.bool_]] = {}
    rows = []
    long = len(requests) * len(subjects) >= _LONG
    for subject in each_shown(progress, subjects, "compare", long=long):
        span_ns = subject.period_ns if window_ns is None else window_ns
        if span_ns not in ordinary:
            ordinary[span_ns] = _ordinary(requests, span_ns)
        rows.append(_row(subject, requests, span_ns, ordinary[span_ns]))
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    described: dict[str, Any] = {
        "name": texts(subject.name for subject in subjects),
        "limit": texts("; ".join(map(str, subject.limits)) for subject in subjects),
        "algorithm": texts(subject.limits[0].algorithm for subject in subjects),
    }
    return Comparison({**described, **columns}, (_NOTE_ORDINARY, _NOTE_BURSTS))


def _row(
    subject: _Subject, requests: Requests, span_ns: int, ordinary: NDArray[np.bool_]
) -> dict[str, float]:
    answer = requests.replay(subject.limits, columns=("retry_after", "delay"))
    touched = np.zeros(requests.clients, np.bool_)
    touched[requests.codes[~answer.allowed]] = True
    wait_ns = int(answer.retry_after_ns.max())
    wait = np.inf if wait_ns == _NEVER else wait_ns / 1e9
    passed, delay = requests.select(answer.allowed), answer.delay
    if delay.any():
        wait = max(wait, float(delay.max()))
        passed = _delayed(passed, delay[answer.allowed])
    return {
        "requests": len(requests),
        "refused": answer.refused,
        "refused_share": answer.refused_share,
        "clients_touched": int(touched.sum()),
        "clients_touched_share": float(touched.mean()),
        "ordinary_touched": int(touched[ordinary].sum()),
        "ordinary_touched_share": float(touched[ordinary].mean()),
        "window": span_ns / 1e9,
        "worst_burst_client": int(most_of_each_client(passed, span_ns).max(initial=0)),
        "worst_burst_all": most_together(passed, span_ns),
        "peak_rate": float(most_together(passed, 10**9)),
        "longest_wait": wait,
    }


def _delayed(passed: Requests, delay: NDArray[np.float64]) -> Requests:
    """The instants at which delayed callers of a leaky bucket proceed."""
    ns = passed.ns + np.round(delay * 1e9).astype(np.int64)
    order = np.argsort(ns, kind="stable")
    costs = None if passed.costs is None else passed.costs[order]
    return Requests(ns[order], passed.codes[order], costs, passed.names)


def _ordinary(requests: Requests, span_ns: int) -> NDArray[np.bool_]:
    peaks = most_of_each_client(requests, span_ns)
    ordinary: NDArray[np.bool_] = peaks <= np.quantile(peaks, _ORDINARY, method="higher")
    return ordinary


def _subjects(limits: Any, algorithm: Algorithm) -> list[_Subject]:
    if isinstance(limits, (str, Limit)):
        text = str(limits)
        return [_Subject(each, _limits(text, each)) for each in _ALGORITHMS if _has(text, each)]
    if isinstance(limits, (bytes, tuple)) or not hasattr(limits, "__iter__"):
        raise ArgumentTypeError(
            f"the limits are {shown(limits)}; expected a dict by name, a list, or one limit such "
            "as '100/minute'"
        )
    if hasattr(limits, "items"):
        subjects = [_subject(str(name), row, algorithm) for name, row in limits.items()]
    else:
        subjects = [_subject(None, row, algorithm) for row in limits]
    if not subjects:
        raise ConfigurationError("no limit was given; expected at least one")
    return subjects


def _has(text: str, algorithm: Algorithm) -> bool:
    """Whether an algorithm can have this limit: only buckets have a burst."""
    return "burst" not in text or algorithm in BUCKETS


def _subject(name: str | None, row: Any, algorithm: Algorithm) -> _Subject:
    if isinstance(row, tuple):
        if len(row) != 2:
            raise ConfigurationError(
                f"a row is {shown(row)}; expected a limit, or a limit and its algorithm"
            )
        row, algorithm = row
    limits = _limits(row, algorithm)
    text = "; ".join(map(str, limits))
    return _Subject(name or f"{text} {limits[0].algorithm}", limits)


def _limits(limit: Any, algorithm: Algorithm) -> tuple[Limit, ...]:
    """Returns the limits as a Limiter holds them: checked, and each once."""
    return Limiter(limit, algorithm=algorithm, clock=ManualClock()).limits
