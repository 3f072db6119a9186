"""The layout of a log's lines, from which the reader in C++ is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Union

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.logs import _logs

__all__ = ["Field", "Layout", "Meaning", "kind_of", "meanings", "pattern"]

# The literal after the field (in a pattern) or its name; its kind; the name of its column.
Field = tuple[str, str, str]
# The kind of a field and the name of its column.
Meaning = tuple[str, str]

# The kinds of columns that a caller may name. Any other column holds keys.
_KINDS = {
    "time": "time",
    "ip": "address",
    "path": "path",
    "request": "request",
    "status": "status",
    "bytes": "bytes",
}
DURATION_KINDS = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
# Of several the finest is read: $msec of nginx, %D rather than %T of Apache.
_FINENESS = {"nanoseconds": 4, "microseconds": 3, "milliseconds": 2, "seconds": 1}


@dataclass(frozen=True)
class Layout:
    """The layout of one log: text by a pattern, JSON, CSV, or W3C's."""

    name: str
    reader: str
    fields: tuple[Field, ...]
    start: str = ""
    open_end: bool = False
    delimiter: str = ","
    header: str = ""
    # Whether times are those at which requests ended; None if unknown.
    end_stamped: bool | None = None
    notes: tuple[str, ...] = ()

    def make_reader(self, *, keep_query: bool = False, time_unit: str = "") -> _logs.Reader:
        """Returns a reader of lines in this layout."""
        return _logs.Reader(
            self.reader,
            self.fields,
            start=self.start,
            open_end=self.open_end,
            delimiter=self.delimiter,
            header=self.header,
            keep_query=keep_query,
            time_unit=time_unit,
        )

    def has(self, column: str) -> bool:
        """Whether a column of this name is read."""
        names = {name for _, kind, name in self.fields if kind != "skip"}
        return column in names or ("request" in names and column in ("method", "path"))

    def named(self, name: str) -> Layout:
        """Returns this layout under another name."""
        return replace(self, name=name)


def kind_of(column: str, duration_unit: str = "s") -> str:
    """The kind of field that fills this column."""
    if column == "duration":
        return DURATION_KINDS[duration_unit]
    return _KINDS.get(column, "key")


def meanings(
    columns: Mapping[str, Iterable[str]], others: Mapping[str, Meaning]
) -> dict[str, Meaning]:
    """The meanings of a format's variables.

    `columns` says which variables fill a column, as fields of the usual kind; `others` has the
    variables of another kind.
    """
    usual = {each: (kind_of(name), name) for name, found in columns.items() for each in found}
    return {**usual, **others}


# A piece of a pattern: a literal, or the name of a variable.
Piece = tuple[str, Union[str, None]]


def pattern(
    name: str,
    pieces: Iterable[Piece],
    known: Mapping[str, Meaning],
    columns: Mapping[str, str],
    *,
    end_stamped: bool | None,
    open_end: bool = False,
) -> Layout:
    """Makes a layout from the pieces of a format string: (literal, None) or ("", variable)."""
    literals = [""]
    variables: list[str] = []
    for literal, variable in pieces:
        if variable is None:
            literals[-1] += literal
        else:
            variables.append(variable)
            literals.append("")
    for at in range(1, len(variables)):
        if not literals[at]:
            raise ConfigurationError(
                f"{variables[at - 1]} is followed by {variables[at]} at once in the format; "
                "expected a separator between them, such as a blank"
            )
    meanings = _chosen(variables, known, columns)
    fields = [(after, *meaning) for after, meaning in zip(literals[1:], meanings)]
    if not any(kind in ("time", "date") for _, kind, _ in fields):
        raise ConfigurationError(
            f"the format has the fields {', '.join(variables) or 'none'}; expected one with "
            "the time"
        )
    return Layout(
        name, "text", tuple(fields), literals[0], end_stamped=end_stamped, open_end=open_end
    )


def _chosen(
    variables: list[str], known: Mapping[str, Meaning], columns: Mapping[str, str]
) -> list[Meaning]:
    """Maps variables to columns; of several variables for one column, the best is read."""
    given = {}
    for column, variable in columns.items():
        if variable not in variables:
            raise ConfigurationError(
                f"the column {column} is mapped to {variable!r}, which the format does not have; "
                f"expected one of {', '.join(variables)}"
            )
        given[variable] = (known.get(variable, ("key", ""))[0], column)
    meanings = [given.get(each) or known.get(each, ("skip", "")) for each in variables]
    best: dict[str, int] = {}
    for at, (kind, column) in enumerate(meanings):
        if kind == "skip":
            continue
        if column in columns and variables[at] != columns[column]:
            continue
        if column not in best or _rank(variables[at], kind) > _rank(
            variables[best[column]], meanings[best[column]][0]
        ):
            best[column] = at
    # A request line also holds the method and the path; separate fields for them take precedence.
    return [
        meaning if best.get(meaning[1]) == at else ("skip", "")
        for at, meaning in enumerate(meanings)
    ]


def _rank(variable: str, kind: str) -> int:
    return _FINENESS.get(kind, 1 if variable == "$msec" else 0)
