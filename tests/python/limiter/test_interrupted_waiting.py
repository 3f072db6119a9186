"""An exception at any instruction of acquire() leaves no ticket in the queue: signal handlers and
PyThreadState_SetAsyncExc() raise between any two."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from types import FrameType
from typing import Any, Callable

import pytest
import tidegate as tg
from tidegate.limiter.waiting import queue, turn
from tidegate.limiter.waiting.queue import Bell


class Interrupted(Exception):
    """What the handler of a signal raises."""


def interrupt(call: Callable[[], object], at: int) -> bool:
    """Runs `call`, and raises before instruction number `at` of the modules that wait. Returns
    whether there was such an instruction."""
    left = at

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        path = frame.f_code.co_filename
        if not path.endswith("limiter/limiter.py") and "/waiting/" not in path:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


def waits_in_vain(
    limiter: tg.Limiter, loop: asyncio.AbstractEventLoop | None
) -> Callable[[], object]:
    if loop is not None:
        return lambda: loop.run_until_complete(limiter.acquire_async("k", timeout=0.001))
    return lambda: limiter.acquire("k", timeout=0.001)


# Where the coroutine is interrupted before its first instruction.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_async", [False, True])
def test_no_ticket_is_left_behind(is_async: bool) -> None:
    limiter = tg.Limiter("1/minute", algorithm="concurrency")
    limiter.hit("k")
    loop = asyncio.new_event_loop() if is_async else None
    at = 0
    there = True
    while there:
        at += 1
        there = interrupt(waits_in_vain(limiter, loop), at)
        if limiter._room.lines:
            gc.collect()  # a task and its exception refer to each other
        assert not limiter._room.lines, f"at instruction {at}"
    if loop is not None:
        loop.close()
    assert at > 200  # the call was indeed interrupted everywhere


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_async", [False, True])
def test_others_pass_a_caller_that_does_not_run_whoever_was_interrupted_on_passing_it(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queue, turn):
        monkeypatch.setattr(module, "PATIENCE", 1e-6)
    limiter = tg.Limiter("1 at once")
    absent = limiter._room.enter("k", 1, lambda: None, object())
    loop = asyncio.new_event_loop() if is_async else None

    def passes() -> object:
        if loop is not None:
            return loop.run_until_complete(limiter.acquire_async("k", timeout=None))
        return limiter.acquire("k", timeout=None)

    at = 0
    there = True
    while there:
        at += 1
        absent.answer()
        there = interrupt(passes, at)
        gc.collect()
        assert len(limiter._room.lines[b"k"]) == 1, f"at instruction {at}"
        limiter.reset("k")
        assert limiter.acquire("k", timeout=20), f"at instruction {at}"
        assert absent.absent
        limiter.reset("k")
    if loop is not None:
        loop.close()
    assert at > 200


def test_the_next_in_line_is_woken_when_a_ticket_is_dropped() -> None:
    limiter = tg.Limiter("1/minute", algorithm="concurrency")
    room = limiter._room
    woken = []
    first = room.enter("k", 1, lambda: woken.append("first"))
    second = room.enter("k", 1, lambda: woken.append("second"))
    assert room.is_first(first)
    assert not room.is_first(second)
    assert room.cost_ahead(second) == 1
    gone = weakref.ref(first)
    del first
    assert gone() is None
    assert woken == ["second"]
    assert room.is_first(second)
    assert room.cost_ahead(second) == 0


def test_a_bell_may_be_rung_by_the_thread_that_waits_for_it() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    bell.wait(None)
    bell.ring()
    bell.silence()
    bell.wait(0.001)  # it is silent: this returns when the time is up
