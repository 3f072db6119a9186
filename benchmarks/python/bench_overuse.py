"""What is used beyond a limit where a call's cost is known only afterwards: tidegate and its peers.

    python benchmarks/python/bench_overuse.py [--quick] [--json FILE]

The limit is 1,000 units a minute, and a call is admitted by an estimate. The figure is what is used
in an hour, or in 300 seconds with --quick, as a multiple of what burst and rate allow. Each limiter
corrects the estimate as its manual shows, or has no way to give units back or to charge more than
there is room for; LiteLLM has no estimates, and adds what was used. One caller after the other:
estimate 10, real 5,000. At once: 100 streams of some seconds, whose real cost has a heavy tail and
whose estimate is a tenth of it; here the bound has what the calls in flight use beyond their
estimates, too. Time is simulated.
"""

from __future__ import annotations

import asyncio
import datetime
import heapq
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness
from harness import Target

COUNT, PERIOD = 1000, 60
HOUR = 3600
STREAMS = 100


class Clock:
    """The time of everybody."""

    def __init__(self) -> None:
        self.ns = 1_700_000_000 * 10**9

    def set(self, seconds: float) -> None:
        self.ns = 1_700_000_000 * 10**9 + round(seconds * 1e9)


CLOCK = Clock()


@dataclass
class Way:
    """How a limiter admits a call by its estimate, and hears of its real cost.

    `admit` returns None for a refusal, else what `settle` needs.
    """

    name: str
    admit: Callable[[int], Any]
    settle: Callable[[Any, int, int], None]

    @property
    def burst(self) -> int:
        """Two adjacent fixed windows may be full."""
        return 2 * COUNT if "fixed" in self.name else COUNT


def _tidegate() -> Iterator[Way]:
    tidegate = harness.load_tidegate()
    assert tidegate is not None
    clock = tidegate.ManualClock(CLOCK.ns)

    def limiter(algorithm: str, **options: Any) -> Any:
        limit = tidegate.Limit(f"{COUNT}/minute", algorithm=algorithm, **options)
        return tidegate.Limiter(limit, clock=clock)

    for algorithm in ("token-bucket", "fixed-window", "sliding-window", "sliding-log"):
        ours = limiter(algorithm, max_debt=float("inf"))

        def admit(estimate: int, ours: Any = ours) -> Any:
            clock.set_ns(CLOCK.ns)
            return ours.reserve("k", estimate, ttl=600) or None

        def settle(reservation: Any, estimate: int, real: int) -> None:
            clock.set_ns(CLOCK.ns)
            reservation.commit(real)

        yield Way(f"tidegate reserve + commit, {algorithm}", admit, settle)
    ours = limiter("token-bucket", max_debt=float("inf"))

    def hit(estimate: int, ours: Any = ours) -> Any:
        clock.set_ns(CLOCK.ns)
        return ours.hit("k", estimate) or None

    def charge(decision: Any, estimate: int, real: int, ours: Any = ours) -> None:
        clock.set_ns(CLOCK.ns)
        if real > estimate:
            ours.charge("k", real - estimate)
        elif real < estimate:
            ours.refund("k", estimate - real, decision=decision)

    yield Way("tidegate hit + charge or refund, token-bucket", hit, charge)


def _limits() -> Iterator[Way]:
    limits = harness.optional("limits")
    if limits is None:
        return
    item = limits.RateLimitItemPerMinute(COUNT)
    for name, kind in (
        ("fixed window", limits.strategies.FixedWindowRateLimiter),
        ("sliding counter", limits.strategies.SlidingWindowCounterRateLimiter),
        ("moving window", limits.strategies.MovingWindowRateLimiter),
    ):
        theirs = kind(limits.storage.MemoryStorage())

        def admit(estimate: int, theirs: Any = theirs) -> Any:
            return theirs.hit(item, "k", cost=estimate) or None

        def settle(_: Any, estimate: int, real: int, theirs: Any = theirs) -> None:
            if real > estimate:  # a refusal charges nothing, and nothing can be given back
                theirs.hit(item, "k", cost=real - estimate)

        yield Way(f"limits {name}, hit + hit", admit, settle)


def _throttled() -> Iterator[Way]:
    throttled = harness.optional("throttled")
    if throttled is None:
        return
    for using in ("fixed_window", "token_bucket", "gcra", "sliding_window"):
        theirs = throttled.Throttled(
            using=using, quota=throttled.per_min(COUNT), store=throttled.MemoryStore()
        )

        def admit(estimate: int, theirs: Any = theirs) -> Any:
            return None if theirs.limit("k", cost=estimate).limited else True

        def settle(_: Any, estimate: int, real: int, theirs: Any = theirs) -> None:
            if real > estimate:
                theirs.limit("k", cost=real - estimate)

        yield Way(f"throttled-py {using.replace('_', ' ')}, limit + limit", admit, settle)


def _pyrate() -> Iterator[Way]:
    pyrate = harness.optional("pyrate_limiter")
    if pyrate is None:
        return

    class Simulated(pyrate.AbstractClock):  # type: ignore[misc]
        def now(self) -> int:
            return CLOCK.ns // 10**6

    rate = pyrate.Rate(COUNT, pyrate.Duration.MINUTE)
    log = pyrate.InMemoryBucket([rate])
    log._clock = Simulated()
    for name, bucket in (("log", log), ("GCRA", pyrate.StateBucket([rate], clock=Simulated()))):
        theirs = pyrate.Limiter(bucket)

        def admit(estimate: int, theirs: Any = theirs) -> Any:
            return theirs.try_acquire("k", weight=estimate, blocking=False) or None

        def settle(_: Any, estimate: int, real: int, theirs: Any = theirs) -> None:
            if real > estimate:
                theirs.try_acquire("k", weight=real - estimate, blocking=False)

        yield Way(f"pyrate-limiter {name}, try_acquire twice", admit, settle)


