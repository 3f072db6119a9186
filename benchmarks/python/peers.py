"""The other rate limiters on PyPI, each called as its own manual shows.

Calls are neither faster nor slower than those of a user of the peer: names are looked up on the
object (`limiter.hit(key)`), as in the lines for tidegate, and objects that can be created
beforehand are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from harness import Subject, optional, version

PEERS = {
    "limits": "limits",
    "throttled-py": "throttled",
    "pyrate-limiter": "pyrate_limiter",
    "token-bucket": "token_bucket",
    "rust-py-rate-limit": "rust_py_rate_limit",
    "floodgate-rs": "floodgate",
    "cpex-rate-limiter": "cpex_rate_limiter.rate_limiter_rust",
}

# The limit of peers that keep one number for each key; no call is refused.
PLENTY = 1_000_000
PLENTY_PERIOD_S = 60
# The limit of peers that keep every admission. It is lower, so that the length of a list is not
# measured; few calls are refused.
LOG_COUNT = 1_000
LOG_PERIOD_S = 1


def _limits(module: Any, refuse: bool) -> Iterator[Subject]:
    strategies = module.strategies
    rows = [
        ("fixed window", strategies.FixedWindowRateLimiter, PLENTY, PLENTY_PERIOD_S),
        ("sliding counter", strategies.SlidingWindowCounterRateLimiter, PLENTY, PLENTY_PERIOD_S),
        ("moving window", strategies.MovingWindowRateLimiter, LOG_COUNT, LOG_PERIOD_S),
    ]
    for name, strategy, count, period in rows:
        item = module.RateLimitItemPerSecond(count, period)
        if refuse:
            item = module.RateLimitItemPerHour(1)
        names = {"limiter": strategy(module.storage.MemoryStorage()), "item": item}
        yield Subject(f"limits {name}", "limiter.hit(item, key)", names, verdict=bool)
        yield Subject(
            f"limits {name} + get_window_stats",
            "(limiter.hit(item, key), limiter.get_window_stats(item, key))",
            names,
            verdict=lambda both: bool(both[0]),
        )


def _throttled(module: Any, refuse: bool) -> Iterator[Subject]:
    for using, name in (
        ("fixed_window", "fixed window"),
        ("token_bucket", "token bucket"),
        ("gcra", "GCRA"),
        ("leaking_bucket", "leaking bucket"),
        ("sliding_window", "sliding window"),
    ):
        quota = module.per_hour(1, burst=1) if refuse else module.per_min(PLENTY)
        limiter = module.Throttled(
            using=using,
            quota=quota,
            # Its default store would forget all but 1,024 keys.
            store=module.MemoryStore(options={"MAX_SIZE": 10_000_000}),
        )
        yield Subject(
            f"throttled-py {name}",
            "limiter.limit(key)",
            {"limiter": limiter},
            verdict=lambda result: not result.limited,
        )


def _pyrate(module: Any, refuse: bool) -> Iterator[Subject]:
    hour, minute = module.Duration.HOUR, module.Duration.MINUTE
    rate = module.Rate(1, hour) if refuse else module.Rate(PLENTY, minute)

    class Keyed(module.BucketFactory):  # type: ignore[misc]
        """One constant-state bucket a key, as its manual lays it out."""

        def __init__(self) -> None:
            self.clock = module.MonotonicClock()
            self.buckets: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return module.RateItem(name, self.clock.now(), weight=weight)

        def get(self, item: Any) -> Any:
            bucket = self.buckets.get(item.name)
            if bucket is None:
                bucket = self.buckets[item.name] = module.StateBucket([rate], clock=self.clock)
            return bucket

    log_rate = module.Rate(1, hour) if refuse else module.Rate(PLENTY, module.Duration.SECOND)
    for name, argument in (
        ("log, one bucket for all keys", log_rate),
        ("GCRA, one bucket for all keys", module.StateBucket([rate])),
        ("GCRA, a bucket a key", Keyed()),
    ):
        yield Subject(
            f"pyrate-limiter {name}",
            "limiter.try_acquire(key, blocking=False)",
            {"limiter": module.Limiter(argument)},
            verdict=bool,
        )


def _token_bucket(module: Any, refuse: bool) -> Iterator[Subject]:
    rate, capacity = (1 / 3600, 1) if refuse else (PLENTY / PLENTY_PERIOD_S, PLENTY)
    limiter = module.Limiter(rate, capacity, module.MemoryStorage())
    yield Subject("token-bucket", "limiter.consume(key)", {"limiter": limiter}, verdict=bool)


def _rust_py(module: Any, refuse: bool) -> Iterator[Subject]:
    count, period = (1, 3600) if refuse else (PLENTY, PLENTY_PERIOD_S)

    def limiter(algorithm: str) -> dict[str, Any]:
        return {"limiter": module.RateLimiter(count, period, algorithm)}

    def allowed(result: Any) -> bool:
        return bool(result["allowed"])

    allow, check = "limiter.allow(key)", "limiter.check(key)"
    yield Subject("rust-py-rate-limit allow", allow, limiter("fixed"), verdict=bool)
    yield Subject("rust-py-rate-limit check", check, limiter("fixed"), verdict=allowed)
    yield Subject("rust-py-rate-limit check, sliding", check, limiter("sliding"), verdict=allowed)


def _floodgate(module: Any, refuse: bool) -> Iterator[Subject]:
    count, period = (1, 3600) if refuse else (PLENTY, PLENTY_PERIOD_S)
    yield Subject(
        "floodgate-rs trigger",
        "limiter.trigger(key)",
        {"limiter": module.FixedMapping(count, timedelta(seconds=period))},
        verdict=lambda wait: wait is None,
    )


def _cpex(module: Any, refuse: bool) -> Iterator[Subject]:
    rate = "1/h" if refuse else f"{PLENTY}/m"
    for algorithm in ("fixed_window", "sliding_window", "token_bucket"):
        # A sliding window there remembers every call: see LOG_COUNT.
        given = f"{LOG_COUNT}/s" if algorithm == "sliding_window" and not refuse else rate
        engine = module.RateLimiterEngine({"by_user": given, "algorithm": algorithm})
        yield Subject(
            f"cpex-rate-limiter {algorithm.replace('_', ' ')}",
            "engine.check(key, None, '', now, True, None)",
            # It gets the time as an argument, and so does not read the clock.
            {"engine": engine, "now": int(time.time())},
            verdict=lambda result: bool(result[0]),
        )


_MAKERS: dict[str, Callable[[Any, bool], Iterator[Subject]]] = {
    "limits": _limits,
    "throttled-py": _throttled,
    "pyrate-limiter": _pyrate,
    "token-bucket": _token_bucket,
    "rust-py-rate-limit": _rust_py,
    "floodgate-rs": _floodgate,
    "cpex-rate-limiter": _cpex,
}


def subjects(*, refuse: bool = False) -> tuple[list[Subject], dict[str, str], list[str]]:
    """Returns the lines of all installed peers, their versions, and the missing peers.

    With `refuse`, the limits are such that every call but a key's first is refused.
    """
    found: list[Subject] = []
    versions: dict[str, str] = {}
    missing: list[str] = []
    for distribution, module_name in PEERS.items():
        module = optional(module_name)
        if module is None:
            missing.append(distribution)
            continue
        versions[distribution] = version(distribution) or "unknown"
        for subject in _MAKERS[distribution](module, refuse):
            subject.peer = distribution
            found.append(subject)
    return found, versions, missing


def print_missing(missing: list[str]) -> None:
    """Prints which peers are left out."""
    if missing:
        print(f"skipped, not installed: {', '.join(missing)} (see benchmarks/requirements.txt)")
