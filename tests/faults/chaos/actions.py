"""Faults that the process of the load causes in itself, beside the load. load.py calls them by
name.

Each takes the worker and returns what it counted, as a dict.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import load
import tidegate


class Count:
    """Decisions of calls that an action makes itself."""

    def __init__(self) -> None:
        self.calls = self.admitted = self.degraded = 0
        self.slowest = 0.0
        self.errors: list[str] = []

    def add(self, decision: tidegate.Decision) -> None:
        self.calls += 1
        self.admitted += decision.allowed
        self.degraded += decision.degraded

    def hit(self, limiter: tidegate.Limiter, key: str) -> None:
        began = time.monotonic()
        try:
            self.add(limiter.hit(key))
        except BaseException:
            self.errors.append(traceback.format_exc())
        self.slowest = max(self.slowest, time.monotonic() - began)

    async def hit_async(self, limiter: tidegate.Limiter, key: str) -> None:
        began = time.monotonic()
        try:
            self.add(await limiter.hit_async(key))
        except Exception:
            self.errors.append(traceback.format_exc())
        self.slowest = max(self.slowest, time.monotonic() - began)

    def merge(self, other: dict[str, Any]) -> None:
        self.calls += other["calls"]
        self.admitted += other["admitted"]
        self.degraded += other["degraded"]
        self.errors += other["errors"]
        self.slowest = max(self.slowest, other["slowest"])

    def result(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "admitted": self.admitted,
            "degraded": self.degraded,
            "slowest": self.slowest,
            "errors": self.errors[:3],
        }


def _spin(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


def _in_threads(run: Callable[[Count, int], None], threads: int) -> dict[str, Any]:
    """Runs a function in threads, each with its number and a count of its own."""
    counts = [Count() for _ in range(threads)]
    made = [threading.Thread(target=run, args=(count, n)) for n, count in enumerate(counts)]
    for thread in made:
        thread.start()
    for thread in made:
        thread.join()
    total = Count()
    for count in counts:
        total.merge(count.result())
    return total.result()


def _in_loop(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(120)


def pause(worker: load.Worker, seconds: float) -> dict[str, Any]:
    """No calls for a while."""
    worker.gate.clear()
    time.sleep(seconds)
    worker.gate.set()
    return {}


# ------------------------------------------------------------------ event loops


def block_loop(worker: load.Worker, seconds: float, when: str, rounds: int) -> dict[str, Any]:
    """Computes for `seconds` in each loop `before` five hits begin, `during` the turn in which
    they do, or `after` they left."""
    count = Count()

    async def run(name: str) -> None:
        for number in range(rounds):
            keys = [f"{worker.settings.run}-block-{name}-{number}-{i}" for i in range(5)]
            if when == "before":
                _spin(seconds)
            tasks = [asyncio.ensure_future(count.hit_async(worker.own, key)) for key in keys]
            if when == "during":
                # Behind the five in the same turn of the loop.
                asyncio.get_running_loop().call_soon(_spin, seconds)
            if when == "after":
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                _spin(seconds)
            await asyncio.gather(*tasks)
            await asyncio.sleep(0.02)

    for number, loop in enumerate(worker.loops):
        _in_loop(loop, run(str(number)))
    return count.result()


def busy_tasks(worker: load.Worker, tasks: int, each: float, limit: int) -> dict[str, Any]:
    """`tasks` tasks begun together, each of which computes for a moment after its hit."""
    total = []
    for number, loop in enumerate(worker.loops):
        count = Count()
        with tidegate.Limiter(
            f"{limit}/{load.PERIOD_DAYS} days", storage=worker.store, prefix="busy"
        ) as limiter:

            async def one(
                limiter: tidegate.Limiter = limiter, number: int = number, count: Count = count
            ) -> None:
                _spin(each)
                await count.hit_async(limiter, f"{worker.settings.run}-{number}")
                _spin(each)

            async def run(one: Any = one) -> None:
                await asyncio.gather(*(one() for _ in range(tasks)))

            _in_loop(loop, run())
        total.append(count.result())
    return {"each": total}


def cancel_tasks(worker: load.Worker, rounds: int, tasks: int) -> dict[str, Any]:
    """Tasks are cancelled en masse at all stages of their hits."""
    count = Count()

    async def run(name: str) -> None:
        for number in range(rounds):
            made = [
                asyncio.ensure_future(
                    count.hit_async(worker.own, f"{worker.settings.run}-cancel-{name}-{i % 50}")
                )
                for i in range(tasks)
            ]
            for _ in range(number % 4):
                await asyncio.sleep(0)
            await asyncio.sleep(0.0005 * (number % 5))
            for task in made:
                task.cancel()
            await asyncio.gather(*made, return_exceptions=True)

    for number, loop in enumerate(worker.loops):
        _in_loop(loop, run(str(number)))
    return count.result()


def loops_in_threads(worker: load.Worker, loops: int, hits: int) -> dict[str, Any]:
    """Many loops at once, each in a thread, all of which end."""

    async def run(count: Count, name: int) -> None:
        for i in range(hits):
            await asyncio.gather(
                *(count.hit_async(worker.own, f"{name}-{i}-{j}") for j in range(3))
            )
            await asyncio.sleep(0.002)

    return _in_threads(lambda count, name: asyncio.run(run(count, name)), loops)


def loops_one_by_one(worker: load.Worker, loops: int) -> dict[str, Any]:
    """Loops come and go, every other one with a call in flight."""
    count = Count()

    async def run(number: int) -> None:
        await count.hit_async(worker.own, f"{worker.settings.run}-loop-{number}")
        if number % 2:
            left_behind = asyncio.ensure_future(count.hit_async(worker.own, "left behind"))
            await asyncio.sleep(0)
            del left_behind

    for number in range(loops):
        asyncio.run(run(number))
    return count.result()


def first_hit_without_descriptors(worker: load.Worker) -> dict[str, Any]:
    """No descriptor is left when a loop makes its first asynchronous call; later there is."""
    before, after = Count(), Count()
    loop = asyncio.new_event_loop()
    held: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard)
    )
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        loop.run_until_complete(before.hit_async(worker.own, f"{worker.settings.run}-none-left"))
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    loop.run_until_complete(after.hit_async(worker.own, f"{worker.settings.run}-some-left"))
    loop.close()
    before.errors += after.errors
    return {**before.result(), "degraded_after": after.degraded, "calls_after": after.calls}


# ---------------------------------------------------------------- threads, the GIL


def compute_beside(worker: load.Worker, seconds: float, threads: int) -> dict[str, Any]:
    """Threads that compute in Python, and so ask for the GIL all the time."""
    _in_threads(lambda count, name: _spin(seconds), threads)
    return {}


def hold_gil(worker: load.Worker, seconds: float, rounds: int) -> dict[str, Any]:
    """A foreign function keeps the GIL while it sleeps."""
    library = ctypes.PyDLL(None)
    for _ in range(rounds):
        library.usleep(round(seconds * 1e6))
        time.sleep(0.05)
    return {}


def signals(worker: load.Worker, seconds: float) -> dict[str, Any]:
    """A signal each millisecond, at whichever thread the kernel picks."""
    until = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < until:
        os.kill(os.getpid(), signal.SIGUSR2)
        sent += 1
        time.sleep(0.001)
    return {"sent": sent}


def many_threads(worker: load.Worker, threads: int, hits: int) -> dict[str, Any]:
    """Many threads at once in synchronous calls."""

    def run(count: Count, name: int) -> None:
        for i in range(hits):
            count.hit(worker.own, f"{worker.settings.run}-crowd-{name}-{i}")
            time.sleep(0.01)

    return _in_threads(run, threads)


# -------------------------------------------------------------- processes, limiters


def fork_under_load(worker: load.Worker, forks: int) -> dict[str, Any]:
    """Children of fork() hit, synchronously and in a loop of their own, and end."""
    total = Count()
    lost = 0
    for number in range(forks):
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(out)
                count = Count()
                # The connection is reopened: its first call may wait for it.
                for i in range(20):
                    count.hit(worker.own, f"{worker.settings.run}-child-{number}-{i}")
                asyncio.run(_child_hits(worker, count, number))
                os.write(into, json.dumps(count.result()).encode())
            finally:
                os._exit(0)
        os.close(into)
        text = b""
        with os.fdopen(out, "rb") as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        if text:
            total.merge(json.loads(text))
        else:
            lost += 1
    return {**total.result(), "lost": lost}


async def _child_hits(worker: load.Worker, count: Count, number: int) -> None:
    for i in range(20):
        await count.hit_async(worker.own, f"{worker.settings.run}-child-{number}-a{i}")


def many_limiters(worker: load.Worker, limiters: int) -> dict[str, Any]:
    """Limiters with a store each are opened, used in both ways, and closed."""
    before = load.usage()
    count = Count()
    most = dict(before)

    async def hits(opened: list[tidegate.Limiter]) -> None:
        for number, limiter in enumerate(opened):
            await count.hit_async(limiter, f"{worker.settings.run}-{number}")

    for first in range(0, limiters, 50):
        opened = [
            tidegate.Limiter("100/minute", storage=worker.settings.uri, **worker.settings.options)
            for _ in range(first, min(first + 50, limiters))
        ]
        for number, limiter in enumerate(opened):
            count.hit(limiter, f"{worker.settings.run}-{number}")
        asyncio.run(hits(opened))
        now = load.usage()
        most = {name: max(most[name], now[name]) for name in now}
        # The store ends with the last reference to a limiter of its own.
        while opened:
            opened.pop().close()
        del limiter
    after = load.settled(before, 8.0)
    return {**count.result(), "before": before, "most": most, "after": after}


def close_in_use(worker: load.Worker) -> dict[str, Any]:
    """The limiters are closed while all threads and tasks are in calls."""
    worker.closed = True
    for limiter in worker.limiters:
        limiter.close()
    return {}


def hit_until_degraded(worker: load.Worker, key: str, times: int) -> dict[str, Any]:
    """Hits that are admitted without the server."""
    degraded = 0
    for _ in range(10 * times):
        decision = worker.own.hit(f"{worker.settings.run}-{key}")
        degraded += decision.degraded and decision.allowed
        if degraded == times:
            break
        time.sleep(0.005)
    return {"degraded": degraded}


def refund(worker: load.Worker, key: str, times: int) -> dict[str, Any]:
    for _ in range(times):
        worker.own.refund(f"{worker.settings.run}-{key}")
    return {}


def charge(worker: load.Worker, key: str, times: int) -> dict[str, Any]:
    """Hits of one key, and what remains after them."""
    count = Count()
    for _ in range(times):
        count.hit(worker.own, f"{worker.settings.run}-{key}")
    last = worker.own.peek(f"{worker.settings.run}-{key}")
    return {**count.result(), "remaining": last.remaining, "peek_degraded": last.degraded}


def flood_denied(worker: load.Worker, seconds: float) -> dict[str, Any]:
    """A key that is used up is asked for all the time."""
    count = Count()
    key = f"{worker.settings.run}-used-up"
    with tidegate.Limiter(
        f"5/{load.PERIOD_DAYS} days", storage=worker.store, prefix="flood"
    ) as limiter:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            count.hit(limiter, key)
            time.sleep(0.0005)
    return {**count.result(), "denied_locally": worker.own.stats().denied_locally}
