"""A process that ends while its threads are inside calls of tidegate; see exit_cases.py.

    python exit_child.py '{"uri": "redis://127.0.0.1:6379", "calls": ["hit"], "end": "return"}'

It prints nothing, whatever happens, unless something is wrong.
"""

from __future__ import annotations

import ctypes
import sys

# The last of C's handlers of atexit() waits for 50 ms, so that threads meet what is left of the
# process when the interpreter and libraries like OpenSSL have ended.
if sys.platform == "linux":
    _libc = ctypes.CDLL(None)
    _libc.__cxa_atexit(_libc.usleep, ctypes.c_void_p(50_000), None)
# How long the last of Python's handlers of atexit holds the GIL.
_gil_held_us = ctypes.c_uint(0)

# ruff: noqa: E402
import asyncio
import atexit
import contextlib
import functools
import json
import logging
import multiprocessing
import os
import random
import signal
import threading
import time
import warnings
from typing import Any, Callable

# Handlers run in the reverse order of their registration: these after that of tidegate.
atexit.register(ctypes.PyDLL(None).usleep, _gil_held_us)
_last_words: list[Callable[[], object]] = []
atexit.register(lambda: [word() for word in _last_words])

import tidegate

LIMIT = "1000000000/hour"  # none, so that Redis is asked each time


class Calls:
    """Everything that blocks, each as a function without arguments."""

    def __init__(self, given: dict[str, Any]) -> None:
        uri = given["uri"]
        # Redis is asked each time, whatever comes of it.
        options: dict[str, Any] = {
            "deny_cache_max": 0,
            "breaker_failures": 10**6,
            "on_breaker": _ignore,
        }
        if given["password"]:
            options["password"] = lambda: given["password"]
        clock = time.time_ns if given["client_clock"] else None
        limit = functools.partial(tidegate.Limiter, clock=clock)
        self.limiter = limit(LIMIT, storage=uri, **options)
        self.slots = limit(
            "1000/second", storage=self.limiter.storage, algorithm="concurrency", prefix="slots"
        )
        self.plan = tidegate.Plan([self.limiter, self.slots])
        self.slot_in_use = self.slots.slot("k")
        decision = tidegate.Limiter(LIMIT).hit("k")
        by_name: dict[str, Callable[[], object]] = {
            "hit": lambda: self.limiter.hit("k"),
            "hit of a long key": lambda: self.limiter.hit("k" * 1000),
            "allow": lambda: self.limiter.allow("k"),
            "peek": lambda: self.limiter.peek("k"),
            "refund": lambda: self.limiter.refund("k"),
            "reset": lambda: self.limiter.reset("k"),
            "hit_many": lambda: self.limiter.hit_many(["a", "b", "c"]),
            "plan": lambda: self.plan.hit(["k", "k"]),
            "slot": self._slot,
            "acquire": lambda: self.limiter.acquire("k"),
            "ping": self.limiter.ping,
            "command": lambda: self.limiter.storage.command(["GET", "k"], 20.0),
            "release": lambda: self.slots._release("k", 1, decision),
            "open": lambda: tidegate.Limiter(LIMIT, storage=uri, **options).hit("k"),
        }
        self.chosen = [by_name[name] for name in given["calls"]]

    def _slot(self) -> None:
        with self.slot_in_use:
            pass

    def close(self) -> None:
        self.limiter.close()
        self.slots.close()

    async def tasks(self) -> None:
        """Has the thread of the core deliver to the running loop without a pause."""

        async def hits() -> None:
            while True:
                await self.limiter.hit_async("k")

        async def plans() -> None:
            while True:
                await self.plan.hit_async(["k", "k"])

        async def slots() -> None:
            while True:
                with contextlib.suppress(tidegate.RateLimitExceeded):
                    async with self.slot_in_use:
                        pass

        await asyncio.gather(*(each() for each in (hits, plans, slots) for _ in range(10)))


def _ignore(*arguments: object) -> None:
    pass


def _inside(*calls: Callable[[], object], threads: int = 1) -> None:
    """Has daemon threads repeat each of `calls`; returns when all are about to begin."""

    def repeat(call: Callable[[], object]) -> None:
        barrier.wait()
        while True:
            with contextlib.suppress(tidegate.TidegateError):
                call()

    barrier = threading.Barrier(len(calls) * threads + 1)
    for call in calls * threads:
        threading.Thread(target=repeat, args=(call,), daemon=True).start()
    barrier.wait()


class LastHit:
    """Hits when the interpreter takes its modules apart."""

    last: LastHit

    def __init__(self, hit: Callable[[], object]) -> None:
        self.hit = hit

    def __del__(self) -> None:
        self.hit()


def _join(calls: Calls) -> None:
    """A handler of atexit waits for a daemon thread that is inside a call."""

    def some() -> None:
        begun.set()
        for _ in range(20):
            calls.limiter.hit("k")
        done.append(True)

    done: list[bool] = []
    begun = threading.Event()
    thread = threading.Thread(target=some, daemon=True)
    thread.start()
    begun.wait()
    _last_words.append(thread.join)
    _last_words.append(lambda: done or print("the thread did not end"))


def _children(method: str, given: dict[str, Any]) -> int:
    """Processes of multiprocessing that end with threads inside calls: their exit codes."""
    context = multiprocessing.get_context(method)
    team = [context.Process(target=_child, args=(given,)) for _ in range(2)]
    for process in team:
        process.start()
    for process in team:
        process.join()
    return sum(process.exitcode != 0 for process in team)


def _child(given: dict[str, Any]) -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    calls = Calls(given)
    _inside(*calls.chosen, threads=given["threads"])


