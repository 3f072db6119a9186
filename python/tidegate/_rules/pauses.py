"""Lets other threads go on while a large set of rules is read."""

from __future__ import annotations

import itertools
import time

__all__ = ["end", "pause_at_times"]

# Of some tens of microseconds each, so that a request waits for a millisecond at most.
_ITEMS = 16
# So long that a thread which waits for the GIL has it before this one wants it again.
_SECONDS = 5e-5

_items = itertools.count(1)
_ended = False


def pause_at_times() -> None:
    """Called for each rule and override: gives up the GIL after every few of them."""
    if next(_items) % _ITEMS == 0 and not _ended:
        time.sleep(_SECONDS)


def end() -> None:
    """Pauses no more: this process has no requests."""
    global _ended
    _ended = True
