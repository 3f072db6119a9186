"""Formats numbers, times and lengths for the pages."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

__all__ = ["FILTERS"]


def _number(value: float) -> str:
    """Returns a number with a thin space between thousands."""
    return f"{value:,.0f}".replace(",", "\u202f")


def _moment(value: dt.datetime | None) -> str:
    return "" if value is None else f"{value.astimezone(dt.timezone.utc):%Y-%m-%d %H:%M:%S}"


def _length(seconds: float | None) -> str:
    """Returns a length such as `4 s`, `3 min`, `2.5 h` or `12.0 days`."""
    if seconds is None or not math.isfinite(seconds):
        return "never"
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


FILTERS = {
    "number": _number,
    "moment": _moment,
    "length_of_time": _length,
    "compact_json": _compact_json,
}
