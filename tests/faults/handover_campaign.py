"""Replaces a loaded `tidegate serve` by SIGUSR2, again and again: no request may notice.

    python tests/faults/handover_campaign.py --seconds 30 --rate 300

Requests are sent when a plan says so, whether those before have been answered or not: over REST on
kept connections, over REST on a connection each, and over gRPC. Each counts in shared memory and in
the history. Prints how many failed and how long the slowest took from the instant of the plan on.
Exits with status 1 if one failed, or if one of the counts is not the number of requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import check_wire as wire
import grpc.aio
import processes
from polling import eventually, eventually_async

LIMIT = 100_000_000
SETTINGS = """
rules: rules.yaml
checks: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
"""
RULES = f"""
algorithm: fixed-window
rules:
  - {{id: api, by: user, limit: {LIMIT}/365 days}}
"""
PATIENCE = 60.0  # seconds for an answer, far beyond what is normal: a time-out is an error


class Service:
    """A `tidegate serve` that is replaced by further ones."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self._log = directory / "log"
        (directory / "tidegate.yaml").write_text(SETTINGS)
        (directory / "rules.yaml").write_text(RULES)
        with self._log.open("w") as log:
            self.process = processes.start(
                [sys.executable, "-m", "tidegate", "serve"],
                cwd=directory,
                stderr=log,
                env={**os.environ, "TIDEGATE_STORAGE": f"shm://{name}"},
            )
        self.newest = self.process.pid
        self.checks = self._place("checks are answered at")
        self.admin = self._place("the admin API is at")

    def log(self) -> str:
        return self._log.read_text()

    def _place(self, what: str) -> str:
        def find() -> Any:
            assert self.process.poll() is None, self.log()
            return re.search(rf"{what} ([\d.]+:\d+)", self.log())

        place: str = eventually(find, 60)[1]
        return place

    async def replace(self) -> float:
        """Replaces the process, and returns how many seconds it took until the former had ended."""
        begun = time.monotonic()
        before = self.newest
        os.kill(before, signal.SIGUSR2)
        pattern = re.compile(r"the process (\d+) has taken over")
        known = len(pattern.findall(self.log()))
        await eventually_async(lambda: len(pattern.findall(self.log())) > known, 60, interval=0.02)
        self.newest = int(pattern.findall(self.log())[-1])
        await eventually_async(lambda: has_ended(before), 60, interval=0.02)
        return time.monotonic() - begun

    def end(self) -> None:
        os.kill(self.newest, signal.SIGTERM)
        eventually(lambda: has_ended(self.newest), 60)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


class Rest:
    """A client of HTTP/1.1, which makes a connection wherever none is free."""

    def __init__(self, place: str, *, keeps: bool = True) -> None:
        self._host, _, self._port = place.rpartition(":")
        self._keeps = keeps
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, path: str, body: object = None) -> bytes:
        """Returns the body of an answer with status 200. Raises an exception for any other end."""
        return await asyncio.wait_for(self._ask(path, body), PATIENCE)

    async def _ask(self, path: str, body: object) -> bytes:
        reader, writer = await self._connection()
        try:
            sent = b"" if body is None else json.dumps(body).encode()
            writer.write(
                f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {self._host}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n".encode()
                + sent
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"\r\ncontent-length: (\d+)", head)
            assert length, head
            answer = await reader.readexactly(int(length[1]))
            assert head.split()[1] == "200", (head, answer)
        except BaseException:
            writer.close()
            raise
        if self._keeps and "\r\nconnection: close" not in head:
            self._free.append((reader, writer))
        else:
            writer.close()
        return answer

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, int(self._port))

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


