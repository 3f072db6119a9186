"""The layouts of JSON lines and CSV, whose fields are found from the first lines."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Mapping
from typing import Any

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.logs.layout import Layout
from tidegate.tuning.logs.names import MOST_DOTS, end_stamped, is_known, meanings

__all__ = ["array_sniffed", "csv_layout", "csv_sniffed", "json_layout"]

_LINES = 100


def json_layout(lines: list[str], columns: Mapping[str, Any], duration_unit: str | None) -> Layout:
    """Returns the layout of JSON lines that begin with these."""
    found: dict[str, Any] = {}
    for line in lines[:_LINES]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            _flatten(value, "", found)
    if not found:
        raise ConfigurationError(
            f"the log has the line {lines[0][:100]!r}; expected a JSON object on each line"
        )
    chosen, notes = meanings(found, columns, duration_unit)
    fields = tuple((name, *meaning) for name, meaning in chosen.items())
    return Layout(
        "json", "json", fields, end_stamped=end_stamped(found, chosen), notes=tuple(notes)
    )


def _flatten(value: dict[str, Any], prefix: str, into: dict[str, Any]) -> None:
    for name, each in value.items():
        if isinstance(each, dict):
            if prefix.count(".") < MOST_DOTS:
                _flatten(each, f"{prefix}{name}.", into)
        elif not isinstance(each, list) and into.get(prefix + name) in (None, "", "-"):
            into[prefix + name] = each


def csv_layout(
    sample: str,
    columns: Mapping[str, Any],
    duration_unit: str | None,
    delimiter: str | None,
) -> Layout:
    """Returns the layout of CSV that begins with these lines; numbered columns mean no header."""
    delimiter = delimiter or _delimiter_of(sample)
    rows = _rows(sample, delimiter)
    if not rows:
        raise ConfigurationError("the log has nothing but empty lines; expected CSV")
    if columns and all(isinstance(place, int) for place in columns.values()):
        return _by_number(rows[0], columns, duration_unit, delimiter)
    header = rows[0]
    values = next((row for row in rows[1:] if len(row) == len(header)), [""] * len(header))
    found = dict(zip(header, values))
    twice = next((name for at, name in enumerate(header) if name in header[:at]), None)
    if twice is not None:
        raise ConfigurationError(
            f"the column {twice!r} stands twice in the header of the CSV; expected distinct names"
        )
    chosen, notes = meanings(found, columns, duration_unit)
    fields = tuple((name, *chosen.get(name, ("skip", ""))) for name in header)
    return Layout(
        "csv",
        "csv",
        fields,
        delimiter=delimiter,
        header=_first_record(sample, delimiter, header),
        end_stamped=end_stamped(found, chosen),
        notes=tuple(notes),
    )


def _by_number(
    row: list[str], columns: Mapping[str, int], duration_unit: str | None, delimiter: str
) -> Layout:
    from tidegate.tuning.logs.layout import kind_of

    for column, place in columns.items():
        if not 0 <= place < len(row):
            raise ConfigurationError(
                f"the column {column} is to be field {place}, and lines have {len(row)}; expected "
                f"a number from 0 to {len(row) - 1}"
            )
    fields = [("", "skip", "")] * len(row)
    for column, place in columns.items():
        fields[place] = ("", kind_of(column, duration_unit or "s"), column)
    return Layout("csv", "csv", tuple(fields), delimiter=delimiter)


def csv_sniffed(sample: str) -> bool:
    """Whether the lines are CSV with a header that has known names, or like it.

    They are like it if most have as many fields as the header: csv_layout() then says what is
    wrong with it.
    """
    header, *rows = _rows(sample, _delimiter_of(sample)) or [[]]
    if len(header) < 2 or not any(map(is_known, header)):
        return False
    with contextlib.suppress(ConfigurationError):
        csv_layout(sample, {}, None, None)
        return True
    fitting = sum(len(row) == len(header) for row in rows)
    return 2 * fitting >= len(rows) and not any(name[:1].isdigit() for name in header)


def array_sniffed(sample: str) -> bool:
    """Whether the text is a JSON array, on one line or several."""
    if re.match(r"\s*\[\s*\{", sample):
        return True
    with contextlib.suppress(ValueError, RecursionError):
        return isinstance(json.loads(sample.lstrip().split("\n", 1)[0]), list)
    return False


def _delimiter_of(sample: str) -> str:
    """Returns the delimiter that splits the first line into the most fields."""
    first = sample.split("\n", 1)[0]
    counts = {each: len((_rows(first, each) or [[]])[0]) for each in ",\t;|"}
    return max(counts, key=counts.__getitem__)


def _rows(sample: str, delimiter: str) -> list[list[str]]:
    lines = list(sample.replace("\0", "").split("\n")[:_LINES])
    try:
        return [
            row for row in csv.reader([f"{line}\n" for line in lines], delimiter=delimiter) if row
        ]
    except csv.Error:
        return []


def _first_record(sample: str, delimiter: str, header: list[str]) -> str:
    """Returns the header line as it is written, to recognize it in each file."""
    lines = sample.split("\n")
    for count in range(1, len(lines) + 1):
        text = "\n".join(lines[:count])
        if _rows(text, delimiter)[:1] == [header]:
            return text.rstrip("\r")
    return lines[0].rstrip("\r")
