"""Counters of a limiter and its store."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Stats"]


class Stats(NamedTuple):
    """Counters since the limiter and its store were made; all but `allowed`, `denied`
    and `denied_in_shadow` are the store's, of all limiters that share it."""

    allowed: int
    """Calls that this limiter let through, those that were given back included."""
    denied: int
    """Calls that it refused. To look, as peek() does, counts as neither."""
    degraded: int
    """Decisions made without the shared store."""
    errors: int
    """Calls that the shared store did not answer, or refused."""
    keys: int
    """Keys that the store holds for each of its limits, idle ones included; where that is a
    Redis, those of its fallback, as the next two."""
    evictions: int
    """Idle keys whose place was taken: nothing was lost."""
    evicted_live: int
    """Live keys whose place was taken: their counts began anew."""
    script_errors: int = 0
    """Keys that hold something else, and mistakes in tidegate's scripts: counted apart."""
    denied_locally: int = 0
    """Refusals repeated from the deny cache, without asking the shared store."""
    breaker_opened: int = 0
    """How often the circuit breaker opened."""
    breaker_open: bool = False
    """Whether it is open now."""
    denied_in_shadow: int = 0
    """Calls that this limiter's limits in shadow would have refused, each counted for each."""
