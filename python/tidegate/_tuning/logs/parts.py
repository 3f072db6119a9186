"""What was read of a log, before it is put in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate._tuning.logs.layout import Layout
from tidegate._tuning.logs.log import BadLine

__all__ = ["Parts"]


@dataclass
class Parts:
    """Columns in the order of the files, and what was found on the way."""

    times: Any
    columns: dict[str, Any]
    layout: Layout
    bad: int
    bad_lines: list[BadLine]
    notes: list[str]
    has_no_zones: bool
    # Where each file begins.
    starts: tuple[int, ...] = (0,)
