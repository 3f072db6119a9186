"""Brings a fault, the servers it is done to and the load together."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from chaos.fault import Fault
from chaos.judge import Times, Verdict, judge, recovery_bound
from chaos.network import FaultProxy
from chaos.processes import Control, Hung, LoadProcess
from chaos.servers import Server, Standalone, Tls
from chaos.shim import Shim
from chaos.topologies import Cluster, Watched

# Small, so that recoveries take a second and not a minute; the deadline is the default.
OPTIONS = {"timeout": 0.05, "connect_timeout": 0.3, "breaker_open": 0.5}
LOAD = {"threads": 2, "tasks": 3, "loops": ["asyncio", "uvloop"], "pause": 0.004}

_numbers = itertools.count()


@dataclass(frozen=True)
class Pace:
    """How long things take: all of it for the campaign, less for `make test`."""

    warm: float = 0.3
    hold: float = 1.0  # times what the fault says
    calm: float = 0.8
    options: dict[str, Any] = field(default_factory=lambda: dict(OPTIONS))


class Pool:
    """Keeps the servers of one topology at a time, and starts others where a fault broke them."""

    _makers: ClassVar[dict[str, Callable[[Path], Any]]] = {
        "standalone": Standalone,
        "sentinel": Watched,
        "cluster": Cluster,
        "tls": Tls,
    }

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._kind = ""
        self._servers: Any = None

    def get(self, kind: str) -> Any:
        if self._kind != kind:
            self.discard()
        if self._servers is None:
            self._servers = self._makers[kind](self.directory)
            self._kind = kind
        return self._servers

    def discard(self) -> None:
        if self._servers is not None:
            self._servers.close()
            self._servers = None
        self._kind = ""


class Stage:
    """What a fault has at hand. `stack` closes what a fault opens for itself."""

    def __init__(self, fault: Fault, pool: Pool, pace: Pace, control: Control) -> None:
        self.fault = fault
        self.pace = pace
        self.control = control
        self.directory = pool.directory
        self.run = f"r{os.getpid()}x{next(_numbers)}"
        self.options = {**pace.options, **fault.options}
        self.stack = contextlib.ExitStack()
        self.workers: list[LoadProcess] = []
        self.started = 0
        self.notes: dict[str, Any] = {}
        self.broken: list[str] = []
        self.proxy: FaultProxy | None = None
        self.clock: Shim | None = None  # of the processes of the load
        self.server_clock: Shim | None = None
        self.password_file = self.directory / f"password-{self.run}"
        self._pool = pool
        self._open(fault.topology)

    # ------------------------------------------------------------ what is used

    def _open(self, topology: str) -> None:
        """A topology is a kind of servers and what stands before them: "proxy", "shim", ..."""
        kind, *extras = topology.split("+")
        self.servers: Any = None
        if kind == "host":
            return
        if "server-clock" in extras:
            self.server_clock = Shim(self.directory, f"server-{self.run}")
            self.servers = Standalone(self.directory, environment=self.server_clock.environment())
            self.stack.callback(self.servers.close)
        elif "own" in extras:
            self.servers = Pool._makers[kind](self.directory)
            self.stack.callback(self.servers.close)
        elif "disk" in extras:
            home = self.directory / f"disk-{self.run}"
            home.mkdir()
            self.servers = Standalone(home, "--appendonly", "yes", "--appendfsync", "always")
            self.stack.callback(self.servers.close)
        else:
            self.servers = self._pool.get(kind)
        if "clock" in extras or "names" in extras:
            self.clock = Shim(self.directory, self.run)
            self.stack.callback(self.clock.close)
        uri = self.servers.uri()
        if "proxy" in extras:
            port = self.servers.port if kind == "tls" else self.server.port
            self.proxy = FaultProxy(port)
            self.stack.callback(self.proxy.close)
            uri = uri.replace(f":{port}", f":{self.proxy.port}")
        if "names" in extras:
            uri = uri.replace("127.0.0.1", "redis.chaos")
        if "login" in extras:
            uri = uri.replace("://", "://limits:secret@")
            self.allow_login()
        self.uri = uri
        if "password" in extras:
            self.password_file.write_text("first")
            self.server.set(requirepass="first")
            self.stack.callback(lambda: self.server.set(requirepass=""))
        self._extras = extras

    @property
    def server(self) -> Server:
        """The one server, of a topology that has one."""
        server: Server = self.servers.server
        return server

    @property
    def worker(self) -> LoadProcess:
        return self.workers[0]

    def allow_login(self, *changes: str) -> None:
        """The user of the load may do what the documentation says it needs."""
        commands = (
            "ping time eval evalsha set get append getrange setrange strlen hset pexpire pttl hget "
            "hgetall hdel del"
        )
        self.server.do(
            *("ACL", "SETUSER", "limits", "reset", "on", ">secret", "~*"),
            *(f"+{command}" for command in commands.split()),
            *changes,
        )

    def check(self, holds: object, text: str) -> None:
        """A law of this fault's own."""
        if not holds:
            self.broken.append(text)

    def check_counts(self, counts: dict[str, Any], *, degraded: int | None = 0) -> None:
        """No call of an action raised, and as many were degraded as may be."""
        for text in counts["errors"][:1]:
            self.broken.append(f"a call raised: {text}")
        if degraded is not None and counts["degraded"] > degraded:
            machine = self.control.window(time.monotonic() - 10, time.monotonic())
            text = f"{counts['degraded']} of {counts['calls']} calls beside the load were degraded"
            if machine.worst > 0.3 * self.options["timeout"]:
                text += f" (the machine itself was late by {machine.worst * 1e3:.0f} ms)"
            self.broken.append(text)

    def start(self, name: str | None = None, **changes: Any) -> LoadProcess:
        """One more process of the load."""
        environment = dict(os.environ)
        if self.clock is not None:
            environment.update(self.clock.environment())
        environment.update(changes.pop("environment", {}))
        options = {**self.options, **changes.pop("options", {})}
        if self.fault.shared_fallback:
            options.setdefault(
                "fallback", f"shm://{self.directory}/fallback-{self.run}?capacity=10000"
            )
        name = name or f"w{len(self.workers)}"
        settings = {
            "run": self.run,
            "name": name,
            "report": str(self.directory / f"report-{self.run}-{name}"),
            "uri": self.uri,
            "options": options,
            "password_file": str(self.password_file) if "password" in self._extras else None,
            **LOAD,
            **self.fault.load,
            **changes,
        }
        worker = LoadProcess(self.directory, settings, environment)
        self.workers.append(worker)
        self.started += 1
        self.stack.callback(worker.kill)
        return worker

    # ------------------------------------------------------------- one run of it

    def await_calm(self, seconds: float, calm: float) -> float | None:
        """Until no call was degraded for `calm` seconds in any process. When the last one was,
        or None if the time is up first."""
        deadline = time.monotonic() + seconds + calm
        floor = time.monotonic()
        while True:
            states = [worker.do("status") for worker in self.workers]
            now = time.monotonic()
            last = max((state["last_degraded"] for state in states), default=0.0)
            if now - max(last, floor) >= calm and all(state["least"] >= 1 for state in states):
                return last
            if now > deadline:
                return None
            time.sleep(0.02)

    def perform(self) -> Verdict:
        fault = self.fault
        begun = ended = time.monotonic()
        recovered: float | None = None
        reports: list[dict[str, Any]] = []
        residents: dict[LoadProcess, int] = {}
        try:
            if fault.processes:
                for _ in range(fault.processes):
                    self.start()
                warm = self.await_calm(20.0, self.pace.warm) if fault.recovers else 0.0
                if warm is None:
                    raise Hung("the load never ran without degraded calls before the fault")
                residents = {worker: worker.do("usage")["resident"] for worker in self.workers}
            begun = time.monotonic()
            for hold in fault.act(self):
                time.sleep(hold * self.pace.hold)
            ended = time.monotonic()
            if fault.recovers and self.workers:
                bound = recovery_bound(fault, ended - begun, self.options)
                recovered = self.await_calm(bound, self.pace.calm)
            for worker in self.workers:
                resident = worker.do("usage")["resident"]
                report = worker.do("stop", 90.0)
                report["resident"] = {"before": residents.get(worker, resident), "after": resident}
                reports.append(report)
                self.check(
                    worker.process.wait(20) == 0,
                    f"the process ended with status {worker.process.returncode}: {worker.errors()}",
                )
        except Hung as error:
            self.broken.append(str(error))
        stopped = time.monotonic()
        times = Times(begun, ended, recovered, stopped)
        machine = self.control.window(begun, stopped)
        fallbacks = fault.shared_fallback or self.started
        return judge(
            fault, reports, times, machine, self.options, fallbacks, self.notes, self.broken
        )


def run_fault(fault: Fault, pool: Pool, pace: Pace, control: Control) -> Verdict:
    stage: Stage | None = None
    try:
        stage = Stage(fault, pool, pace, control)
        with stage.stack:
            verdict = stage.perform()
    except Exception as error:
        pool.discard()
        verdict = Verdict.of(fault)
        verdict.broken.append(f"the campaign itself failed: {type(error).__name__}: {error}")
    return verdict
