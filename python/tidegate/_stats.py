"""Counters of a limiter and its store."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Stats"]


class Stats(NamedTuple):
    """Counters since the limiter was made, and of its store."""

    allowed: int
    denied: int
    degraded: int
    """Decisions made without the shared store."""
    errors: int
    """Calls that the shared store did not answer, or refused."""
    keys: int
    evictions: int
    evicted_live: int
    script_errors: int = 0
    """Failures of our own scripts: mistakes in tidegate, counted apart from the store's."""
    denied_locally: int = 0
    """Refusals repeated from the deny cache, without asking the shared store."""
    breaker_opened: int = 0
    """How often the circuit breaker opened."""
    breaker_open: bool = False
    """Whether it is open now."""
