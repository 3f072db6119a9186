"""A log in memory: its requests in the order of their times."""

from __future__ import annotations

import fnmatch
import html
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, NamedTuple, Union

import numpy as np

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.tuning.frame import Frame, Framed
from tidegate.tuning.keys import Keys

__all__ = ["BadLine", "Log"]

Column = Union[Keys, "np.ndarray[Any, Any]"]
Instant = Union[int, str, datetime, "np.datetime64"]
Condition = Union[str, int, Iterable[Union[str, int]], Callable[[Any], Any]]


class BadLine(NamedTuple):
    """A line that could not be read: where it is, its beginning, and why."""

    line: int
    text: str
    reason: str
    source: str


class Log(Framed):
    """The requests of a log, in the order of their times.

    `log["ip"]` is a column: `Keys` for texts (ip, user, method, path, user_agent, host, and the
    columns that `columns=` adds), arrays for `status` (int32), `bytes` and `duration_ns` (int64).
    A missing text is "-", as servers write it, a missing status 0 and a missing duration -1.
    `notes` lists what to know about this log before choosing a limit from it.
    """

    def __init__(
        self,
        times: np.ndarray[Any, Any],
        columns: dict[str, Column],
        *,
        format: str = "",
        bad: int = 0,
        bad_lines: Iterable[BadLine] = (),
        notes: Iterable[str] = (),
    ) -> None:
        self.times = times
        """Nanoseconds since the epoch, int64, never falling."""
        self.format = format
        """The format in which the log was read."""
        self.bad = bad
        """The number of lines that could not be read and were left out."""
        self.bad_lines = list(bad_lines)
        """The first ten bad lines."""
        self.notes = list(notes)
        """What to know about this log before choosing a limit from it."""
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        """The names of the columns other than the times."""
        return list(self._columns)

    def __len__(self) -> int:
        return len(self.times)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Any:
        """Returns a column; "time" is the column of times."""
        if name == "time":
            return self.times
        if name not in self._columns:
            raise KeyError(
                f"the log has no column {name!r}; expected one of time, {', '.join(self._columns)}"
            )
        return self._columns[name]

    def select(self, chosen: Any) -> Log:
        """Returns the requests chosen by a mask of bool, ascending indices, or a slice."""
        if not isinstance(chosen, slice):
            chosen = np.asarray(chosen)
            if chosen.dtype == bool and len(chosen) != len(self):
                raise ConfigurationError(
                    f"the mask has {len(chosen)} values; expected one for each of the "
                    f"{len(self)} requests"
                )
            if chosen.dtype != bool and chosen.dtype.kind not in "iu":
                if len(chosen):
                    raise ArgumentTypeError(
                        f"requests are chosen by {chosen.dtype}; expected a mask of bool or indices"
                    )
                chosen = chosen.astype(np.int64)
        times = self.times[chosen]
        if len(times) > 1 and bool(np.any(times[1:] < times[:-1])):
            raise ConfigurationError(
                "the requests that were chosen are not in the order of their times; expected "
                "indices that rise"
            )
        return Log(
            times,
            {name: column[chosen] for name, column in self._columns.items()},
            format=self.format,
            bad=self.bad,
            bad_lines=self.bad_lines,
            notes=self.notes,
        )

    def between(self, start: Instant | None = None, end: Instant | None = None) -> Log:
        """Returns the requests from `start` on and before `end`.

        An instant is nanoseconds since the epoch, a datetime with a zone, datetime64 (UTC), or a
        text such as "2026-01-31T13:00" (UTC unless it names another zone).
        """
        first = 0 if start is None else int(np.searchsorted(self.times, _ns(start), "left"))
        last = len(self) if end is None else int(np.searchsorted(self.times, _ns(end), "left"))
        return self.select(slice(first, max(first, last)))

    def where(self, **conditions: Condition) -> Log:
        """Returns the requests that meet all conditions; each argument is named after its column.

        A text is a glob for texts (`"/api/*"`, case-sensitive), and a number has to be equal. A
        list holds alternatives. A function takes the array of values (for texts, of the distinct
        ones) and returns a mask.
        """
        mask = np.ones(len(self), dtype=bool)
        for name, condition in conditions.items():
            mask &= _met(self[name], condition)
        return self.select(mask)

    def frame(self) -> Frame:
        """Returns the columns as a Frame, with the times as datetime64[ns] in UTC."""
        return Frame({"time": self.times.view("datetime64[ns]"), **self._columns})

    def __repr__(self) -> str:
        if not len(self):
            return f"<Log of no requests ({self.format}), {self.bad} bad lines>"
        first, last = (_shown(at) for at in (self.times[0], self.times[-1]))
        bad = f", {self.bad:,} bad lines" if self.bad else ""
        return f"<Log of {len(self):,} requests ({self.format}) from {first} to {last}{bad}>"

    def _repr_html_(self) -> str:
        rows = [("format", self.format), ("requests", f"{len(self):,}")]
        if len(self):
            rows.append(("times", f"{_shown(self.times[0])} to {_shown(self.times[-1])}"))
        for name, column in self._columns.items():
            if isinstance(column, Keys):
                distinct = len(np.unique(column.codes))
                rows.append((name, f"{distinct:,} distinct"))
            elif len(column):
                rows.append((name, f"{column.min():,} to {column.max():,}"))
        rows.append(("bad lines", f"{self.bad:,}"))
        body = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in rows
        )
        lines = [f"line {bad.line}: {bad.reason}" for bad in self.bad_lines]
        said = "".join(f"<li>{html.escape(each)}</li>" for each in [*self.notes, *lines])
        return f"<table>{body}</table>" + (f"<ul>{said}</ul>" if said else "")


