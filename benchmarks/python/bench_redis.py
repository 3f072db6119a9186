"""One Redis, several clients: latency, threads, tasks, against redis-py and limits.

    python benchmarks/python/bench_redis.py [--seconds 2]

Starts a redis-server of its own on a free port. Peers that are not installed are left out.
Only ratios within one run mean anything. No target is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import tidegate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))

from redis_server import RedisServer

LIMIT = "1000000/second"
PLAN = [LIMIT, "2000000/second", "3000000/second", "4000000/second"]
# GCRA in one string: what a user would write against a bare client.
SCRIPT = """
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + tonumber(ARGV[1])
if tat - now > tonumber(ARGV[2]) then return {0, 0} end
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', 1000)
return {1, 0}
"""

Call = Callable[[], Any]
AsyncCall = Callable[[], Awaitable[Any]]


def latency_us(call: Call, seconds: float) -> float:
    """The median of single calls from one thread."""
    times = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def by_threads(call: Call, threads: int, seconds: float) -> float:
    """Calls a second."""
    counts = [0] * threads
    stop = time.monotonic() + seconds

    def work(index: int) -> None:
        while time.monotonic() < stop:
            call()
            counts[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / seconds


async def by_tasks(call: AsyncCall, tasks: int, seconds: float) -> tuple[float, float]:
    """Calls a second, and microseconds of the loop's CPU for each."""
    count = 0
    stop = time.monotonic() + seconds

    async def work() -> None:
        nonlocal count
        while time.monotonic() < stop:
            await call()
            count += 1

    cpu = time.thread_time()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return count / seconds, (time.thread_time() - cpu) * 1e6 / count


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def run(server: RedisServer, seconds: float) -> None:
    uri = server.uri()
    one = tidegate.Limiter(LIMIT, storage=uri)
    four = tidegate.Limiter(PLAN, storage=uri)
    calls: dict[str, Call] = {
        "tidegate, one limit": lambda: one.hit("k"),
        "tidegate, a plan of four": lambda: four.hit("k"),
    }
    async_calls: dict[str, AsyncCall] = {"tidegate": lambda: one.hit_async("k")}
    if installed("redis"):
        import redis
        import redis.asyncio

        client = redis.Redis(port=server.port)
        digest = client.script_load(SCRIPT)
        calls["redis-py EVALSHA"] = lambda: client.evalsha(digest, 1, "bare", 1, 1000000)
        aio = redis.asyncio.Redis(port=server.port)
        async_calls["redis.asyncio EVALSHA"] = lambda: aio.evalsha(digest, 1, "bare", 1, 1000000)
    if installed("limits"):
        import limits
        import limits.strategies

        storage = limits.storage.storage_from_string(f"redis://127.0.0.1:{server.port}")
        item = limits.parse(LIMIT)
        fixed = limits.strategies.FixedWindowRateLimiter(storage)
        calls["limits, fixed window"] = lambda: fixed.hit(item, "k")
    for call in calls.values():
        call()
    print(f"{'one thread, µs a call':32}{'32 threads, calls/s':>24}")
    for name, call in calls.items():
        print(f"{name:32}{latency_us(call, seconds):10.1f}{by_threads(call, 32, seconds):24.0f}")

    async def tasks() -> None:
        print(f"\n{'tasks':24}{'1':>20}{'10':>20}{'100':>20}   calls/s, loop µs a call")
        for name, call in async_calls.items():
            row = [await by_tasks(call, n, seconds) for n in (1, 10, 100)]
            print(f"{name:24}" + "".join(f"{rate:12.0f} {cpu:7.1f}" for rate, cpu in row))
        if "redis.asyncio EVALSHA" in async_calls:
            await aio.aclose()

    asyncio.run(tasks())
    for limiter in (one, four):
        assert limiter.stats().degraded == 0
        limiter.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    seconds: float = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            run(server, seconds)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
