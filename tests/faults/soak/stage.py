"""Runs a fault against the service, and checks its effect on the clients and the process."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import processes
from fault_verdict import FaultVerdict
from polling import eventually
from postgres_server import PostgresServer
from redis_server import RedisServer

from soak.service import Service, Usage

# How many decisions may have been made without the store.
NONE, SOME, ANY = "none", "some", "any"

# The most seconds from the end of a fault until the store decides again and nothing of the fault is
# left: the pause between two attempts to connect grows to 5 s.
RECOVERY = 15.0
# Connections to the database, and threads of the admin API, come and go by themselves.
SPARE_DESCRIPTORS = 8
SPARE_THREADS = 4
# The memory that the allocator may keep after a burst.
SPARE_MEMORY = 32 << 20


@dataclass(frozen=True)
class Pace:
    """How long and how large each fault is."""

    hold: float
    """How many seconds a fault lasts, if it has no end of its own."""
    calm: float
    """The seconds of rest after each recovery."""
    connections: int
    """How many connections are idle."""
    patience: float
    """How many seconds slow clients stay."""


@dataclass(frozen=True)
class Fault:
    name: str
    says: str
    act: Callable[[Stage], None]
    degraded: str = NONE


@dataclass
class Verdict(FaultVerdict):
    failed: int = 0
    wrong: int = 0
    slowest_ms: float = 0.0
    resident: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)


class Load(processes.Answering):
    """The process that runs the ordinary clients."""

    def __init__(self, address: tuple[str, int]) -> None:
        program = str(Path(__file__).with_name("load.py"))
        super().__init__([sys.executable, program, address[0], str(address[1])])
        self._lock = threading.Lock()

    def command(self, words: str) -> dict[str, Any]:
        """Sends a command to the clients and returns their answer, from any thread."""
        with self._lock:
            found: dict[str, Any] = self.answer_to(words)
        return found


class Stage:
    """The service with its servers and clients."""

    def __init__(self, directory: Path, pace: Pace) -> None:
        self.pace = pace
        self.broken: list[str] = []
        self.directory = directory
        with contextlib.ExitStack() as closing:
            self.redis = RedisServer(directory, "--appendonly", "yes", "--appendfsync", "always")
            self.redis.start()
            closing.callback(self.redis.kill)
            self.postgres = PostgresServer(directory)
            self.postgres.start()
            closing.callback(self.postgres.kill)
            home = directory / "service"
            home.mkdir()
            self.service = Service(home, self.redis.port, self.postgres.url("postgres"))
            closing.callback(self.service.kill)
            self.load = Load(self.service.checks)
            closing.callback(self.load.close)
            self._closing = closing.pop_all()

    def close(self) -> None:
        self._closing.close()

    def expect(self, holds: object, otherwise: str) -> None:
        """Records `otherwise` as a broken law, unless `holds` is true."""
        if not holds:
            self.broken.append(otherwise)

    def eventually(
        self, condition: Callable[[], object], otherwise: str, seconds: float = RECOVERY
    ) -> None:
        """Records a broken law if the condition does not become true."""
        try:
            eventually(condition, seconds, interval=0.05, despite=OSError)
        except AssertionError:
            self.broken.append(f"{otherwise} within {seconds:g} s")

    def run(self, fault: Fault) -> Verdict:
        """Runs a fault and judges it."""
        self.broken = []
        verdict = Verdict(fault.name, fault.says, broken=self.broken)
        self.load.command("report")
        before = self.service.usage()
        begun = time.monotonic()
        try:
            fault.act(self)
        except Exception as error:
            self.broken.append(f"the fault failed: {type(error).__name__}: {error!s:.300}")
        ended = time.monotonic()
        after, recovered = self._recover(before)
        time.sleep(self.pace.calm)
        verdict.seconds = time.monotonic() - begun
        self._judge_calls(verdict, fault, ended, recovered)
        self._judge_usage(verdict, before, after)
        if self.service.process.poll() is not None:
            self.broken.append(f"the service ended with {self.service.process.returncode}")
        return verdict

    def _recover(self, before: Usage) -> tuple[Usage, float | None]:
        """Waits until the service is as before. Returns its usage then, and the instant."""
        deadline = time.monotonic() + RECOVERY
        while True:
            if self.service.process.poll() is not None:
                return before, None
            usage = self.service.usage()
            is_as_before = (
                usage.descriptors <= before.descriptors + SPARE_DESCRIPTORS
                and usage.threads <= before.threads + SPARE_THREADS
                and usage.resident <= before.resident + SPARE_MEMORY
            )
            with contextlib.suppress(OSError, AssertionError):
                if is_as_before and not self.service.probe()["degraded"]:
                    return self.service.usage(), time.monotonic()
            if time.monotonic() > deadline:
                return usage, None
            time.sleep(0.05)

    def _judge_calls(
        self, verdict: Verdict, fault: Fault, ended: float, recovered: float | None
    ) -> None:
        report = self.load.command("report")
        verdict.calls, verdict.degraded = report["calls"], report["degraded"]
        verdict.failed = sum(report["errors"].values())
        verdict.wrong = len(report["wrong"])
        verdict.slowest_ms = report["slowest"] * 1e3
        self.broken += [f"a wrong answer: {text}" for text in report["wrong"][:3]]
        self.broken += [f"{n} calls failed: {text}" for text, n in report["errors"].items()]
        self.expect(verdict.calls, "no call was answered")
        if fault.degraded == NONE:
            self.expect(
                not verdict.degraded, f"{verdict.degraded} calls were decided without the store"
            )
        elif fault.degraded == SOME:
            self.expect(verdict.degraded, "no call was degraded: the fault had no effect")
        last = report["last_degraded"] or 0.0
        if recovered is None:
            self.broken.append(f"the service was not as before within {RECOVERY:g} s")
            return
        verdict.recovery_s = max(recovered, last) - ended
        self.expect(verdict.recovery_s <= RECOVERY, f"recovered after {verdict.recovery_s:.1f} s")

    def _judge_usage(self, verdict: Verdict, before: Usage, after: Usage) -> None:
        verdict.resident = [before.resident, after.resident]
        verdict.descriptors = [before.descriptors, after.descriptors]
        verdict.threads = [before.threads, after.threads]
        grown = after.resident - before.resident
        self.expect(grown <= SPARE_MEMORY, f"{grown >> 20} MB of memory were not given back")


@contextlib.contextmanager
def make_stage(pace: Pace) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="tg-soak") as directory:
        # PostgreSQL runs as another user, who must have access to the directory.
        Path(directory).chmod(0o711)
        made = Stage(Path(directory), pace)
        try:
            yield made
        finally:
            made.close()
