"""A model of Limiter.charge_up_to(): a peek, and a hit of the remaining units."""

from __future__ import annotations

import random
from pathlib import Path

import tidegate as tg

START = 1_700_000_000 * 10**9
# By windows and by a log.
COUNTED = [
    tg.Limit("11/7 seconds", algorithm="fixed-window"),
    tg.Limit("5000/month", algorithm="fixed-window"),
    tg.Limit("13/7 seconds", algorithm="sliding-window"),
    tg.Limit("9/7 seconds", algorithm="sliding-log"),
]
LIMITS = [
    tg.Limit("7/second"),
    tg.Limit("10/second burst 40"),
    tg.Limit(9007199254740991, 360000.0, burst=1000),
    tg.Limit("100000/minute"),
    tg.Limit("7/3 seconds", algorithm="leaky-bucket"),
    tg.Limit("30/minute", id="kept"),
    *COUNTED,
    tg.Limit("4000000000/hour", algorithm="sliding-window"),
    tg.Limit("9/7 seconds", algorithm="concurrency"),
    tg.Limit("0/minute"),
    tg.Limit("0/minute", algorithm="sliding-window"),
]


def storage_of(kind: str, tmp_path: Path) -> str:
    """A small storage in memory, or shared by processes in `tmp_path`."""
    return "memory://?capacity=4096" if kind == "memory" else f"shm://{tmp_path}/t?capacity=4096"


def check_against_the_model(
    limits: list[tg.Limit], storage: str, seed: int, calls: int = 60
) -> None:
    """Random calls of one key: after each, the key stands as the model says."""
    rng = random.Random(seed)
    clock = tg.ManualClock(START + rng.randrange(10**12))
    limiter = tg.Limiter(limits, storage=storage, clock=clock, prefix=f"charge-{seed}-{limits[0]}")
    models = [tg.Limiter(each, clock=clock) for each in limits]
    most = max(each.capacity for each in limits)
    longest = max(each.period_ns for each in limits)
    for number in range(calls):
        clock.advance_ns(rng.choice([0, 1, rng.randrange(longest // 4), rng.randrange(longest)]))
        cost = rng.choice([1, 2, rng.randint(1, most + 1), most + 1, 10**15])
        if rng.random() < 0.3:
            cost = min(cost, most + 1)
            hit = limiter.hit("k", cost)
            if hit.allowed:
                assert all(model.hit("k", cost) for model in models)
            assert hit.charged is None
        else:
            decision = limiter.charge_up_to("k", cost)
            units = [min(cost, model.peek("k").remaining) for model in models]
            for model, each in zip(models, units):
                assert each == 0 or model.hit("k", each)
            found = (decision.allowed, decision.charged, decision.degraded, decision.retry_after)
            assert found == (True, min(units), False, 0.0), f"call {number} of seed {seed}"
        least = min(models, key=lambda model: model.peek("k").remaining)
        stands, expected = limiter.peek("k"), least.peek("k")
        assert stands.remaining == expected.remaining, f"call {number} of seed {seed}"
        if len(limits) == 1:
            assert stands.reset_after == expected.reset_after, f"call {number} of seed {seed}"
