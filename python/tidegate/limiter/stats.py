"""Counters of a limiter and its store."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Stats"]


class Stats(NamedTuple):
    """Counters since the limiter and its store were made; all but `allowed`, `denied`,
    `denied_in_shadow` and `written_off` are the store's, of all limiters that share it."""

    allowed: int
    """Calls that this limiter let through, including those that were refunded."""
    denied: int
    """Calls that it refused. A peek() counts as neither."""
    degraded: int
    """Decisions made without the shared store."""
    errors: int
    """Calls that the shared store did not answer, or refused."""
    keys: int
    """Keys that the store holds for each of its limits, idle ones included. For Redis, this and the
    next two are those of its fallback."""
    evictions: int
    """Idle keys whose place was taken: nothing was lost."""
    evicted_live: int
    """Live keys whose place was taken: their counts restarted."""
    script_errors: int = 0
    """Calls on keys that another program wrote, and defects of tidegate's scripts; not in
    `errors`."""
    denied_locally: int = 0
    """Refusals repeated from the deny cache, without asking the shared store."""
    breaker_opened: int = 0
    """How often the circuit breaker opened."""
    breaker_open: bool = False
    """Whether it is open now."""
    denied_in_shadow: int = 0
    """Calls that limits in shadow would have refused, counted once for each such limit."""
    written_off: int = 0
    """Units of charge() beyond what a key may owe (`max_debt`)."""
    leased: int = 0
    """Decisions by what Redis had leased to this process, without asking it."""
    lease_questions: int = 0
    """Questions that asked Redis to lease units."""
    held_units: int = 0
    """Units that were leased and may still be spent."""
    wasted_units: int = 0
    """Units whose leases ended before they were spent or given back."""
    held_keys: int = 0
    """Keys of which this process holds leased units."""
    dry_keys: int = 0
    """Keys of which it holds none, and whose calls it refuses without asking Redis, which had
    next to nothing left."""