def _litellm() -> Iterator[Way]:
    """The proxy's limit on tokens, which asks whether a key has any left, and adds those that the
    answer has used."""
    hooks = harness.optional("litellm.proxy.hooks.parallel_request_limiter_v3")
    if hooks is None:
        return
    litellm, proxy = harness.optional("litellm"), harness.optional("litellm.proxy._types")
    assert litellm is not None
    assert proxy is not None

    class Simulated(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Simulated:
            return cls.fromtimestamp(CLOCK.ns / 1e9, tz)

    class Counts(litellm.DualCache):  # type: ignore[misc]
        """What the proxy keeps its counts in, without its imports."""

        dual_cache = property(lambda self: self)

        async def async_get_cache(self, key: str, **_: Any) -> Any:
            return self.in_memory_cache.get_cache(key)

        async def async_set_cache(self, key: str, value: Any, *, ttl: int, **_: Any) -> None:
            self.in_memory_cache.set_cache(key, value, ttl=ttl)

        async def async_batch_get_cache(self, keys: list[str], **_: Any) -> list[Any]:
            return [self.in_memory_cache.get_cache(key) for key in keys]

    hooks.datetime = Simulated
    theirs = hooks._PROXY_MaxParallelRequestsHandler_v3(Counts())
    theirs.get_rate_limit_type = lambda: "total"
    user = proxy.UserAPIKeyAuth.model_construct(api_key="k", tpm_limit=COUNT)
    metadata = {"metadata": {"user_api_key": "k"}}

    def admit(_: int) -> Any:
        try:
            run(theirs.async_pre_call_hook(user, None, {}, "completion"))
        except hooks.HTTPException:
            return None
        return True

    def settle(_admitted: Any, _estimate: int, real: int) -> None:
        usage = litellm.Usage(total_tokens=real)
        answer = litellm.ModelResponse(usage=usage)
        run(theirs.async_log_success_event({"litellm_params": metadata}, answer, None, None))

    with asyncio.Runner() as runner:
        run = runner.run
        yield Way("LiteLLM proxy, tokens a minute (fixed window)", admit, settle)


def sequential(way: Way, seconds: int) -> float:
    """A call each second, which ends before the next one."""
    used = 0
    for second in range(seconds):
        CLOCK.set(second)
        admitted = way.admit(10)
        if admitted is not None:
            CLOCK.set(second + 0.5)
            way.settle(admitted, 10, 5000)
            used += 5000
    return used / (COUNT + COUNT / PERIOD * seconds)


def at_once(way: Way, seconds: int) -> float:
    """The worst, over all intervals, of what was used against the bound."""
    rng = random.Random(1)
    in_flight: dict[int, tuple[Any, int, int]] = {}
    events = [(rng.random(), number) for number in range(STREAMS)]
    heapq.heapify(events)
    level = since = worst = 0.0
    while events[0][0] < seconds:
        at, number = heapq.heappop(events)
        CLOCK.set(at)
        wait = 0.01
        if number in in_flight:
            way.settle(*in_flight.pop(number))
        else:
            real = min(5000, round(20 * rng.paretovariate(1.2)))
            estimate = max(1, real // 10)
            admitted = way.admit(estimate)
            wait = 0.5 + rng.random()
            if admitted is not None:
                in_flight[number] = admitted, estimate, real
                wait = rng.expovariate(1 / 3)
                level = max(0.0, level - (at - since) * COUNT / PERIOD) + real
                since = at
                beyond = sum(real - estimate for _, estimate, real in in_flight.values())
                worst = max(worst, level / (way.burst + beyond))
        heapq.heappush(events, (at + wait, number))
    return worst


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=1, quick_rounds=1)
    options = parser.parse_args()
    seconds = 300 if options.quick else HOUR
    real_time, real_monotonic = time.time, time.monotonic
    lines, rows, targets = [], [], []
    try:
        time.time = lambda: CLOCK.ns / 1e9
        time.monotonic = lambda: CLOCK.ns / 1e9
        for ways in (_tidegate, _limits, _throttled, _pyrate, _litellm):
            found = []
            for measure in (sequential, at_once):
                # New limiters for each, since all of a run share the time.
                CLOCK.set(0)
                found.append([(way.name, measure(way, seconds)) for way in ways()])
            for (name, one), (_, other) in zip(*found):
                lines.append((name, f"{one:.2f}", f"{other:.2f}"))
                rows.append({"name": name, "sequential": one, "at_once": other})
                if ways is _tidegate:
                    # One call more than the bound.
                    most = 1 + 5000 / (COUNT + COUNT / PERIOD * seconds)
                    targets.append(Target(f"{name}: used", one, most, at_least=False))
                    targets.append(Target(f"{name}: used, at once", other, 1, at_least=False))
    finally:
        time.time, time.monotonic = real_time, real_monotonic
    harness.print_table(
        f"Used in {seconds} s, as a multiple of burst + rate x time",
        ("limiter and recipe", "one after the other", "100 at once"),
        lines,
    )
    figures = {"seconds": seconds, "rows": rows}
    harness.report(options.json, "overuse", figures, targets)


if __name__ == "__main__":
    main()