class Load:
    """Requests by a plan, and what came of them."""

    def __init__(self, service: Service) -> None:
        self.sent: Counter[str] = Counter()
        self.errors: list[str] = []
        self.delays: list[float] = []
        self._kept = Rest(service.checks)
        self._fresh = Rest(service.checks, keeps=False)
        self._channel = grpc.aio.insecure_channel(service.checks)
        self._call = self._channel.unary_unary("/tidegate.v1.RateLimiter/Check")
        self._admin = Rest(service.admin)
        self.kinds: dict[str, Callable[[], Any]] = {
            "kept": lambda: self._rest(self._kept, "kept"),
            "fresh": lambda: self._rest(self._fresh, "fresh"),
            "grpc": self._grpc,
        }

    async def _rest(self, client: Rest, user: str) -> None:
        asked = {"userId": user, "endpoint": "/api/posts"}
        found = json.loads(await client.ask("/v1/ratelimit/check", asked))
        assert (found["allowed"], found["limit"], found["degraded"]) == (True, LIMIT, False), found

    async def _grpc(self) -> None:
        asked = wire.request({"user": "grpc", "endpoint": "/api/posts"})
        answer = wire.CheckResponse(await self._call(asked, timeout=PATIENCE))
        assert (answer.allowed, answer.limit) == (True, LIMIT), answer

    async def _one(self, kind: str, planned: float) -> None:
        self.sent[kind] += 1
        try:
            await self.kinds[kind]()
        except Exception as error:
            self.errors.append(f"{kind}: {error!r:.300}")
        self.delays.append(time.monotonic() - planned)

    async def run(self, rate: float, over: asyncio.Event) -> None:
        """Sends requests at random instants, as independent clients do, until it is over."""
        chance = random.Random(1)
        planned = time.monotonic()
        tasks = []
        while not over.is_set():
            planned += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, planned - time.monotonic()))
            kind = chance.choice(list(self.kinds))
            tasks.append(asyncio.create_task(self._one(kind, planned)))
        await asyncio.gather(*tasks)

    async def watch_admin(self, over: asyncio.Event) -> None:
        """Asks the admin port for metrics, as Prometheus does but more often."""
        while not over.is_set():
            try:
                await self._admin.ask("/metrics")
            except Exception as error:
                self.errors.append(f"metrics: {error!r:.300}")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), 0.1)

    async def used(self, user: str) -> int:
        """How many requests of a user count."""
        found = json.loads(await self._kept.ask(f"/v1/ratelimit/status/{user}"))
        (rule,) = found["rules"]
        return LIMIT - int(rule["remaining"])

    async def close(self) -> None:
        for client in (self._kept, self._fresh, self._admin):
            client.close()
        await self._channel.close()


async def campaign(service: Service, rate: float, seconds: float) -> tuple[Load, list[float]]:
    load = Load(service)
    over = asyncio.Event()
    times: list[float] = []
    end = time.monotonic() + seconds

    async def replace() -> None:
        await asyncio.sleep(1)
        while time.monotonic() < end:
            times.append(await service.replace())
            await asyncio.sleep(1)
        over.set()

    await asyncio.gather(load.run(rate, over), load.watch_admin(over), replace())
    for kind, sent in load.sent.items():
        used = await load.used(kind)
        if used != sent:
            load.errors.append(f"{kind}: {used} requests count; expected {sent}")
    await load.close()
    return load, times


def in_history(service: Service) -> dict[str, int]:
    """The requests of each user in the history."""
    with sqlite3.connect(service.directory / "tidegate.db") as database:
        rows = database.execute("SELECT user_id, sum(allowed) FROM usage_hours GROUP BY user_id")
        return dict(rows.fetchall())


def report(load: Load, times: list[float]) -> None:
    delays = sorted(1e3 * each for each in load.delays)
    print(
        f"{len(delays)} requests, {len(load.errors)} errors, {len(times)} hand-overs of "
        f"{min(times):.1f} to {max(times):.1f} s; answered within {delays[len(delays) // 2]:.1f} "
        f"ms (median), {delays[len(delays) * 99 // 100]:.1f} ms (p99), {delays[-1]:.0f} ms (the "
        f"latest); load {os.getloadavg()[0]:.1f}"
    )
    for error, count in Counter(load.errors).most_common(20):
        print(f"{count} times {error}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second")
    given = parser.parse_args()
    name = f"handover-{os.getpid()}"
    with processes.guarded(), tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), name)
        try:
            load, times = asyncio.run(campaign(service, given.rate, given.seconds))
            service.end()
            kept = in_history(service)
            for kind, sent in load.sent.items():
                if kept.get(kind) != sent:
                    load.errors.append(f"{kind}: the history has {kept.get(kind)} of {sent}")
        finally:
            processes.stop(service.process)
            for file in Path("/dev/shm").glob(f"*-{name}"):
                file.unlink()
    report(load, times)
    sys.exit(len(load.errors) > 0)


if __name__ == "__main__":
    main()
