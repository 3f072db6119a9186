"""Puts several runs of one benchmark together: of each number the median, the least and the most.

The tables of a benchmark have the same lines in each run, so numbers are compared place by place.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Any

_NUMBER = re.compile(r"(-?[\d,]+(?:\.\d+)?)(\s?\D*)")


def number_in(text: str) -> tuple[float, str] | None:
    """The number that a cell begins with and what follows it, or None for other text."""
    found = _NUMBER.fullmatch(text.strip())
    return None if found is None else (float(found[1].replace(",", "")), found[2])


def shown(value: float) -> str:
    """A number with three digits, the same wherever it is shown: 0.967, 52.3, 14.2 k, 17.1 M."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    for least, unit in ((999_500, "M"), (9_995, "k")):
        if size >= least:
            return f"{_digits(value / (1e6 if unit == 'M' else 1e3))} {unit}"
    return _digits(value)


def _digits(value: float) -> str:
    size = abs(value)
    if value == int(value) or size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 9.995 else 2 if size >= 0.995 else 3}f}"


def with_spread(cell: dict[str, Any]) -> str:
    """The median, and the range where the runs differ by more than the digits that are shown."""
    if "value" not in cell:
        return str(cell["text"])
    median, least, most = (shown(cell[key]) for key in ("value", "least", "most"))
    unit = cell.get("unit", "")
    return f"{median}{unit}" if least == most else f"{median}{unit} ({least} to {most})"


def _together(values: Sequence[float]) -> dict[str, float]:
    return {"value": statistics.median(values), "least": min(values), "most": max(values)}


def cell(texts: Sequence[str]) -> dict[str, Any]:
    """The cell of a table from those of all runs."""
    found = [number for number in map(number_in, texts) if number is not None]
    if not found or len(found) < len(texts):
        return {"text": texts[0]}
    return {**_together([value for value, _ in found]), "unit": found[0][1]}


def tables(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The tables of all runs as one; lines that a run lacks are left out."""
    combined = []
    for same in zip(*runs):
        lines = []
        for line in zip(*(table["lines"] for table in same)):
            name, *rest = zip(*line)
            lines.append({"name": name[0], "cells": [cell(texts) for texts in rest]})
        first = same[0]
        combined.append({"title": first["title"], "headers": first["headers"], "lines": lines})
    return combined


def targets(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The targets of all runs as one: a target is reached where the median reaches it."""
    combined = []
    for first in runs[0]:
        same = [each for run in runs for each in run if each["what"] == first["what"]]
        values = _together([each["value"] for each in same])
        bound, at_least = first["bound"], first["at_least"]
        reached = values["value"] >= bound if at_least else values["value"] <= bound
        kept = {key: first[key] for key in ("what", "bound", "at_least", "unit")}
        combined.append({**kept, **values, "reached": reached})
    return combined


def google(document: dict[str, Any]) -> dict[str, Any]:
    """The JSON of Google Benchmark as what the Python benchmarks write."""
    lines = [
        [each["name"], f"{each['real_time']:.4g}"]
        for each in document["benchmarks"]
        if each.get("run_type", "iteration") == "iteration" and each["time_unit"] == "ns"
    ]
    table = {"title": "In C++", "headers": ["", "ns"], "lines": lines}
    return {"printed": {"tables": [table], "targets": []}}


def governor(document: dict[str, Any]) -> dict[str, Any]:
    """The JSON of benchmarks/governor as what the Python benchmarks write."""
    lines = [
        [name, f"{value:.4g}"]
        for name, value in document.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    table = {"title": "Rust's governor", "headers": ["", "measured"], "lines": lines}
    return {"printed": {"tables": [table], "targets": []}}