# ------------------------------------------------------- Python code that the core calls


def _spin() -> None:
    while True:
        sum(range(100))


def _stay(how: str, begun: threading.Semaphore) -> None:
    begun.release()
    _spin() if how == "spins" else time.sleep(600)


def _password(given: dict[str, Any], how: str) -> None:
    begun = threading.Semaphore(0)
    limiter = tidegate.Limiter(
        LIMIT, storage=given["uri"], password=lambda: _stay(how, begun), on_breaker=_ignore
    )
    begun.acquire()
    _inside(lambda: limiter.hit("k"))


def _clock(given: dict[str, Any], how: str) -> None:
    begun = threading.Semaphore(0)
    main = threading.get_ident()

    def now() -> int:
        if threading.get_ident() != main:
            _stay(how, begun)
        return time.time_ns()

    uri = given["uri"] + "&clock=client"
    for storage in (uri, "memory://"):
        limiter = tidegate.Limiter(LIMIT, storage=storage, clock=now)
        for call in (limiter.hit, limiter.peek):
            _inside(lambda call=call: call("k"))  # type: ignore[misc]
            begun.acquire()


def _hook(given: dict[str, Any], how: str, of_the_core: bool) -> None:
    """The breaker opens in a thread of Python's, or in one of the core."""
    begun = threading.Semaphore(0)
    options = {"breaker_failures": 1, "on_breaker": lambda *_: _stay(how, begun)}
    limiter = tidegate.Limiter(LIMIT, storage=given["uri"], **options)

    async def hit() -> None:
        await limiter.hit_async("k")

    _inside((lambda: asyncio.run(hit())) if of_the_core else lambda: limiter.hit("k"))
    begun.acquire()


def _loop(given: dict[str, Any], how: str, method: str) -> None:
    """An event loop is asked for a future, or told that one is done."""
    begun = threading.Semaphore(0)

    class Loop(asyncio.SelectorEventLoop):
        armed = False

        def arm(self) -> None:
            self.armed = True

        def create_future(self) -> asyncio.Future[Any]:
            if self.armed and method == "create_future":
                _stay(how, begun)
            return super().create_future()

        def call_soon(self, *arguments: Any, **keywords: Any) -> Any:
            if self.armed and method != "create_future":
                _stay(how, begun)
            return super().call_soon(*arguments, **keywords)

    limiter = tidegate.Limiter(LIMIT, storage=given["uri"])
    plan = tidegate.Plan([limiter])

    async def ask(loop: Loop, plans: bool) -> None:
        await limiter.hit_async("k")
        hit = plan.hit_async(["k"]) if plans else limiter.hit_async("k")
        if method == "set_result":
            loop.call_later(0, loop.arm)  # runs before the reply is there
        else:
            loop.arm()
        await hit

    def run(plans: bool) -> None:
        loop = Loop()
        loop.run_until_complete(ask(loop, plans))

    for plans in (False, True):
        threading.Thread(target=run, args=(plans,), daemon=True).start()
        begun.acquire()


# ----------------------------------------------------------------------------- the end


def _begin_loops(calls: Calls, run: Callable[[Any], object]) -> None:
    """Event loops in daemon threads, to which the core delivers."""
    for _ in range(2):
        threading.Thread(target=lambda: run(calls.tasks()), daemon=True).start()
    for _ in range(random.randrange(1, 50)):
        calls.limiter.hit("k")


def _exit(*_: object) -> None:
    sys.exit(3)


def _hold_gil() -> None:
    """Other threads ask for the GIL once before the interpreter has ended, and once after."""
    sys.setswitchinterval(0.1)
    _gil_held_us.value = 150_000
    if sys.platform == "linux":
        _libc.__cxa_atexit(_libc.usleep, ctypes.c_void_p(200_000), None)


def _be_terminated() -> None:
    threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM), daemon=True).start()


def _end(end: str, calls: Calls) -> None:
    if end == "close":
        calls.close()
    elif end == "exit":
        sys.exit(3)
    elif end == "_exit":
        os._exit(3)
    elif end == "terminated":
        _be_terminated()
        while True:
            calls.limiter.hit("k")
    elif end == "sigterm":
        signal.signal(signal.SIGTERM, _exit)
        _be_terminated()
        while True:
            calls.limiter.hit("k")
    elif end == "atexit":
        atexit.register(calls.limiter.hit, "k")
        _last_words.append(lambda: calls.limiter.hit("k"))
        _join(calls)
    elif end == "del":
        LastHit.last = LastHit(lambda: calls.limiter.hit("k"))
    elif end == "gil held":
        _hold_gil()
    elif end == "os.fork":
        # From CPython 3.12 on, of a fork with threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if pid != 0:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        _inside(*calls.chosen)


def main(given: dict[str, Any]) -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    end = given["end"]
    kind, _, how = end.partition("-")
    if kind == "multiprocessing":
        sys.exit(_children(how, given))
    elif kind == "password":
        _password(given, how)
    elif kind == "clock":
        _clock(given, how)
    elif kind in ("create_future", "call_soon", "set_result"):
        _loop(given, how, kind)
    elif kind in ("hook", "corehook"):
        _hook(given, how, kind == "corehook")
    else:
        calls = Calls(given)
        if given["stops"]:
            calls.limiter.ping()
            os.kill(given["stops"], signal.SIGSTOP)
        if kind == "asyncio":
            _begin_loops(calls, asyncio.run)
        elif kind == "uvloop":
            import uvloop

            _begin_loops(calls, uvloop.run)
        else:
            _inside(*calls.chosen, threads=given["threads"])
        # At any instant of a call.
        time.sleep(random.random() / 50)
        _end(end, calls)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
