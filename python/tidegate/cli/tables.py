"""Tables for the terminal, and for programs that read on: aligned text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    Columns = Mapping[str, Sequence[Any]]

__all__ = [
    "add_output",
    "counted",
    "percent",
    "plain",
    "plain_lines",
    "print_anything",
    "print_csv",
    "print_json",
    "print_table",
    "rows_of",
    "shown",
]


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses one of the three."""
    parser.add_argument(
        "--output",
        default="table",
        choices=("table", "json", "csv"),
        help="how to print the answer (default: %(default)s)",
    )


def print_anything() -> None:
    """Makes standard output escape letters that it cannot show, since a log may hold any letter."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def plain(name: object) -> str:
    """Returns a name from a caller without control characters, so that no terminal acts on it."""
    return "".join(letter if letter.isprintable() else "?" for letter in _text(name))


def plain_lines(text: str) -> str:
    """Like plain(), of a text of several lines."""
    return "\n".join(map(plain, text.splitlines()))


def percent(share: float) -> str:
    """A share of 1, to three digits: ``0.125 %``."""
    return f"{100 * share:.3g} %" if share < 0.9995 else f"{100 * share:.0f} %"


def counted(number: int, what: str) -> str:
    """``1 client``, ``2 clients``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def print_table(columns: Columns, most: int | None = None) -> None:
    """Prints the first `most` rows, numbers to the right and texts to the left."""
    texts = [
        [name, *(shown(name, value) for value in values[:most])] for name, values in columns.items()
    ]
    widths = [max(map(len, column)) for column in texts]
    numeric = [not any(isinstance(each, (str, bytes)) for each in v) for v in columns.values()]
    for row in zip(*texts):
        cells = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numeric)
        )
        print("  ".join(cells).rstrip())
    total = len(next(iter(columns.values()), ()))
    if most is not None and total > most:
        print(f"... {total - most:,} more")


def print_csv(columns: Columns) -> None:
    """Prints all rows as CSV, with their names first."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(value) for value in row] for row in zip(*columns.values()))


def print_json(value: Any) -> None:
    """Prints `value` as JSON, where what is infinite or no number is null."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    print(json.dumps(_for_json(value), indent=2, ensure_ascii=encoding != "utf8"))


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """The rows as dicts by the names of their columns."""
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if name.endswith("share"):
            return percent(value)
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    text = plain(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _for_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {_text(name): _for_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int)) else _text(value)
