"""What was read of a log, before it is put in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate._tuning.keys import Keys
from tidegate._tuning.logs.layout import Layout
from tidegate._tuning.logs.log import BadLine

__all__ = ["Parts", "keys_of"]


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


def keys_of(codes: Any, names: list[str]) -> Keys:
    """Keys whose names are distinct, also where some of `names` are the same.

    Bytes that are no UTF-8 show as \\xff, which a client may have sent as it stands.
    """
    numbers: dict[str, int] = {}
    place = np.asarray([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.uint32)
    if len(numbers) == len(names):
        return Keys(codes.astype(np.uint32, copy=False), names)
    return Keys(place[codes], list(numbers))
