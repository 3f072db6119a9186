"""One Redis, several clients: latency, threads, tasks, and calls that need no Redis.

    python benchmarks/python/bench_redis.py [--quick] [--rounds N] [--uvloop] [--json FILE]

Starts a redis-server of its own on a free port. redis-py, redis.asyncio and redis-benchmark call
lua/bucket_hits.lua, the script of tidegate's hits; limits and throttled-py have scripts of their
own. Peers that are not installed are left out. In each round every subject has its turn; figures
are medians over the rounds, ratios are taken within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import harness
import tidegate
from harness import Subject, Target

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))

from redis_server import PATIENT, RedisServer

ROOT = Path(__file__).resolve().parents[2]
LIMIT = "1000000/second"
PLAN = [LIMIT, "2000000/second", "3000000/second", "4000000/second"]
# The script of the core, after the constant that the core defines. The core's text has no comments,
# and the full script for states that this one does not understand, which no key here has.
SCRIPT = f"local TOLERANCE_US = {tidegate._core.CLOCK_TOLERANCE_NS // 1000}\n" + (
    ROOT / "lua" / "bucket_hits.lua"
).read_text(encoding="utf-8")


def argument(depth_us: int, cost_us: int) -> bytes:
    """Its argument for hits of one unit.

    Depth and cost in microseconds, margin in milliseconds; the time of a unit in seconds,
    nanoseconds and parts of one, and how many parts one has.
    """
    numbers = (depth_us, cost_us, 0, *divmod(1_000 * cost_us, 1_000_000_000), 0, 1)
    return b"".join(number.to_bytes(7, "big") for number in numbers)


ARGUMENT = argument(1_000_000, 1)  # for LIMIT
# The same for redis-benchmark, which passes no argument with a byte 0: with the argument in it.
WHOLE_SCRIPT = SCRIPT.replace("ARGV[1]", '"' + "".join(f"\\{byte:03}" for byte in ARGUMENT) + '"')
KEYS = [f"user:{i}" for i in range(1_000)]
THREADS = 32
ID = "0123456789abcdefghij"  # of 20 bytes
# A token bucket in a hash of two fields, as most guides write it.
HASH_SCRIPT = """
local key, capacity, rate = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local tokens = tonumber(redis.call('HGET', key, 'tokens')) or capacity
local last_refill = tonumber(redis.call('HGET', key, 'last_refill')) or now
tokens = math.min(capacity, tokens + math.max(0, now - last_refill) * rate)
local allowed = tokens >= 1
if allowed then tokens = tokens - 1 end
redis.call('HSET', key, 'tokens', tokens, 'last_refill', now)
redis.call('EXPIRE', key, math.ceil(capacity / rate))
return allowed and 1 or 0
"""

BARE = "redis-py EVALSHA"
BARE_ASYNC = "redis.asyncio EVALSHA"
BENCHMARK = "redis-benchmark -P 16"

Call = Callable[[str], Any]
AsyncCall = Callable[[str], Awaitable[Any]]


def latency_us(call: Call, seconds: float) -> float:
    """The median of single calls from one thread."""
    times = []
    keys = itertools.cycle(KEYS)
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        key = next(keys)
        start = time.perf_counter_ns()
        call(key)
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def by_threads(call: Call, threads: int, seconds: float) -> float:
    """Calls a second."""
    counts = [0] * threads
    start = time.monotonic()
    stop = start + seconds

    def work(index: int) -> None:
        keys = itertools.cycle(KEYS[index::threads])
        while time.monotonic() < stop:
            call(next(keys))
            counts[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.monotonic() - start)


async def by_tasks(call: AsyncCall, tasks: int, seconds: float) -> tuple[float, float]:
    """Calls a second, and microseconds of the loop's CPU for each."""
    count = 0
    start = time.monotonic()
    stop = start + seconds

    async def work(index: int) -> None:
        nonlocal count
        keys = itertools.cycle(KEYS[index::tasks])
        while time.monotonic() < stop:
            await call(next(keys))
            count += 1

    cpu = time.thread_time()
    await asyncio.gather(*(work(index) for index in range(tasks)))
    cpu = time.thread_time() - cpu
    return count / (time.monotonic() - start), cpu * 1e6 / count


def load(server: RedisServer, script: str) -> str:
    """Has the server keep a script; returns its digest."""
    return server.command("SCRIPT", "LOAD", script).split()[1].decode()


