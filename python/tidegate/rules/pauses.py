"""Pauses that let other threads run while a large set of rules is read."""

from __future__ import annotations

import itertools
import time

__all__ = ["end", "pause_at_times"]

# Reading this many takes less than a millisecond, which is the longest that a request waits.
_ITEMS = 16
# Long enough for a thread that waits for the GIL to get it.
_SECONDS = 5e-5

_items = itertools.count(1)
_ended = False


def pause_at_times() -> None:
    """Called for each rule and override: releases the GIL after every few calls."""
    if next(_items) % _ITEMS == 0 and not _ended:
        time.sleep(_SECONDS)


def end() -> None:
    """Pauses no more: this process has no requests."""
    global _ended
    _ended = True
