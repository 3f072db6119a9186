"""A busy process says nothing of Redis: calls leave without the event loop's help, and the
server's health is judged by what the server did."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import tidegate
import uvloop
from polling import eventually_async, run_threads
from redis_server import RedisServer
from servers import uvicorn_at
from tidegate.asgi import RateLimitMiddleware
from tidegate.keys import peer
from tidegate.limiter import loops

pytestmark = pytest.mark.alone

Run = Callable[[Coroutine[Any, Any, Any]], Any]

# What is held up here is held up for longer than a call may take; a loaded machine may still take
# a while to run Redis.
USUAL = "timeout=0.25&connect_timeout=20"


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a new loop of each kind."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def limiter(server: RedisServer) -> Iterator[tidegate.Limiter]:
    with tidegate.Limiter("500/30 days", storage=server.uri(USUAL)) as limiter:
        limiter.ping()
        yield limiter


def assert_healthy(limiter: tidegate.Limiter) -> None:
    stats = limiter.stats()
    assert (stats.degraded, stats.errors, stats.breaker_opened) == (0, 0, 0)


def keep_busy(seconds: float) -> None:
    """Holds the loop, and the GIL but for its switches."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


@pytest.mark.parametrize("seconds", [0.01, 0.3, 2])
@pytest.mark.parametrize("when", ["before", "same turn", "in flight"])
def test_a_blocked_loop_degrades_no_call(
    limiter: tidegate.Limiter, run: Run, when: str, seconds: float
) -> None:
    async def main() -> list[tidegate.Decision]:
        await limiter.hit_async("warm")
        if when == "before":
            keep_busy(seconds)
        tasks = [asyncio.ensure_future(limiter.hit_async("k")) for _ in range(5)]
        await asyncio.sleep(0)  # all have asked
        if when == "in flight":
            await asyncio.sleep(0)  # and have been sent
        if when != "before":
            keep_busy(seconds)
        return await asyncio.gather(*tasks)

    assert not any(decision.degraded for decision in run(main()))
    assert_healthy(limiter)
    assert limiter.peek("k").remaining == 495


def test_a_loop_that_sleeps_in_c_degrades_no_call(limiter: tidegate.Limiter, run: Run) -> None:
    async def main() -> list[tidegate.Decision]:
        tasks = [asyncio.ensure_future(limiter.hit_async("k")) for _ in range(5)]
        await asyncio.sleep(0)
        time.sleep(0.6)
        return await asyncio.gather(*tasks)

    assert not any(decision.degraded for decision in run(main()))
    assert_healthy(limiter)


def test_a_thousand_busy_tasks_admit_exactly(limiter: tidegate.Limiter, run: Run) -> None:
    async def main() -> int:
        async def task() -> bool:
            keep_busy(0.0005)
            return await limiter.allow_async("k")

        return sum(await asyncio.gather(*(task() for _ in range(1000))))

    assert run(main()) == 500
    assert_healthy(limiter)


def test_a_thread_that_holds_the_gil_degrades_no_call(limiter: tidegate.Limiter, run: Run) -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    async def main() -> int:
        async def task() -> int:
            return sum([await limiter.allow_async("k") for _ in range(4)])

        return sum(await asyncio.gather(*(task() for _ in range(150))))

    before = sys.getswitchinterval()
    sys.setswitchinterval(0.3)
    thread = threading.Thread(target=compute)
    thread.start()
    try:
        assert run(main()) == 500
    finally:
        over.set()
        sys.setswitchinterval(before)
        thread.join()
    assert_healthy(limiter)


def test_many_busy_loops_admit_exactly(limiter: tidegate.Limiter) -> None:
    admitted: list[int] = []

    async def main() -> int:
        async def task() -> bool:
            keep_busy(0.001)
            return await limiter.allow_async("k")

        return sum(await asyncio.gather(*(task() for _ in range(100))))

    runs: list[Run] = [asyncio.run, uvloop.run] * 3
    threads = [
        threading.Thread(target=lambda run=run: admitted.append(run(main())))  # type: ignore[misc]
        for run in runs
    ]
    run_threads(threads)
    assert sum(admitted) == 500
    assert_healthy(limiter)


