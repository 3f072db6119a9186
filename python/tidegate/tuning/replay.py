"""Replays the requests of a log through limits, a column at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.tuning.clients import Clients, as_clients
from tidegate.tuning.columns import shown
from tidegate.tuning.frame import Frame, Framed
from tidegate.tuning.keys import Keys
from tidegate.tuning.log_arguments import takes_columns
from tidegate.tuning.progress import Progress
from tidegate.tuning.subjects import Subject, as_subject
from tidegate.tuning.times import Times, as_times

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tidegate._core import Limit
    from tidegate.limiter.limit import LimitLike
    from tidegate.limiter.limiter import Limiter
    from tidegate.limiter.plan import Plan
    from tidegate.rules.rule_set import RuleSet
    from tidegate.types import Algorithm

    Subjects = Union[LimitLike, Mapping[str, LimitLike], Limiter, Plan, RuleSet]

__all__ = ["Replay", "replay"]

_NEVER = np.iinfo(np.int64).max
_COLUMNS = ("remaining", "retry_after", "rule", "delay")
# Requests that take about a tenth of a second, so that Ctrl-C is quick, and enough for a bar.
_CHUNK, _SLOW_CHUNK = 4_000_000, 200_000
_LONG, _SLOW_LONG = 20_000_000, 1_000_000
_NOTE_CONCURRENCY = (
    "A place of a concurrency limit is held until its lease ends: the replay does not know when "
    "calls ended."
)
_NOTE_ORDER = "The times were not in order. The requests were taken in the order of their times."


@takes_columns
def replay(
    limit: Subjects,
    keys: Any,
    times: Any,
    costs: Any = None,
    *,
    used: Any = None,
    algorithm: Algorithm = "token-bucket",
    clients: str | Clients = "never",
    columns: Iterable[str] | None = None,
    progress: bool | None = None,
) -> Replay:
    """Replays requests, in the order of their times, through the steps that stores use.

    `limit` is whatever a Limiter accepts (a text, a Limit, or several), a Limiter, a dict of these
    by the name of their key (which makes one plan), a Plan, or a RuleSet. `keys` is a column: an
    array of ints, text or bytes, a column of pandas, polars or Arrow, Keys of a log, or any
    iterable of str, bytes or int. With a dict of limits, `keys` is a dict with a column for each
    name; with a Plan, a list with a column for each limiter; with a RuleSet, a dict with a column
    for each attribute, in which None means that a request lacks the attribute.

    `times` are nanoseconds since the epoch as ints, datetime64 of any unit (in UTC), timestamps of
    pandas, polars or Arrow with a time zone, or datetimes with one. Requests that are not in order
    are sorted by time; requests of the same time keep their given order. `costs` are ints from 1
    up, by default 1; a dict or a Plan may have a column for each limit. `used` has the same forms:
    ints from 0 up, what each request has used where its cost was an estimate. It becomes the charge
    of a request that passes, at its time, and what finds no room is owed; not for a RuleSet.
    `algorithm` applies to limits given as text.

    `clients` says what refused clients do: ``"never"`` retry, ``"obey"`` Retry-After,
    ``"back-off"``, ``"hammer"``, or Clients. `columns` names the columns to make in addition to
    `allowed`: ``remaining``, ``retry_after``, ``rule``, ``delay``; by default all. `progress`
    shows a bar: by default if the work is long, tqdm is installed, and the output is a terminal or
    a notebook.

    State is exact and unbounded, and every decision is the one that a live limiter makes for the
    same calls at the same times. Raises ConfigurationError for bad input, with the first position
    at fault. The function is pure.
    """
    behaviour = as_clients(clients)
    checked = as_times(times)
    size = len(checked.ns)
    subject = as_subject(limit, keys, costs, used, size, algorithm)
    answers = _new_answers(subject, size, behaviour, _wanted(columns))
    run = subject.start(checked, answers, behaviour._as_core_has_them())
    is_slow = subject.is_slow or behaviour.react
    chunk, long = (_SLOW_CHUNK, _SLOW_LONG) if is_slow else (_CHUNK, _LONG)
    with Progress(progress, size, "replay", long=size >= long) as bar:
        for done in range(chunk, size + chunk, chunk):
            run.run(done)
            bar.reached(min(done, size))
        while not run.finish(chunk):
            pass
    return Replay(subject, checked, answers, behaviour, run)


def _wanted(columns: Iterable[str] | None) -> set[str]:
    if columns is None:
        return set(_COLUMNS)
    if isinstance(columns, str) or not hasattr(columns, "__iter__"):
        raise ArgumentTypeError(
            f"the columns are {shown(columns)}; expected a list of {', '.join(_COLUMNS)}"
        )
    wanted = set(columns)
    unknown = wanted - {*_COLUMNS, "allowed"}
    if unknown:
        raise ConfigurationError(
            f"the columns have {sorted(map(repr, unknown))[0]}; expected a list of "
            f"{', '.join(_COLUMNS)}"
        )
    return wanted


def _new_answers(
    subject: Subject, size: int, clients: Clients, wanted: set[str]
) -> dict[str, NDArray[Any]]:
    kinds: dict[str, type] = {"allowed": np.uint8}
    if "remaining" in wanted:
        # Carried units of a quota come on top of its capacity.
        few = bool(subject.limits) and all(
            limit.capacity < 2**32 and limit.algorithm != "quota" for limit in subject.limits
        )
        kinds["few_remaining" if few else "remaining"] = np.uint32 if few else np.int64
    if "retry_after" in wanted:
        kinds["retry_after_ns"] = np.int64
    if "rule" in wanted and len(subject.limits) != 1:
        kinds["rule"] = np.uint32
    if "delay" in wanted and subject.delays:
        kinds["delay_ns"] = np.int64
    if clients.react:
        kinds |= {"attempts": np.uint32, "waited_ns": np.int64}
    # A page of zeros takes no memory until something is written to it.
    return {
        name: (np.zeros if name in ("retry_after_ns", "delay_ns") else np.empty)(size, kind)
        for name, kind in kinds.items()
    }


class Replay(Framed):
    """The result of a replay: columns of answers, in the given order of the requests.

    If clients react, `allowed`, `remaining`, `retry_after` and `rule` are those of the last
    attempt at each request.
    """

    times: NDArray[np.int64]
    """Nanoseconds since the epoch, as given."""
    keys: dict[str, Keys]
    """The columns of keys by name; a column without a name is ``"key"``."""
    limits: tuple[Limit, ...]
    """The limits that decided; empty for a rule set."""
    clients: Clients
    allowed: NDArray[np.bool_]
    attempts: NDArray[np.uint32] | None
    """If clients react, the number of attempts at each request."""
    waited_ns: NDArray[np.int64] | None
    """If clients react, the time from the first attempt to the last."""
    total_attempts: int
    """How many calls reached the limiter."""
    refused_attempts: int
    """How many of these calls the limiter refused."""
    notes: tuple[str, ...]
    """What to know about these answers."""

    def __init__(
        self,
        subject: Subject,
        times: Times,
        answers: dict[str, NDArray[Any]],
        clients: Clients,
        run: _core.ReplayRun,
    ) -> None:
        self.times = times.ns
        self.keys = subject.keys
        self.limits = subject.limits
        self.clients = clients
        self.allowed = answers["allowed"].view(np.bool_)
        self._answers = answers
        self._delays = subject.delays
        self._rules = subject.rule_names(run)
        self.attempts = answers.get("attempts")
        self.waited_ns = answers.get("waited_ns")
        refused = len(self.allowed) - int(np.count_nonzero(self.allowed))
        self.total_attempts = run.attempts if clients.react else len(self.allowed)
        self.refused_attempts = run.refused_attempts if clients.react else refused
        self._refused = refused
        notes = [*subject.notes]
        if any(limit.algorithm == "concurrency" for limit in self.limits):
            notes.append(_NOTE_CONCURRENCY)
        if times.order is not None:
            notes.append(_NOTE_ORDER)
        self.notes = tuple(notes)

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.allowed)

    @property
    def refused(self) -> int:
        """The number of refused requests; if clients react, refused at the last attempt."""
        return self._refused

    @property
    def refused_share(self) -> float:
        """The share of the requests that was refused, from 0 to 1; 0 without requests."""
        return self._refused / len(self) if len(self) else 0.0

    @property
    def remaining(self) -> NDArray[np.int64]:
        """Whole units that the binding limit has left."""
        if "few_remaining" in self._answers:
            self._answers["remaining"] = self._answers["few_remaining"].astype(np.int64)
            del self._answers["few_remaining"]
        return self._answer("remaining", "remaining")

    @property
    def rule(self) -> Keys:
        """The name of the binding limit or rule; for a refusal, the one that refused."""
        if len(self.limits) == 1:
            return Keys(np.broadcast_to(np.uint32(0), len(self)), self._rules)
        return Keys(self._answer("rule", "rule"), self._rules)

    @property
    def retry_after_ns(self) -> NDArray[np.int64]:
        """`retry_after` in nanoseconds; 2**63 - 1 if the request can never pass."""
        return self._answer("retry_after_ns", "retry_after")

    @property
    def retry_after(self) -> NDArray[np.float64]:
        """Seconds after which the same request would pass: 0 if it passed, inf if it never can."""
        seconds = self.retry_after_ns / 1e9
        seconds[self.retry_after_ns == _NEVER] = np.inf
        return seconds

    @property
    def delay(self) -> NDArray[np.float64]:
        """Seconds that callers of a leaky bucket wait before they proceed; 0 for other limits."""
        return self._answer("delay_ns", "delay") / 1e9 if self._delays else np.zeros(len(self))

    @property
    def waited(self) -> NDArray[np.float64]:
        """Seconds from the first attempt at each request to the last; 0 if clients do not react."""
        return np.zeros(len(self)) if self.waited_ns is None else self.waited_ns / 1e9

    def totals(self, by: str | None = None) -> Frame:
        """Returns requests, allowed, refused and refused_share of each key, the most refused first.

        `by` names a column of keys if there are several. If clients react, there is a column of
        attempts too.
        """
        name, keys = self._column(by)
        requests, allowed = _core.count_by_key(
            np.ascontiguousarray(keys.codes), len(keys.names), self.allowed.view(np.uint8)
        )
        refused = requests - allowed
        order = np.lexsort((-requests, -refused))
        order = order[requests[order] > 0]
        columns: dict[str, Any] = {
            name: Keys(order.astype(np.uint32), keys.names),
            "requests": requests[order],
            "allowed": allowed[order],
            "refused": refused[order],
            "refused_share": refused[order] / requests[order],
        }
        if self.attempts is not None:
            tried = np.bincount(keys.codes, self.attempts, len(keys.names)).astype(np.int64)
            columns["attempts"] = tried[order]
        return Frame(columns)

    def frame(self) -> Frame:
        """Returns a row for each request, in the given order."""
        columns: dict[str, Any] = {"time": self.times.view("datetime64[ns]"), **self.keys}
        columns["allowed"] = self.allowed
        for name, answer in (
            ("remaining", "remaining"), ("retry_after", "retry_after_ns"), ("delay", "delay_ns"),
        ):  # fmt: skip
            if answer in self._answers or f"few_{answer}" in self._answers:
                columns[name] = getattr(self, name)
        if len(self.limits) == 1 or "rule" in self._answers:
            columns["rule"] = self.rule
        if self.attempts is not None:
            columns |= {"attempts": self.attempts, "waited": self.waited}
        return Frame(columns)

    def __repr__(self) -> str:
        what = ", ".join(str(limit) for limit in self.limits) or "rules"
        return f"Replay({what}: {self._summary()})"

    def _repr_html_(self) -> str:
        import html

        what = html.escape(", ".join(str(limit) for limit in self.limits) or "rules")
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        tables = self.totals()._repr_html_() if self.keys and len(self) else ""
        return f"<p><b>{what}</b>: {html.escape(self._summary())}</p>{tables}{notes}"

    def _summary(self) -> str:
        text = (
            f"{len(self):,} requests, {self._refused:,} refused ({100 * self.refused_share:.3g} %)"
        )
        if self.clients.react:
            text += f", {self.total_attempts:,} attempts ({self.clients.reaction})"
        return text

    def _answer(self, name: str, column: str) -> NDArray[Any]:
        if name not in self._answers:
            raise ConfigurationError(
                f"{column} was not asked for; expected replay(..., columns=[{column!r}]), or "
                "without columns, which is all of them"
            )
        return self._answers[name]

    def _column(self, by: str | None) -> tuple[str, Keys]:
        if by is None and self.keys:
            return next(iter(self.keys.items()))
        if by not in self.keys:
            raise ConfigurationError(
                f"the totals were asked for by {by!r}; expected one of "
                f"{', '.join(map(repr, self.keys))}"
            )
        return str(by), self.keys[by]
