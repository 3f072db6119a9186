"""Formats numbers, times and lengths for the pages."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from typing import Any

__all__ = ["FILTERS", "short_time", "with_invisible_shown"]

# Characters of control, without a width, or that turn the direction of what follows, by which a
# caller's name could look like another one.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_TAG = re.compile("(<[^>]*>)")


def with_invisible_shown(page: str) -> str:
    """Returns HTML whose texts show invisible characters as escapes, such as ``\\u202e``.

    Attributes stay as they are, since links and forms must name the same caller.
    """
    if _INVISIBLE.search(page) is None:
        return page
    parts = _TAG.split(page)  # texts, and the tags between them
    parts[::2] = [_INVISIBLE.sub(_escape, text) for text in parts[::2]]
    return "".join(parts)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


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


def short_time(seconds: float | None) -> str:
    """Returns a time such as `40 µs`, `2.5 ms` or `1 s`."""
    if seconds is None:
        return "none"
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        value = seconds * scale
        if value < 999.5:
            return f"{value:.{int(value < 9.95)}f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f}".removesuffix(".0") + " s"


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


FILTERS = {
    "number": _number,
    "moment": _moment,
    "length_of_time": _length,
    "short_time": short_time,
    "compact_json": _compact_json,
}
