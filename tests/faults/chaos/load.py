"""The common load: a process whose threads and event loops call a limiter until told to end.

It is started by stage.py with one JSON object of settings as its argument, reads one JSON object a
line from standard input, and answers each with one. It knows nothing of faults, except of those
that the process does to itself (actions.py).
"""

from __future__ import annotations

import array
import asyncio
import concurrent.futures
import contextlib
import faulthandler
import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import tidegate
import uvloop

# A limit that does not refill during a run: one unit comes back in 18 hours.
SHARED_COUNT = 40
# All threads and tasks of all processes share a key for so long, then they take the next.
SHARED_SECONDS = 0.25
SHARED_ALGORITHMS = ("token-bucket", "fixed-window", "sliding-window", "sliding-log")
# Far more than one thread or task asks for, so that each of these calls reaches the server.
OWN_COUNT = 20_000
PERIOD_DAYS = 30
TICK = 0.001
OPERATIONS = (
    "own",
    "shared",
    "peek",
    "plan",
    "allow",
    "slot",
    "acquire",
    "refund",
    "many",
    "reset",
)


class Settings:
    def __init__(self, given: dict[str, Any]) -> None:
        self.run: str = given["run"]
        self.name: str = given["name"]
        self.uri: str = given["uri"]
        self.options: dict[str, Any] = given["options"]
        self.password_file: str | None = given["password_file"]
        self.report: str = given["report"]
        self.threads: int = given["threads"]
        self.tasks: int = given["tasks"]  # of each loop
        self.loops: list[str] = given["loops"]
        self.pause: float = given["pause"]


class Caller:
    """The calls of one thread or task, and their results."""

    def __init__(self, worker: Worker, name: str, kind: str) -> None:
        self.worker = worker
        self.kind = kind  # sync or async
        self.own = f"{worker.settings.run}-{worker.settings.name}-{name}"
        self.seconds = array.array("d")
        self.ended = array.array("d")
        self.operations = array.array("b")
        self.degraded_at = array.array("d")
        # The units that the server must have charged to this caller's own key.
        self.charged = self.unknown = self.refunds = 0
        # Of keys that all share: admitted by the server, admitted without it, calls.
        self.shared: dict[str, list[int]] = {}
        self._count = 0

    def steps(self) -> Iterator[tuple[str, Any]]:
        """The calls of one round: (operation, key)."""
        n = self._count = self._count + 1
        yield "own", self.own
        epoch = int(time.monotonic() / SHARED_SECONDS)
        yield "shared", (epoch % len(SHARED_ALGORITHMS), f"{self.worker.settings.run}-{epoch}")
        if n % 8 == 1:
            yield "peek", self.own
            yield "plan", self.own
        if n % 8 == 3:
            yield "allow", f"{self.own}-allow"
            yield "slot", f"{self.own}-slot"
        if n % 8 == 5:
            yield "acquire", f"{self.own}-acquire"
            yield "refund", self.own
        if n % 8 == 7:
            yield "many", [f"{self.own}-many-{i}" for i in range(5)]
            yield "reset", f"{self.own}-reset"

    def note(self, op: str, key: Any, began: float, decision: Any) -> None:
        now = time.monotonic()
        # Those that are made of several calls have the deadline of each.
        calls = {"acquire": 4, "slot": 5}.get(op, 1)
        self.seconds.append(max(0.0, now - began - (calls - 1) * self.worker.timeout))
        self.ended.append(now)
        self.operations.append(OPERATIONS.index(op))
        degraded = isinstance(decision, tidegate.Decision) and decision.degraded
        if degraded:
            self.degraded_at.append(now)
        if op in ("own", "plan"):
            if degraded:
                self.unknown += 1
            elif decision.allowed:
                self.charged += 1
        elif op == "refund":
            self.refunds += 1
        elif op == "shared":
            counts = self.shared.setdefault(key[1], [0, 0, 0])
            counts[2] += 1
            if decision.allowed:
                counts[1 if degraded else 0] += 1

    def failed(self, op: str, error: BaseException) -> None:
        self.worker.failed(f"{self.kind} {op}", error)

    def call(self, op: str, key: Any) -> Any:
        w = self.worker
        if op == "own":
            return w.own.hit(key)
        if op == "shared":
            return w.shared[key[0]].hit(key[1])
        if op == "plan":
            return w.plan.hit([key, f"{key}-plan"])
        if op == "slot":
            with w.slots.slot(key):
                return None
        if op == "acquire":
            return w.own.acquire(key, timeout=1.0)
        if op == "many":
            return w.own.hit_many(key)
        return getattr(w.own, op)(key)

    async def call_async(self, op: str, key: Any) -> Any:
        w = self.worker
        if op == "own":
            return await w.own.hit_async(key)
        if op == "shared":
            return await w.shared[key[0]].hit_async(key[1])
        if op == "plan":
            return await w.plan.hit_async([key, f"{key}-plan"])
        if op == "slot":
            async with w.slots.slot(key):
                return None
        if op == "acquire":
            return await w.own.acquire_async(key, timeout=1.0)
        if op == "many":
            return await w.own.hit_many_async(key)
        return await getattr(w.own, f"{op}_async")(key)

    def run(self) -> None:
        while not self.worker.stopping:
            for op, key in self.steps():
                self.worker.gate.wait()
                began = time.monotonic()
                try:
                    decision = self.call(op, key)
                except BaseException as error:
                    self.failed(op, error)
                else:
                    self.note(op, key, began, decision)
                time.sleep(self.worker.settings.pause)

    async def run_async(self) -> None:
        while not self.worker.stopping:
            for op, key in self.steps():
                deadline = time.monotonic() + 60
                while not self.worker.gate.is_set() and time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                began = time.monotonic()
                try:
                    decision = await self.call_async(op, key)
                except asyncio.CancelledError:
                    raise
                except BaseException as error:
                    self.failed(op, error)
                else:
                    self.note(op, key, began, decision)
                await asyncio.sleep(self.worker.settings.pause)


