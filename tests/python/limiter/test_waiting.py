"""acquire() and slot(): fair, woken and never busy, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading

import pytest
import tidegate as tg
from polling import eventually, eventually_async
from tidegate.limiter.waiting.turn import KeyTurn

SECOND = 1_000_000_000


class Counting(tg.Limiter):
    """A limiter that counts how often waiting callers try."""

    looks = 0

    def peek(self, key: str | bytes, cost: int = 1) -> tg.Decision:
        self.looks += 1
        return super().peek(key, cost)


def emptied(clock: tg.ManualClock, text: str = "1/second") -> Counting:
    limiter = Counting(text, clock=clock)
    assert limiter.hit("k")
    assert not limiter.peek("k")
    limiter.looks = 0
    return limiter


def in_line(limiter: tg.Limiter, key: bytes = b"k") -> int:
    return len(limiter._room.lines.get(key, ()))


def start(
    limiter: tg.Limiter, served: list[object], name: object, **kwargs: float
) -> threading.Thread:
    """A thread that acquires, after it has joined the line."""

    def acquire() -> None:
        served.append((name, limiter.acquire("k", **kwargs)))

    before = in_line(limiter)
    thread = threading.Thread(target=acquire, daemon=True)
    thread.start()
    eventually(lambda: in_line(limiter) != before or not thread.is_alive())
    return thread


def test_an_acquire_that_need_not_wait_does_not() -> None:
    limiter = tg.Limiter("1/second", clock=tg.ManualClock())
    assert limiter.acquire("k").allowed


def test_threads_are_served_in_the_order_they_came() -> None:
    clock = tg.ManualClock()
    limiter = emptied(clock)
    served: list[tuple[int, tg.Decision]] = []
    threads = [start(limiter, served, i, timeout=100) for i in range(5)]
    for n in range(1, 6):
        clock.advance(1)
        threads[n - 1].join(10)
        assert [name for name, _ in served] == list(range(n))
    assert all(decision.allowed for _, decision in served)


def test_tasks_and_threads_stand_in_one_line() -> None:
    clock = tg.ManualClock()
    limiter = emptied(clock)
    served: list[tuple[object, tg.Decision]] = []

    async def main() -> None:
        async def task() -> None:
            served.append(("task", await limiter.acquire_async("k", timeout=100)))

        thread = start(limiter, served, "thread", timeout=100)
        waiting = asyncio.create_task(task())
        await eventually_async(lambda: in_line(limiter) == 2)
        clock.advance(1)
        await asyncio.to_thread(thread.join, 10)
        clock.advance(1)
        await waiting

    asyncio.run(main())
    assert [name for name, _ in served] == ["thread", "task"]


def test_waiting_callers_do_not_poll_while_nothing_happens() -> None:
    clock = tg.ManualClock()
    limiter = emptied(clock)
    served: list[object] = []
    thread = start(limiter, served, "a", timeout=100)
    for _ in range(10):
        clock.advance_ns(1)
    clock.set_ns(SECOND)
    thread.join(10)
    assert served
    # One look on arrival, at most one for each time the clock moved, one charge.
    assert limiter.looks <= 13


@pytest.mark.parametrize(
    ("method", "seconds"),
    [("acquire", 5.0), ("acquire_async", 5.0), ("acquired", 5.0), ("slot", 0.0)],
)
def test_no_caller_waits_longer_than_the_default_timeout(method: str, seconds: float) -> None:
    signature = inspect.signature(getattr(tg.Limiter, method))
    assert signature.parameters["timeout"].default == seconds


def test_a_wait_beyond_the_timeout_is_refused_at_once() -> None:
    limiter = emptied(tg.ManualClock(), "1/minute")
    decision = limiter.acquire("k", timeout=5)
    assert not decision.allowed
    assert decision.retry_after == 60.0


def test_a_cost_that_can_never_pass_is_refused_at_once() -> None:
    limiter = tg.Limiter("2/minute", clock=tg.ManualClock())
    decision = limiter.acquire("k", cost=3, timeout=None)
    assert not decision.allowed
    assert decision.retry_after == float("inf")
    assert limiter.peek("k").remaining == 2


@pytest.mark.parametrize("key", ["k", b"k"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_caller_passes_earlier_ones(asynchronous: bool, key: str | bytes) -> None:
    clock = tg.ManualClock()
    limiter = tg.Limiter("10/10 seconds", clock=clock)
    assert limiter.hit("k", 10)
    served: list[tuple[str, tg.Decision]] = []
    thread = start(limiter, served, "first", cost=5, timeout=100)
    clock.advance(3)
    if asynchronous:
        late = asyncio.run(limiter.acquire_async(key, timeout=0))
    else:
        late = limiter.acquire(key, timeout=0)
    assert not late.allowed
    # Not before what the first one waits for is there too.
    assert late.retry_after == 3.0
    assert limiter.peek("k").remaining == 3
    clock.advance(2)
    thread.join(10)
    assert [name for name, decision in served if decision.allowed] == ["first"]
    clock.advance(1)
    assert limiter.acquire(key, timeout=0).allowed


@pytest.mark.parametrize("give_back", ["refund", "reset"])
def test_a_refund_wakes_the_first(give_back: str) -> None:
    limiter = emptied(tg.ManualClock())
    served: list[object] = []
    thread = start(limiter, served, "a", timeout=100)
    getattr(limiter, give_back)("k")
    thread.join(10)
    assert served


def test_a_handler_that_interrupts_a_waiting_thread_may_give_units_back() -> None:
    limiter = tg.Limiter("2/second", clock=tg.ManualClock())

    class Interrupting(bytes):
        """Acts as a signal handler or a finalizer, which may run at any point."""

        def __hash__(self) -> int:
            limiter.refund("k")
            limiter.reset("k")
            return super().__hash__()

    thread = threading.Thread(target=limiter.acquire, args=(Interrupting(b"k"),), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_close_wakes_waiting_callers() -> None:
    limiter = emptied(tg.ManualClock())
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            limiter.acquire("k", timeout=100)
        except tg.LimiterClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    eventually(lambda: in_line(limiter) > 0)
    limiter.close()
    thread.join(10)
    assert raised
    with pytest.raises(tg.LimiterClosedError):
        limiter.hit("k")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_does_not_stand_in_the_lines_of_its_parent() -> None:
    clock = tg.ManualClock()
    limiter = emptied(clock)
    served: list[object] = []
    thread = start(limiter, served, "a", timeout=100)
    with limiter._room._lock:  # as another thread may have it
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        limiter.reset("k")
        os._exit(0 if limiter.acquire("k", timeout=0).allowed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    clock.advance(1)
    thread.join(10)
    assert served


def test_a_cancelled_task_leaves_the_line() -> None:
    clock = tg.ManualClock()
    limiter = emptied(clock)

    async def main() -> tg.Decision:
        first = asyncio.create_task(limiter.acquire_async("k", timeout=100))
        second = asyncio.create_task(limiter.acquire_async("k", timeout=100))
        await eventually_async(lambda: in_line(limiter) == 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        clock.advance(1)
        return await second

    assert asyncio.run(main()).allowed
    assert in_line(limiter) == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", True, -(10**400)])
def test_an_invalid_timeout_is_refused(timeout: object) -> None:
    limiter = tg.Limiter("1/second")
    with pytest.raises(tg.ConfigurationError, match=r"timeout is .*expected"):
        limiter.acquire("k", timeout=timeout)  # type: ignore[arg-type]
    assert limiter.peek("k").remaining == 1


def in_flight(clock: tg.ManualClock) -> tg.Limiter:
    return tg.Limiter("2/minute", algorithm="concurrency", clock=clock)


def test_slots_are_taken_and_given_back() -> None:
    limiter = in_flight(tg.ManualClock())
    with limiter.slot("k") as slot, limiter.slot("k"):
        assert slot.decision.remaining == 1
        assert limiter.peek("k").remaining == 0
        with pytest.raises(tg.RateLimitExceeded) as refused, limiter.slot("k"):
            pass
        assert refused.value.decision.retry_after == 60.0
        assert "retry after 60.0 s" in str(refused.value)
    with pytest.raises(tg.RateLimitExceeded, match="never lets so much"):
        limiter.slot("k", cost=3).__enter__()
    assert limiter.peek("k").remaining == 2


def test_a_lease_runs_out_and_is_not_given_back_twice() -> None:
    clock = tg.ManualClock()
    limiter = in_flight(clock)
    stopped = limiter.hit("k", cost=2)  # as by a process that was stopped, and extends nothing
    clock.advance(60)
    with limiter.slot("k", cost=2):
        limiter._release("k", 2, stopped)
        assert limiter.peek("k").remaining == 0


def test_a_place_is_given_back_once() -> None:
    clock = tg.ManualClock()
    limiter = in_flight(clock)
    slot = limiter.slot("k")
    slot.__exit__(None, None, None)  # was never entered
    slot.__enter__()
    clock.advance(1)
    with limiter.slot("k"):
        slot.__exit__(None, None, None)
        slot.__exit__(None, None, None)
        assert limiter.peek("k").remaining == 1
    assert limiter.peek("k").remaining == 2


def test_one_slot_may_be_entered_by_several() -> None:
    clock = tg.ManualClock()
    limiter = in_flight(clock)
    slot = limiter.slot("k")
    slot.__enter__()
    clock.advance(59)
    with slot:
        assert limiter.peek("k").remaining == 0
        clock.advance(1)
        slot.__exit__(None, None, None)
        assert limiter.peek("k").remaining == 1
    assert limiter.peek("k").remaining == 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_slot_can_be_left_after_its_limiter_was_closed(asynchronous: bool) -> None:
    limiter = in_flight(tg.ManualClock())
    same = tg.Limiter(limiter.limits, storage=limiter.storage, clock=tg.ManualClock())

    async def main() -> None:
        async with limiter.slot("k"):
            limiter.close()
            raise KeyError("of the caller")

    def work() -> None:
        with limiter.slot("k"):
            limiter.close()
            raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        asyncio.run(main()) if asynchronous else work()
    assert same.peek("k").remaining == 2


def test_an_invalid_slot_is_refused_when_it_is_made() -> None:
    limiter = in_flight(tg.ManualClock())
    for args, said in [
        (("",), "the key is"),
        ((5,), "the key is"),
        (("k", 0), "the cost is"),
        (("k", 1, -1), "the timeout is"),
        (("k", 1, float("nan")), "the timeout is"),
    ]:
        with pytest.raises(tg.ConfigurationError, match=said):
            limiter.slot(*args)


def test_a_slot_that_is_given_back_wakes_a_waiting_caller() -> None:
    limiter = in_flight(tg.ManualClock())

    async def main() -> None:
        async with limiter.slot("k", cost=2):
            waiting = asyncio.create_task(limiter.acquire_async("k", timeout=30))
            await eventually_async(lambda: in_line(limiter) > 0)
        assert (await waiting).allowed

    asyncio.run(main())


@pytest.mark.parametrize("clock", [None, tg.ManualClock()], ids=["system", "manual"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_place_given_back_by_another_limiter_is_found(
    asynchronous: bool, clock: tg.ManualClock | None
) -> None:
    # The lease is a minute: nobody here waits as long as that.
    limiter = tg.Limiter("1/minute", algorithm="concurrency", clock=clock)
    other = tg.Limiter(limiter.limits, storage=limiter.storage, clock=clock)
    slot = other.slot("k")
    slot.__enter__()
    served: list[tuple[str, tg.Decision]] = []

    def acquire() -> None:
        if asynchronous:
            served.append(("a", asyncio.run(limiter.acquire_async("k", timeout=None))))
        else:
            served.append(("a", limiter.acquire("k", timeout=50)))

    thread = threading.Thread(target=acquire, daemon=True)
    thread.start()
    eventually(lambda: in_line(limiter) > 0)
    slot.__exit__(None, None, None)
    thread.join(20)
    assert [decision.allowed for _, decision in served] == [True]


def test_a_caller_that_waits_for_foreign_leases_polls_less_and_less() -> None:
    limiter = tg.Limiter("1/minute", algorithm="concurrency", clock=tg.ManualClock())
    limiter.hit("k")
    turn = KeyTurn(limiter, "k", 1, None)
    pauses = [turn._sleep(limiter.peek("k"), True) for _ in range(7)]
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25]


def test_a_slot_needs_a_concurrency_limit() -> None:
    with pytest.raises(tg.ConfigurationError, match="a limit such as '5 at once'"):
        tg.Limiter("2/minute").slot("k")