def by_redis_benchmark(server: RedisServer, seconds: float) -> float:
    """Calls a second of the same script, sixteen at a time on each of fifty connections."""
    digest = load(server, WHOLE_SCRIPT)
    done = subprocess.run(
        [
            *("redis-benchmark", "-p", str(server.port), "-P", "16", "-r", str(len(KEYS))),
            *("-n", str(round(150_000 * seconds)), "--csv"),
            *("EVALSHA", digest, "1", "bare:__rand_int__"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1].rsplit('","', 7)[1].strip('"'))


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def async_peers(server: RedisServer, digest: str) -> dict[str, AsyncCall]:
    """The installed asynchronous clients. Call it on the loop that will use them."""
    calls: dict[str, AsyncCall] = {}
    uri = f"redis://127.0.0.1:{server.port}"
    if installed("redis"):
        import redis.asyncio

        client = redis.asyncio.Redis(port=server.port)
        calls[BARE_ASYNC] = lambda key: client.evalsha(digest, 1, f"bare:{key}", ARGUMENT)
    if installed("redis") and installed("limits"):
        import limits.aio

        storage = limits.aio.storage.RedisStorage(f"async+{uri}", implementation="redispy")
        fixed = limits.aio.strategies.FixedWindowRateLimiter(storage)
        item = limits.parse("1000000/second")
        calls["limits async, fixed window"] = lambda key: fixed.hit(item, key)
    if installed("redis") and installed("throttled"):
        import throttled.asyncio

        throttle = throttled.asyncio.Throttled(
            using=throttled.asyncio.RateLimiterType.GCRA.value,
            quota=throttled.asyncio.per_sec(1_000_000, burst=1_000_000),
            store=throttled.asyncio.RedisStore(server=f"{uri}/0"),
        )
        calls["throttled-py async, GCRA"] = throttle.limit
    return calls


class Samples:
    """The figures of each round, by name."""

    def __init__(self) -> None:
        self.all: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        self.all[name].append(value)

    def __getitem__(self, name: str) -> float:
        return statistics.median(self.all[name])

    def __contains__(self, name: str) -> bool:
        return name in self.all

    def ratio(self, one: str, other: str) -> float:
        """The median of the ratios of each round."""
        return statistics.median(a / b for a, b in zip(self.all[one], self.all[other], strict=True))


def measure_redis(server: RedisServer, rounds: int, seconds: float, new_loop: Any) -> Samples:
    digest = load(server, SCRIPT)
    uri = server.uri(PATIENT)
    one = tidegate.Limiter(LIMIT, storage=uri)
    four = tidegate.Limiter(PLAN, storage=one.storage)
    calls: dict[str, Call] = {"tidegate": one.hit, "tidegate, a plan of 4": four.hit}
    if installed("redis"):
        import redis

        client = redis.Redis(port=server.port)
        calls[BARE] = lambda key: client.evalsha(digest, 1, f"bare:{key}", ARGUMENT)
    samples = Samples()
    loop = new_loop()

    async def tasks() -> None:
        for name, call in async_calls.items():
            for count in (1, 100):
                rate, cpu = await by_tasks(call, count, seconds)
                samples.add(f"{name}, {count} tasks", rate)
                samples.add(f"{name}, {count} tasks, loop us", cpu)
        rate, _ = await by_tasks(one.hit_async, 500, seconds)
        samples.add("tidegate, 500 tasks", rate)

    async def begin() -> dict[str, AsyncCall]:
        return {"tidegate": one.hit_async, **async_peers(server, digest)}

    async_calls = loop.run_until_complete(begin())
    for _ in range(rounds):
        for name, call in calls.items():
            call(KEYS[0])
            samples.add(f"{name}, latency us", latency_us(call, seconds))
        for name, call in calls.items():
            samples.add(f"{name}, {THREADS} threads", by_threads(call, THREADS, seconds))
        loop.run_until_complete(tasks())
        samples.add(BENCHMARK, by_redis_benchmark(server, seconds))
    stats = one.stats()
    assert stats.degraded == 0, stats
    return samples


def measure_local(server: RedisServer, rounds: int, quick: bool) -> tuple[list[harness.Row], int]:
    """Times calls that need no Redis, and counts the commands that a flood of refusals sends."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        broken = tidegate.Limiter(
            LIMIT,
            storage=f"redis://127.0.0.1:{nobody.getsockname()[1]}",
            breaker_failures=1,
            breaker_open=3600,
        )
        broken.hit("k")
        refused = tidegate.Limiter(
            "1/hour", storage=server.uri(PATIENT), deny_cache_max=3600, prefix="flood"
        )
        for _ in range(3):
            refused.hit("flood")
        server.command("CONFIG", "RESETSTAT")
        flood = ["flood"] * (20_000 if quick else 100_000)
        rows = harness.measure(
            [
                Subject("memory://", "hit(key)", {"hit": tidegate.Limiter(LIMIT).hit}),
                Subject("breaker open", "hit(key)", {"hit": broken.hit}),
                Subject("refused flood, hit", "hit(key)", {"hit": refused.hit}, keys=flood),
                Subject("refused flood, allow", "hit(key)", {"hit": refused.allow}, keys=flood),
            ],
            rounds,
            quick=quick,
        )
        assert broken.stats().breaker_open
        assert not refused.allow("flood")
        calls = server.calls()
        return rows, sum(calls.get(name, 0) for name in ("eval", "evalsha"))


def bytes_a_key(server: RedisServer) -> dict[str, int]:
    """MEMORY USAGE of a token bucket after three calls, and of one in a hash."""
    server.command("FLUSHALL")
    with tidegate.Limiter("100/hour", storage=server.uri(PATIENT)) as limiter:
        for _ in range(3):
            limiter.hit(ID)
    key = server.command("KEYS", "*").split(b"\r\n")[2]
    # Measured under the name that guides use, and under a name as long as tidegate's.
    guides = f"rate_limit:{ID}"
    as_long = guides[-len(key) :]
    for name in (guides, as_long):
        for _ in range(3):
            server.command("EVAL", HASH_SCRIPT, "1", name, "100", str(100 / 3600))
    usage = {
        what: int(server.command("MEMORY", "USAGE", name)[1:])
        for what, name in (
            ("tidegate", key),
            ("a hash of two fields", guides),
            ("a hash of two fields, key as long", as_long),
        )
    }
    return {**usage, "length of the key": len(key)}


def targets_of(
    samples: Samples, rows: list[harness.Row], sent: int, usage: dict[str, int]
) -> list[Target]:
    targets = []

    def at_least(what: str, one: str, other: str, bound: float) -> None:
        if one in samples and other in samples:
            targets.append(Target(what, samples.ratio(one, other), bound))

    def at_most(what: str, one: str, other: str, bound: float) -> None:
        if one in samples and other in samples:
            targets.append(Target(what, samples.ratio(one, other), bound, at_least=False))

    for peer, bound in (
        (BARE_ASYNC, 4.0),
        ("limits async, fixed window", 6.0),
        ("throttled-py async, GCRA", 6.0),
    ):
        at_least(
            f"100 tasks, checks/s over {peer}", "tidegate, 100 tasks", f"{peer}, 100 tasks", bound
        )
    at_most(
        f"loop CPU a check over {BARE_ASYNC}",
        "tidegate, 100 tasks, loop us",
        f"{BARE_ASYNC}, 100 tasks, loop us",
        1 / 8,
    )
    at_least(f"500 tasks over {BENCHMARK}", "tidegate, 500 tasks", BENCHMARK, 0.8)
    at_least(
        f"{THREADS} threads over {BARE}, pooled",
        f"tidegate, {THREADS} threads",
        f"{BARE}, {THREADS} threads",
        3.0,
    )
    at_most(f"latency over {BARE}", "tidegate, latency us", f"{BARE}, latency us", 0.95)
    at_most(
        "a plan of 4 over a plan of 1, latency",
        "tidegate, a plan of 4, latency us",
        "tidegate, latency us",
        1.4,
    )
    memory, broken, flood, _ = rows
    targets += [
        Target("refused flood, M decisions/s", 1e3 / flood.ns, 1.0, unit=""),
        Target("refused flood, commands sent", sent, 0, at_least=False, unit=""),
        Target("breaker open over memory://", broken.ns / memory.ns, 1.5, at_least=False),
        Target("bytes a key", usage["tidegate"], 112, at_least=False, unit=""),
        *(
            Target(f"bytes a key over {hashed}", usage["tidegate"] / usage[hashed], 0.5, False)
            for hashed in ("a hash of two fields", "a hash of two fields, key as long")
        ),
    ]
    return targets


def print_samples(samples: Samples) -> None:
    lines = [
        [name, f"{samples[name]:,.1f}", f"{min(values):,.1f}", f"{max(values):,.1f}"]
        for name, values in samples.all.items()
    ]
    harness.print_table("Redis: calls/s, or microseconds", ["", "median", "least", "most"], lines)


def main() -> None:
    parser = harness.arguments("one Redis, several clients", rounds=7, quick_rounds=2)
    parser.add_argument("--uvloop", action="store_true", help="instead of asyncio's own loop")
    options: argparse.Namespace = parser.parse_args()
    rounds = harness.rounds_of(options)
    new_loop: Any = asyncio.new_event_loop
    if options.uvloop:
        import uvloop

        new_loop = uvloop.new_event_loop
    harness.print_interpreter()
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            samples = measure_redis(server, rounds, 0.2 if options.quick else 0.5, new_loop)
            rows, sent = measure_local(server, rounds, options.quick)
            usage = bytes_a_key(server)
        finally:
            server.kill()
    print_samples(samples)
    harness.print_rows("Without Redis", rows, rows[0])
    targets = targets_of(samples, rows, sent, usage)
    harness.report(
        options.json,
        "redis",
        {
            "rounds": rounds,
            "loop": "uvloop" if options.uvloop else "asyncio",
            "peers": {name: harness.version(name) for name in ("redis", "limits", "throttled-py")},
            "samples": samples.all,
            "rows": rows,
            "bytes": usage,
        },
        targets,
    )


if __name__ == "__main__":
    main()