class Waits:
    """How long the threads of Python in this process have waited for a processor.

    A loop waits too for a thread that lost its processor while it held the GIL.
    """

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._waited: dict[int, int] = {}

    def grown(self) -> float:
        """The seconds since the last call, of the thread that has waited longest since."""
        most = 0
        numbers = {thread.native_id for thread in threading.enumerate() if thread.native_id}
        for ended in self._files.keys() - numbers:
            os.close(self._files.pop(ended))
            self._waited.pop(ended, None)
        for number in numbers:
            try:
                if number not in self._files:
                    path = f"/proc/self/task/{number}/schedstat"
                    self._files[number] = os.open(path, os.O_RDONLY)
                waited = int(os.pread(self._files[number], 100, 0).split()[1])
            except OSError:  # it has just ended
                continue
            most = max(most, waited - self._waited.get(number, waited))
            self._waited[number] = waited
        return most / 1e9

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])


class Ticker:
    """How late a loop wakes a task that sleeps for a millisecond."""

    def __init__(self) -> None:
        self.at = array.array("d")
        self.late = array.array("d")

    async def run(self, worker: Worker) -> None:
        # A wait for a processor is not the loop's fault.
        with contextlib.closing(Waits()) as waits:
            waits.grown()
            before = time.monotonic()
            while not worker.stopping:
                await asyncio.sleep(TICK)
                now = time.monotonic()
                late = now - before - TICK - waits.grown()
                self.at.append(now)
                self.late.append(max(0.0, late))
                before = now


