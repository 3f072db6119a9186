"""The parts of a log that were read, before they are put in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.tuning.keys import Keys
from tidegate.tuning.logs.layout import Layout
from tidegate.tuning.logs.log import BadLine

__all__ = ["Parts", "keys_of"]


@dataclass
class Parts:
    """Columns in the order of the files, with the bad lines and notes found while reading."""

    times: Any
    columns: dict[str, Any]
    layout: Layout
    bad: int
    bad_lines: list[BadLine]
    notes: list[str]
    has_no_zones: bool
    # The position at which each file begins.
    starts: tuple[int, ...] = (0,)


def keys_of(codes: Any, names: list[str]) -> Keys:
    """Returns Keys with distinct names, merging names that are the same.

    Bytes that are not UTF-8 become the text \\xff, which a client may also have sent literally.
    """
    numbers: dict[str, int] = {}
    place = np.asarray([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.uint32)
    if len(numbers) == len(names):
        return Keys(codes.astype(np.uint32, copy=False), names)
    return Keys(place[codes], list(numbers))