def test_a_suspended_process_degrades_no_call(server: RedisServer) -> None:
    """Stopped for ten deadlines with calls in flight, as a laptop or a paused container is."""
    program = textwrap.dedent(
        f"""
        import asyncio, threading, tidegate

        limiter = tidegate.Limiter("100000/30 days", storage={server.uri(USUAL)!r})
        limiter.ping()
        over = threading.Event()

        def forever():
            while not over.is_set():
                limiter.hit("thread")

        async def main():
            async def task():
                while not over.is_set():
                    await limiter.hit_async("task")
            await asyncio.gather(*(task() for _ in range(10)))

        workers = [threading.Thread(target=forever) for _ in range(3)]
        workers.append(threading.Thread(target=asyncio.run, args=(main(),)))
        for worker in workers:
            worker.start()
        print("ready", flush=True)
        input()
        over.set()
        for worker in workers:
            worker.join()
        stats = limiter.stats()
        print(stats.degraded, stats.errors, stats.breaker_opened, stats.allowed > 100)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            for _ in range(3):
                os.kill(child.pid, signal.SIGSTOP)
                time.sleep(0.6)
                os.kill(child.pid, signal.SIGCONT)
                time.sleep(0.1)
            answer, _ = child.communicate("\n", timeout=60)
        finally:
            child.kill()
            child.wait()
    assert answer == "0 0 0 True\n"


def test_a_slow_password_function_is_no_failure_of_the_server(server: RedisServer) -> None:
    asked = threading.Event()
    released = threading.Event()

    def password() -> str:
        asked.set()
        released.wait(20)
        return ""

    with tidegate.Limiter(
        "10/hour", storage=server.uri(USUAL), password=password, breaker_failures=1
    ) as limiter:
        assert asked.wait(20)
        assert limiter.hit("k").degraded
        assert asyncio.run(limiter.hit_async("k")).degraded
        stats = limiter.stats()
        assert (stats.degraded, stats.errors, stats.breaker_opened) == (2, 0, 0)
        released.set()
        deadline = time.monotonic() + 20
        while limiter.peek("k").degraded:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_full_queue_is_no_failure_of_the_server(own_server: RedisServer, run: Run) -> None:
    async def main(limiter: tidegate.Limiter) -> None:
        own_server.signal(signal.SIGSTOP)
        try:
            # Of two costs in turn, so that none share a command.
            tasks = [
                asyncio.ensure_future(limiter.hit_async(f"k{i}", 1 + i % 2)) for i in range(100)
            ]
            refused, _ = await asyncio.wait(tasks, timeout=1)
        finally:
            own_server.signal(signal.SIGCONT)
        assert len(refused) == 90
        assert all(task.result().degraded for task in refused)
        await asyncio.gather(*tasks)

    uri = own_server.uri("timeout=20&connect_timeout=20&max_queue=10")
    with tidegate.Limiter("10/hour", storage=uri) as limiter:
        limiter.ping()
        run(main(limiter))
        stats = limiter.stats()
        assert (stats.degraded, stats.errors, stats.breaker_opened) == (90, 0, 0)


def unread(port: int) -> int:
    """The bytes that have come to a server on IPv4 which has not read them."""
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    at = [line.split() for line in lines]
    return sum(int(each[4].split(":")[1], 16) for each in at if each[1].endswith(f":{port:04X}"))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="there is no /proc/net/tcp")
def test_each_hit_of_a_command_that_was_sent_has_a_place_in_the_queue(
    own_server: RedisServer, run: Run
) -> None:
    async def main(limiter: tidegate.Limiter) -> None:
        own_server.signal(signal.SIGSTOP)
        try:
            first = [asyncio.ensure_future(limiter.hit_async(f"k{i}")) for i in range(8)]
            await eventually_async(lambda: unread(own_server.port) > 0)
            second = [asyncio.ensure_future(limiter.hit_async(f"j{i}")) for i in range(8)]
            refused, _ = await asyncio.wait(second, timeout=1)
            assert not any(task.done() for task in first)
        finally:
            own_server.signal(signal.SIGCONT)
        assert len(refused) == 6
        await asyncio.gather(*first, *second)
        # Answered calls leave their places.
        again = await asyncio.gather(*(limiter.hit_async(f"i{i}") for i in range(10)))
        assert not any(decision.degraded for decision in again)

    uri = own_server.uri("timeout=20&connect_timeout=20&max_queue=10")
    with tidegate.Limiter("10/hour", storage=uri) as limiter:
        limiter.ping()
        limiter.hit("script")
        run(main(limiter))
        assert limiter.stats().degraded == 6


def test_a_thousand_concurrent_requests_admit_exactly(server: RedisServer) -> None:
    """Under uvicorn: each request costs the loop more than its check does."""
    app = RateLimitMiddleware(page, "500/30 days", key=peer, storage=server.uri(USUAL))
    app.limiter.ping()

    async def get(address: tuple[str, int]) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: tests\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer.split(b" ", 2)[1]

    async def get_all(address: tuple[str, int]) -> list[bytes]:
        return await asyncio.gather(*(get(address) for _ in range(1000)))

    with uvicorn_at(app, ws="none", lifespan="off", backlog=2048) as address:
        statuses = asyncio.run(get_all(address))
    assert (statuses.count(b"200"), statuses.count(b"429")) == (500, 500)
    assert_healthy(app.limiter)


async def page(scope: Any, receive: Any, send: Any) -> None:
    """An application that computes for a moment."""
    keep_busy(0.0002)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"page"})


@pytest.mark.parametrize("what", ["hit", "plan", "slot", "acquire"])
def test_a_loop_without_descriptors_degrades_and_recovers(
    server: RedisServer, run: Run, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = tidegate.Limit(2, "hour", algorithm="concurrency")
    limiter = tidegate.Limiter(
        one if what == "slot" else "500/30 days", storage=server.uri(), prefix=what
    )
    limiter.ping()
    plan = tidegate.Plan([limiter])

    async def ask() -> tidegate.Decision:
        if what == "slot":
            async with limiter.slot("k") as slot:
                return slot.decision
        if what == "plan":
            return await plan.hit_async(["k"])
        if what == "acquire":
            return await limiter.acquire_async("k")
        return await limiter.hit_async("k")

    async def main() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken: list[int] = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            while True:
                try:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    break
            # The connection stands, so it decides; only the loop cannot wait for it.
            assert [bool(await ask()) for _ in range(3)] == [True] * 3
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert await ask()
        await limiter.reset_async("k")

    loops._logged_at = -60.0
    with caplog.at_level(logging.ERROR, "tidegate"):
        run(main())
    assert len([record for record in caplog.records if "descriptor" in record.message]) == 1
    stats = limiter.stats()
    assert (stats.errors, stats.breaker_opened) == (0, 0)
    limiter.close()