class Worker:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stopping = False
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.errors: dict[str, int] = {}
        self.traceback = ""
        self.timeout = float(settings.options["timeout"])
        options = dict(settings.options)
        if settings.password_file is not None:
            options["password"] = self._password
        made = tidegate.Limiter(
            f"{OWN_COUNT}/{PERIOD_DAYS} days", storage=settings.uri, prefix="own", **options
        )
        self.own, self.store = made, made.storage
        self.shared = [
            tidegate.Limiter(
                f"{SHARED_COUNT}/{PERIOD_DAYS} days",
                storage=self.store,
                prefix="shared",
                algorithm=algorithm,
            )
            for algorithm in SHARED_ALGORITHMS
        ]
        beside = tidegate.Limiter(
            [f"{OWN_COUNT}/{PERIOD_DAYS} days", f"{9 * OWN_COUNT}/{9 * PERIOD_DAYS} days"],
            storage=self.store,
            prefix="beside",
        )
        self.plan = tidegate.Plan([self.own, beside])
        self.slots = tidegate.Limiter(
            "100/minute", storage=self.store, algorithm="concurrency", prefix="slots"
        )
        self.limiters = [self.own, *self.shared, beside, self.slots]
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.tickers = [Ticker() for _ in settings.loops]
        tasks = len(settings.loops) * settings.tasks
        self.callers = [
            *(Caller(self, f"thread{i}", "sync") for i in range(settings.threads)),
            *(Caller(self, f"task{i}", "async") for i in range(tasks)),
        ]
        self._threads: list[threading.Thread] = []

    def _password(self) -> str:
        assert self.settings.password_file is not None
        with open(self.settings.password_file, encoding="utf-8") as file:
            return file.read()

    def failed(self, where: str, error: BaseException) -> None:
        # The owner closes the limiter while it is in use: that is said so.
        if self.closed and isinstance(error, tidegate.TidegateError):
            return
        text = f"{where}: {type(error).__name__}: {error}"
        self.errors[text] = self.errors.get(text, 0) + 1
        self.traceback = self.traceback or "".join(traceback.format_exception(error))

    def start(self) -> None:
        tasks = self.settings.tasks
        sync = [caller for caller in self.callers if caller.kind == "sync"]
        others = [caller for caller in self.callers if caller.kind == "async"]
        self._threads = [threading.Thread(target=caller.run) for caller in sync]
        makers = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
        for number, name in enumerate(self.settings.loops):
            loop = makers[name]()
            # One thread, made now: those that come later would be taken for a leak.
            executor = concurrent.futures.ThreadPoolExecutor(1)
            executor.submit(int).result()
            loop.set_default_executor(executor)
            self.loops.append(loop)
            mine = others[number * tasks : (number + 1) * tasks]
            self._threads.append(
                threading.Thread(target=self._run_loop, args=(loop, mine, self.tickers[number]))
            )
        for thread in self._threads:
            thread.start()

    def _run_loop(
        self, loop: asyncio.AbstractEventLoop, callers: list[Caller], ticker: Ticker
    ) -> None:
        async def run() -> None:
            await asyncio.gather(ticker.run(self), *(caller.run_async() for caller in callers))
            # hit_many_async() runs in threads of the loop's.
            await loop.shutdown_default_executor()

        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(run())
        except BaseException as error:
            self.failed("loop", error)

    def stop(self) -> None:
        self.stopping = True
        self.gate.set()
        for thread in self._threads:
            thread.join()
        for loop in self.loops:
            loop.close()

    def status(self) -> dict[str, Any]:
        last = [caller.degraded_at[-1] for caller in self.callers if caller.degraded_at]
        return {
            "calls": sum(len(caller.seconds) for caller in self.callers),
            "least": min((len(caller.seconds) for caller in self.callers), default=1),
            "degraded": sum(len(caller.degraded_at) for caller in self.callers),
            "last_degraded": max(last, default=0.0),
            "errors": self.errors,
        }

    def charged(self) -> list[dict[str, Any]]:
        """For each caller's own key the units charged by the server, beside the expected units."""
        found = []
        for caller in self.callers:
            if self.closed:
                break
            decision = None
            for _ in range(40):
                with contextlib.suppress(tidegate.TidegateError):
                    decision = self.own.peek(caller.own)
                if decision is not None and not decision.degraded:
                    break
                time.sleep(0.05)
            if decision is not None and decision.degraded:
                decision = None
            found.append(
                {
                    "admitted": caller.charged,
                    "unknown": caller.unknown,
                    "refunds": caller.refunds,
                    "charged": None if decision is None else OWN_COUNT - decision.remaining,
                }
            )
        return found

    def report(self) -> dict[str, Any]:
        shared: dict[str, list[int]] = {}
        for caller in self.callers:
            for key, counts in caller.shared.items():
                total = shared.setdefault(key, [0, 0, 0])
                for i, count in enumerate(counts):
                    total[i] += count
        calls = {
            kind: {
                "seconds": list(itertools.chain(*(c.seconds for c in of_kind))),
                "ended": list(itertools.chain(*(c.ended for c in of_kind))),
                "operations": list(itertools.chain(*(c.operations for c in of_kind))),
            }
            for kind in ("sync", "async")
            if (of_kind := [c for c in self.callers if c.kind == kind])
        }
        return {
            "calls": calls,
            "degraded_at": sorted(itertools.chain(*(c.degraded_at for c in self.callers))),
            "shared": shared,
            "own": self.charged(),
            "errors": self.errors,
            "traceback": self.traceback,
            "ticks": [
                {"at": list(ticker.at), "late": list(ticker.late)} for ticker in self.tickers
            ],
            "stats": {} if self.closed else self.own.stats()._asdict(),
        }

    def close(self) -> None:
        for limiter in self.limiters:
            limiter.close()


