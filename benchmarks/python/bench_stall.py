"""The worst stall of an event loop while the Redis of its middleware does not answer.

    python benchmarks/python/bench_stall.py [--seconds 5] [--json FILE]

Tasks keep sending requests through the ASGI middleware, and a heartbeat on the same loop measures
how late it wakes. The Redis, which the benchmark starts, is stopped by SIGSTOP: the kernel still
receives its requests, and no reply is sent. The bare application is measured in the same loop under
the same load: its stalls are caused by the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
from tidegate.asgi import RateLimitMiddleware

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))

from redis_server import RedisServer

TARGET_MS = 20.0
TASKS = 32


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def receive() -> Any:
    raise AssertionError("nobody asks")


async def send(message: Any) -> None:
    pass


async def measure(app: Any, seconds: float) -> tuple[float, float, int]:
    """The worst gap of the heartbeat and its 99th percentile, in ms, and the answered requests."""
    until = time.perf_counter() + seconds
    answered = 0
    clients = itertools.count()

    async def requests() -> None:
        nonlocal answered
        while time.perf_counter() < until:
            client = (f"10.0.{next(clients) % 256}.1", 1)
            await app(
                {"type": "http", "method": "GET", "client": client, "headers": []}, receive, send
            )
            answered += 1
            await asyncio.sleep(0.005)

    tasks = [asyncio.create_task(requests()) for _ in range(TASKS)]
    gaps = []
    while (before := time.perf_counter()) < until:
        await asyncio.sleep(0.001)
        gaps.append(time.perf_counter() - before - 0.001)
    await asyncio.gather(*tasks)
    gaps.sort()
    return gaps[-1] * 1e3, gaps[len(gaps) * 99 // 100] * 1e3, answered


def main() -> None:
    parser = harness.arguments(__doc__.splitlines()[0], rounds=1, quick_rounds=1)
    parser.add_argument("--seconds", type=float, help="of each part (default 5)")
    options = parser.parse_args()
    seconds = options.seconds or (1.0 if options.quick else 5.0)
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            parts: dict[str, tuple[float, float, int]] = {}
            degraded = []
            for loop in ("asyncio", "uvloop"):
                run: Any = asyncio.run
                if loop == "uvloop":
                    import uvloop

                    run = uvloop.run
                # Each loop has a breaker of its own, closed at first.
                storage = server.uri("timeout=0.05")
                app = RateLimitMiddleware(application, limit="1000000/s", storage=storage)
                parts[f"{loop}, bare"] = run(measure(application, seconds))
                parts[f"{loop}, Redis answers"] = run(measure(app, seconds))
                server.signal(signal.SIGSTOP)
                parts[f"{loop}, Redis is black-holed"] = run(measure(app, seconds))
                server.signal(signal.SIGCONT)
                degraded.append(app.limiter.stats().degraded)
        finally:
            server.kill()
    lines = [
        [name, f"{worst:.1f}", f"{high:.1f}", f"{answered:,}"]
        for name, (worst, high, answered) in parts.items()
    ]
    harness.print_table("Stalls of the loop", ["", "worst ms", "p99 ms", "requests"], lines)
    worst = max(worst for name, (worst, *_) in parts.items() if "black-holed" in name)
    print(f"degraded decisions: {degraded}")
    targets = [harness.Target("worst stall without Redis", worst, TARGET_MS, False, " ms")]
    harness.report(options.json, "stall", {"parts": parts}, targets)


if __name__ == "__main__":
    main()
