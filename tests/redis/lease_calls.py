"""Calls of leased limiters that several tests make."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from polling import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tidegate as tg
    from redis_server import RedisServer


def scripts(server: RedisServer) -> int:
    """How many scripts the server has run."""
    calls = server.calls()
    return calls.get("evalsha", 0) + calls.get("eval", 0)


def warm(limiter: tg.Limiter, key: str = "k", held: int = 20) -> int:
    """Hits the key until one lease of each limit has so many units. Returns how many calls that
    took.

    A node asks beside its calls, so how many of them Redis decides before is the machine's.
    """
    spent = 0

    def is_warm() -> bool:
        nonlocal spent
        waiting = limiter.peek(key, held)
        if waiting and waiting.leased:
            return True
        spent += limiter.allow(key)
        return False

    eventually(is_warm, interval=0.001)
    return spent


def check_cold_keys_take_one_command(server: RedisServer, limiter: tg.Limiter, count: int) -> None:
    """Calls for keys without a lease cost what they cost without leases."""
    assert limiter.allow("first")  # after which the server has the script
    before = server.calls()
    for i in range(count):
        assert limiter.allow(f"user:{i}")
    after = server.calls()
    assert after["evalsha"] - before.get("evalsha", 0) == count
    assert after["eval"] == before["eval"], "the same script as without leases"


def check_script_and_core_alike(nodes: Sequence[tg.Limiter], seed: str, charge: int) -> None:
    """Makes all kinds of calls; a script that leases differently from the core is an error."""
    chance = random.Random(seed)
    for _ in range(1500):
        limiter, action = chance.choice(nodes), chance.random()
        if action < 0.8:
            limiter.hit("k", chance.choice((1, 1, 2, 5)))
        elif action < 0.86:
            limiter.peek("k")
        elif action < 0.92:
            limiter.refund("k", chance.choice((1, 3)))
        elif action < 0.95:
            limiter.charge("k", chance.choice((1, charge)))
        elif action < 0.98:
            limiter.charge_up_to("k", 20)
        else:
            limiter.reset("k")
    for each in nodes:
        stats = each.stats()
        assert (stats.degraded, stats.errors, stats.script_errors) == (0, 0, 0)


class Step(NamedTuple):
    """A step forward of the server's clock: intervals that meet it may have so many units more."""

    begin: float
    end: float
    units: float


def most_over(calls: np.ndarray, rate: float, burst: float, steps: Sequence[Step] = ()) -> float:
    """The most that calls within an interval exceed burst + rate * its length; negative if none.

    Each row of `calls` begins with the seconds before and after a call that passed. An interval
    that holds the whole call holds what it took.
    """
    calls = calls[np.argsort(calls[:, 1])]
    before, after = calls[:, 0], calls[:, 1]
    worst = -burst
    for begin in before:
        ends = after[before >= begin]
        allowed = burst + rate * (ends - begin)
        for step in steps:
            if begin <= step.end:
                allowed += step.units * (ends >= step.begin)
        worst = max(worst, float(np.max(np.arange(1, len(ends) + 1) - allowed)))
    return worst
