"""Tasks and loops share one client: nothing blocks, nothing leaks, whoever goes away."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import processes
import pytest
import tidegate
import uvloop
from polling import eventually, eventually_async, run_threads
from proxy import Proxy
from redis_server import PATIENT, RedisServer
from tidegate.limiter import loops

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a new loop of each kind."""
    return request.param  # type: ignore[no-any-return]


def scripts_run(server: RedisServer) -> int:
    calls = server.calls()
    return calls.get("evalsha", 0) + calls.get("eval", 0)


def cancel_and_close(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_two_hundred_tasks_admit_exactly(server: RedisServer, run: Run) -> None:
    async def main(limiter: tidegate.Limiter) -> int:
        async def task() -> int:
            return sum([await limiter.allow_async("k") for _ in range(5)])

        return sum(await asyncio.gather(*(task() for _ in range(200))))

    with tidegate.Limiter("321/30 days", storage=server.uri()) as limiter:
        assert run(main(limiter)) == 321
        assert limiter.stats().degraded == 0
        assert limiter.stats().allowed == 321
        assert limiter.stats().denied == 1000 - 321


def test_everything_that_can_be_awaited(server: RedisServer, run: Run) -> None:
    async def main() -> None:
        async with tidegate.Limiter(["3/hour", "4/day"], storage=server.uri()) as limiter:
            assert (await limiter.hit_async("k", 2)).remaining == 1
            assert (await limiter.peek_async("k")).remaining == 1
            assert not await limiter.allow_async("k", 2)
            await limiter.refund_async("k", 2)
            assert (await limiter.peek_async("k")).remaining == 3
            assert await limiter.allow_async("k", 3)
            await limiter.reset_async("k")
            assert (await limiter.hit_async("k")).remaining == 2
            assert not (await limiter.acquire_async("k", 3, timeout=0))
        one = tidegate.Limit(1, 60.0, algorithm="concurrency")
        async with tidegate.Limiter(one, storage=server.uri()) as limiter:
            async with limiter.slot("k"):
                with pytest.raises(tidegate.RateLimitExceeded):
                    await limiter.slot("k").__aenter__()
            async with limiter.slot("k") as slot:
                assert slot.decision.allowed

    run(main())


def test_waiting_for_a_token_does_not_come_early(server: RedisServer, run: Run) -> None:
    async def main() -> float:
        async with tidegate.Limiter("1/300 ms", storage=server.uri()) as limiter:
            begin = time.monotonic()
            for _ in range(3):
                assert await limiter.acquire_async("k", timeout=20)
            return time.monotonic() - begin

    assert run(main()) >= 0.6 - 0.005  # the server's clock is not the loop's


def test_ten_thousand_cancelled_tasks_leave_nothing(server: RedisServer, run: Run) -> None:
    limiter = tidegate.Limiter("20000/30 days", storage=server.uri())
    limiter.hit("warm")
    limiter.reset("warm")
    before = sys.getrefcount(limiter)

    async def main() -> None:
        assert await limiter.allow_async("other")
        for _ in range(10):
            tasks = [asyncio.ensure_future(limiter.hit_async("k")) for _ in range(1000)]
            await asyncio.sleep(0)  # all have asked
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        # Answers come in the order of the questions: all before this one are there.
        assert (await limiter.peek_async("k")).remaining == 10_000
        assert (await limiter.hit_async("k")).remaining == 9_999

    run(main())
    gc.collect()
    assert sys.getrefcount(limiter) == before
    stats = limiter.stats()
    assert stats.allowed == 10_003
    assert (stats.errors, stats.degraded, stats.script_errors) == (0, 0, 0)
    limiter.close()


def test_a_task_that_is_cancelled_has_no_place(
    server: RedisServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = loops.begin
    begun: dict[int, asyncio.Event] = {}

    def noted(limiter: tidegate.Limiter, op: int, *rest: Any) -> Any:
        if op in begun:
            assert not begun[op].is_set(), f"operation {op} was begun twice"
            begun[op].set()
        return begin(limiter, op, *rest)

    monkeypatch.setattr(loops.AsyncBridge, "begin", noted)

    async def main() -> None:
        begun.update({op: asyncio.Event() for op in (loops.HIT, loops.RELEASE)})
        one = tidegate.Limit(1, "hour", algorithm="concurrency")
        async with tidegate.Limiter(one, storage=server.uri()) as limiter:
            assert (await limiter.peek_async("other")).allowed  # the connection is there
            entering = asyncio.ensure_future(limiter.slot("k").__aenter__())
            await asyncio.wait_for(begun[loops.HIT].wait(), 10)
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
            # The release is begun when the hit is answered, and what is asked after it is
            # answered after it.
            await asyncio.wait_for(begun[loops.RELEASE].wait(), 10)
            assert (await limiter.peek_async("k")).remaining == 1

    run(main())


def test_no_call_wakes_a_loop_whose_interpreter_ends(server: RedisServer, run: Run) -> None:
    """uvloop in a daemon thread would ask for the GIL of an interpreter that is gone."""

    async def main() -> None:
        limiter = tidegate.Limiter("1000/day", storage=server.uri(PATIENT))
        await limiter.hit_async("k")
        loop = asyncio.get_running_loop()
        loops._silence_running_loops()  # as the interpreter does at its end
        unanswered = asyncio.ensure_future(limiter.hit_async("k"))
        # The reply to the peek that sees it comes after its own, on the same connection.
        await eventually_async(lambda: limiter.peek("k").remaining == 998)
        assert select.select([loops._channels[loop].fileno()], [], [], 0)[0] == []
        unanswered.cancel()

    run(main())


def test_loops_in_many_threads_share_one_limiter(server: RedisServer) -> None:
    limiter = tidegate.Limiter("300/30 days", storage=server.uri())
    admitted: list[int] = []

    async def main() -> int:
        async def task() -> int:
            return sum([await limiter.allow_async("k") for _ in range(4)])

        return sum(await asyncio.gather(*(task() for _ in range(25))))

    def in_a_loop(run: Run) -> None:
        admitted.append(run(main()))

    def without() -> None:
        admitted.append(sum(limiter.allow("k") for _ in range(100)))

    threads = [threading.Thread(target=in_a_loop, args=(asyncio.run,)) for _ in range(4)]
    threads += [threading.Thread(target=in_a_loop, args=(uvloop.run,)) for _ in range(2)]
    threads += [threading.Thread(target=without) for _ in range(2)]
    run_threads(threads)
    assert len(admitted) == len(threads)
    assert sum(admitted) == 300
    assert limiter.stats().degraded == 0
    limiter.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_ends_with_calls_in_flight(
    server: RedisServer, proxy: Proxy, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    uri = f"redis://127.0.0.1:{proxy.port}?timeout=0.3&connect_timeout=20&breaker_open=0.05"
    limiter = tidegate.Limiter("100/hour", storage=uri)
    eventually(lambda: not limiter.hit("warm").degraded)
    for _ in range(3):
        proxy.mode = "hole"
        loop = new_loop()

        async def leave() -> None:
            for _ in range(50):
                task = asyncio.ensure_future(limiter.hit_async("k"))
                task.add_done_callback(lambda _: None)
                await asyncio.sleep(0)

        loop.run_until_complete(leave())
        cancel_and_close(loop)
        proxy.mode = "pass"
        proxy.drop()

        async def come_back() -> bool:
            for _ in range(1000):
                if not (await limiter.hit_async("after")).degraded:
                    return True
                await asyncio.sleep(0.01)
            return False

        assert asyncio.run(come_back())
    limiter.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("then", ["another loop", "close"])
def test_a_closed_loop_is_not_kept(
    server: RedisServer, new_loop: Callable[[], asyncio.AbstractEventLoop], then: str
) -> None:
    """Neither it nor its futures and limiter, whether or not their answers were still to come."""
    kept: list[weakref.ref[Any]] = []
    for _ in range(3):
        limiter = tidegate.Limiter("100/hour", storage=server.uri())
        limiter.ping()
        loop = new_loop()

        async def leave(limiter: tidegate.Limiter) -> None:
            for _ in range(50):
                kept.append(weakref.ref(asyncio.ensure_future(limiter.hit_async("k"))))
            await asyncio.sleep(0)

        loop.run_until_complete(leave(limiter))
        cancel_and_close(loop)
        kept.extend([weakref.ref(loop), weakref.ref(limiter)])
        del loop
        if then == "close":
            limiter.close()
        del limiter
    if then == "another loop":
        with tidegate.Limiter("100/hour", storage=server.uri()) as last:
            asyncio.run(last.hit_async("k"))

    def all_gone() -> bool:
        gc.collect()
        return not any(reference() is not None for reference in kept)

    eventually(all_gone)


def test_a_request_that_is_late_is_not_sent(server: RedisServer) -> None:
    limiter = tidegate.Limiter("100/hour", storage=server.uri("timeout=0.5&connect_timeout=20"))
    eventually(lambda: not limiter.hit("warm").degraded)

    async def peek() -> tuple[tidegate.Decision, ...]:
        decision = await limiter.peek_async("k")
        return () if decision.degraded else (decision,)

    async def main() -> tuple[tidegate.Decision, tidegate.Decision]:
        late = asyncio.ensure_future(limiter.hit_async("k"))
        await asyncio.sleep(0)
        time.sleep(1.2)  # the loop is kept from sending
        first = await late
        (second,) = await eventually_async(peek)
        return first, second

    asyncio.run(limiter.peek_async("k"))
    first, second = asyncio.run(main())
    if first.degraded:
        assert second.remaining == 100
    else:
        assert second.remaining == 99
    limiter.close()


@pytest.mark.alone
def test_the_loop_goes_on_while_redis_is_a_black_hole(proxy: Proxy, run: Run) -> None:
    uri = f"redis://127.0.0.1:{proxy.port}?timeout=0.2&connect_timeout=0.5&breaker_failures=100000"

    async def main() -> tuple[int, float]:
        async with tidegate.Limiter("100000/hour", storage=uri) as limiter:

            async def is_connected() -> bool:
                return not (await limiter.hit_async("k")).degraded

            await eventually_async(is_connected)
            proxy.mode = "hole"
            gaps: list[float] = []

            async def heart() -> None:
                last = time.monotonic()
                while True:
                    await asyncio.sleep(0.001)
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now

            beating = asyncio.ensure_future(heart())
            for _ in range(4):
                begin = time.monotonic()
                decisions = await asyncio.gather(*(limiter.hit_async("k") for _ in range(50)))
                assert time.monotonic() - begin < 0.2 + 2
                assert all(decision.degraded for decision in decisions)
            beating.cancel()
            return len(gaps), sorted(gaps)[-1 - len(gaps) // 50]

    beats, gap = run(main())
    assert beats >= 20
    assert gap < 0.1


def test_fork_before_and_after_the_first_use_in_a_loop(server: RedisServer) -> None:
    limiter = tidegate.Limiter("100/hour", storage=server.uri())

    async def four() -> int:
        decisions = await asyncio.gather(*(limiter.hit_async("k") for _ in range(4)))
        return sum(d.allowed and not d.degraded for d in decisions)

    def child() -> int:
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            try:
                os._exit(0 if asyncio.run(four()) == 4 else 1)
            finally:
                os._exit(2)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert child() == 0
    assert asyncio.run(four()) == 4
    assert child() == 0

    async def fork_in_flight() -> int:
        asked = [asyncio.ensure_future(limiter.hit_async("k")) for _ in range(4)]
        await asyncio.sleep(0)
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            # This loop is the parent's; a thread has none.
            admitted: list[int] = []
            thread = threading.Thread(target=lambda: admitted.append(asyncio.run(four())))
            thread.start()
            thread.join()
            os._exit(0 if admitted == [4] else 1)
        assert sum(d.allowed and not d.degraded for d in await asyncio.gather(*asked)) == 4
        return pid

    for _ in range(5):
        pid = asyncio.run(fork_in_flight())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert limiter.peek("k").remaining == 100 - 12 - 5 * 8
    limiter.close()


@pytest.mark.parametrize("how", ["return", "exception", "sys.exit", "running", "open breaker"])
def test_exit_with_calls_in_flight(server: RedisServer, proxy: Proxy, how: str) -> None:
    program = textwrap.dedent(f"""
        import asyncio, logging, sys, threading, time, tidegate
        logging.disable()
        how = {how!r}
        breaker = "&breaker_failures=1" if how == "open breaker" else "&breaker_open=0.2"
        uri = "redis://127.0.0.1:{proxy.port}?timeout=0.05&connect_timeout=20" + breaker
        limiter = tidegate.Limiter("1000000/hour", storage=uri)
        deadline = time.monotonic() + 30
        while limiter.hit("k").degraded and how != "open breaker":
            assert time.monotonic() < deadline

        async def main():
            tasks = [asyncio.ensure_future(limiter.hit_async("k")) for _ in range(500)]
            await asyncio.sleep(0)
            if how == "exception":
                raise KeyError
            if how == "sys.exit":
                sys.exit(0)

        def forever():
            async def ask():
                while True:
                    await limiter.hit_async("k")
            asyncio.run(ask())

        if how == "running":
            for _ in range(3):
                threading.Thread(target=forever, daemon=True).start()
        try:
            asyncio.run(main())
        except KeyError:
            pass
    """)
    for mode in ("pass", "hole"):
        with processes.running(
            [sys.executable, "-X", "dev", "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as done:
            if mode == "hole":
                time.sleep(0.3)
                proxy.mode = mode
                time.sleep(0.3)
                proxy.mode = "pass"
                proxy.drop()
            out, err = done.communicate(timeout=60)
        assert (done.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize(
    ("text", "algorithm"), [("3/hour", "token-bucket"), ("3/2000 weeks", "fixed-window")]
)
def test_hit_many_shares_commands(server: RedisServer, text: str, algorithm: str) -> None:
    keys = [f"k{i % 250}" for i in range(1000)]
    limit = tidegate.Limit(text, algorithm=algorithm)
    with (
        tidegate.Limiter(limit, storage=server.uri()) as limiter,
        tidegate.Limiter(limit) as memory,
    ):
        limiter.hit_many(["warm", "warmer"])
        server.command("CONFIG", "RESETSTAT")
        assert limiter.hit_many(keys) == memory.hit_many(keys)
        assert 1 <= scripts_run(server) <= len(keys) // 8
        assert limiter.hit_many(keys) == [False] * len(keys)
        costs = [1 + i % 4 for i in range(250)]
        for each in (limiter, memory):
            for key in keys[:250]:
                each.reset(key)
        assert limiter.hit_many(keys[:250], costs) == memory.hit_many(keys[:250], costs)
        assert limiter.stats().degraded == 0
    plan = ["3/hour", tidegate.Limit("5/day", algorithm="sliding-log")]
    with (
        tidegate.Limiter(plan, storage=server.uri(PATIENT), prefix="plan") as limiter,
        tidegate.Limiter(plan) as memory,
    ):
        server.command("CONFIG", "RESETSTAT")
        assert limiter.hit_many(keys) == memory.hit_many(keys)
        assert scripts_run(server) <= len(keys) + 1
