"""Counters of a limiter and its store."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Stats"]


class Stats(NamedTuple):
    """Counters since the limiter was made, and of its store."""

    allowed: int
    denied: int
    degraded: int
    errors: int
    keys: int
    evictions: int
    evicted_live: int