def _shown(ns: Any) -> str:
    return f"{np.datetime64(int(ns), 'ns').astype('datetime64[s]')}Z"


def _ns(instant: Instant) -> int:
    if isinstance(instant, str):
        text = instant.replace("Z", "+00:00")
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigurationError(
                f"the time is {instant!r}; expected a text such as 2026-01-31T13:00"
            ) from None
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=timezone.utc)
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise ConfigurationError(
                f"the time {instant!r} has no zone; expected a datetime with one"
            )
        whole = int(instant.replace(microsecond=0).timestamp())
        return whole * 10**9 + instant.microsecond * 1000
    if isinstance(instant, np.datetime64):
        return int(instant.astype("datetime64[ns]").astype(np.int64))
    if isinstance(instant, (int, np.integer)) and not isinstance(instant, bool):
        return int(instant)
    raise ArgumentTypeError(
        f"the time is {instant!r}; expected nanoseconds since the epoch, a datetime or a text"
    )


def _mask(condition: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the mask that a function makes for the values."""
    mask = np.asarray(condition(values))
    if mask.shape != values.shape or mask.dtype not in (np.dtype(bool), np.dtype(object)):
        raise ArgumentTypeError(
            f"a function of where() returned {mask.dtype} of shape {mask.shape} for {len(values)} "
            "values; expected a mask with a bool for each"
        )
    return mask.astype(bool)


def _met(column: Column, condition: Condition) -> np.ndarray[Any, Any]:
    if isinstance(column, Keys):
        if callable(condition):
            chosen = _mask(condition, np.asarray(list(column.names), dtype=object))
        else:
            chosen = np.zeros(len(column.names), dtype=bool)
            for each in [condition] if isinstance(condition, (str, int)) else condition:
                matches = [fnmatch.fnmatchcase(str(name), str(each)) for name in column.names]
                chosen |= np.asarray(matches, dtype=bool)
        mask: np.ndarray[Any, Any] = chosen[column.codes]
        return mask
    if callable(condition):
        return _mask(condition, column)
    wanted = [condition] if isinstance(condition, (str, int)) else list(condition)
    for each in wanted:
        if isinstance(each, str):
            raise ArgumentTypeError(
                f"a column of numbers is compared with {each!r}; expected a number, a list of them "
                "or a function"
            )
    return np.isin(column, np.asarray(wanted))
