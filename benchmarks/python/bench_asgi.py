"""Time that a request takes inside an ASGI application, without a server or a network.

    python benchmarks/python/bench_asgi.py [--quick] [--rounds N] [--json FILE]

The subjects are those of bench_web.py in front of FastAPI, called in one process in turn, each
many times in a round. This measures the time that a limiter adds more exactly than `wrk` can: it is
time of the CPU, which other work of the machine hardly changes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import bench_web
import harness


def scope() -> dict[str, Any]:
    """A request as a server passes it to an application."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 50_000),
        "scheme": "http",
        "method": "GET",
        "root_path": "",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "state": {},
    }


async def receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def microseconds(app: Any, expected: int, calls: int) -> float:
    """The time of a request; fails unless every response has the status `expected`."""
    statuses = set()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.add(message["status"])

    began = time.process_time()
    for _ in range(calls):
        await app(scope(), receive, send)
    taken = time.process_time() - began
    if statuses != {expected}:
        raise RuntimeError(f"{app!r} answered {statuses}")
    return taken / calls * 1e6


async def measure(rounds: int, calls: int) -> dict[str, list[float]]:
    apps = {
        name: make()
        for name, (make, module) in bench_web.SUBJECTS.items()
        if harness.optional(module) and name != bench_web._REFUSING
    }
    for app in apps.values():
        await microseconds(app, 200, calls)  # warms it
    found: dict[str, list[float]] = {name: [] for name in apps}
    for _ in range(rounds):
        for name, app in apps.items():
            found[name].append(await microseconds(app, 200, calls))
    return found


def main() -> None:
    options = harness.begin(harness.arguments(__doc__ or "", rounds=21, quick_rounds=7))
    found = asyncio.run(measure(harness.rounds_of(options), 200 if options.quick else 700))
    # The least of the rounds: other work of the machine takes the caches, too.
    bare = min(found["bare"])
    figures = {
        name: {"us": min(times), "added_us": min(times) - bare} for name, times in found.items()
    }
    lines = [[name, f"{f['us']:.1f}", f"{f['added_us']:.1f}"] for name, f in figures.items()]
    harness.print_table("FastAPI in process, least of the rounds", ["", "us", "added us"], lines)
    targets = [
        harness.Target(
            f"a request: {name} over {other}",
            statistics.median(a / b for a, b in zip(found[name], found[other], strict=True)),
            most,
            at_least=False,
        )
        for name, (other, most) in bench_web.BESIDE.items()
    ]
    harness.report(options.json, "asgi", figures, targets)


if __name__ == "__main__":
    main()