def usage() -> dict[str, int]:
    """Descriptors and threads of this process, and its memory in bytes."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "fds": len(os.listdir("/proc/self/fd")) - 1,
        "threads": len(os.listdir("/proc/self/task")),
        "resident": resident,
    }


def settled(least: dict[str, int], seconds: float) -> dict[str, int]:
    """The number in use, once it is no more than `least` or when the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        gc.collect()
        now = usage()
        if now["fds"] <= least["fds"] and now["threads"] <= least["threads"]:
            return now
        if time.monotonic() > deadline:
            return now
        time.sleep(0.02)


def warm_interpreter() -> None:
    """Opens and starts what a process has once, so that it is not taken for a leak: descriptors of
    Python, and the thread that extends the leases of slots."""
    for make in (asyncio.new_event_loop, uvloop.new_event_loop):
        loop = make()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    with tidegate.Limiter(tidegate.Limit("1/hour", algorithm="concurrency")).slot("k"):
        pass


def main() -> None:
    import actions

    settings = Settings(json.loads(sys.argv[1]))
    signal.signal(signal.SIGUSR2, lambda *_: None)  # see actions.signals()
    faulthandler.register(signal.SIGUSR1)  # a hang is reported with its stacks
    warm_interpreter()
    before = usage()
    worker = Worker(settings)
    worker.start()
    for line in sys.stdin:
        asked = json.loads(line)
        word = asked.pop("do")
        try:
            if word == "status":
                answer: dict[str, Any] = worker.status()
            elif word == "usage":
                answer = usage()
            elif word == "stop":
                worker.stop()
                # Too much for a pipe: with uvloop about, standard output loses what does not fit.
                with open(settings.report, "w", encoding="utf-8") as file:
                    json.dump(worker.report(), file)
                answer = {"report": settings.report}
                worker.close()
                worker.__dict__.clear()
                answer["usage"] = {"before": before, "after": settled(before, 8.0)}
            else:
                answer = getattr(actions, word)(worker, **asked)
        except BaseException as error:
            answer = {"failed": "".join(traceback.format_exception(error))}
        print(json.dumps(answer), flush=True)
        if word == "stop":
            return


if __name__ == "__main__":
    main()
