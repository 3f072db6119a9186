"""The matching service: finds drivers and prices, with a bounded pool and a queue without a bound.

    python matching.py --port 9100 --workers 4 --seconds 0.1

Four workers that take 100 ms for each job finish 40 jobs a second, and never more. Jobs beyond
that wait in the queue, first come, first served, for as long as it takes: the service never says
no, which is why something in front of it must.

It speaks JSON, one object a line. Clients send many requests over one connection, and the replies
come in the order in which the jobs end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import time
from collections import Counter, deque
from typing import Any, Callable

# Requests for these take a worker's time. All others are answered at once.
JOBS = ("ride", "fare")
_MOST_TRIPS = 10_000
# How long a client waits for the service to start, in seconds.
_PATIENCE = 20.0


class Matching:
    """The pool, its queue, and what it knows of drivers and trips.

    A worker begins its next job when it should have ended the last one, so that the capacity is
    `workers` / `seconds` exactly, also where the event loop wakes late.
    """

    def __init__(
        self, workers: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.workers = workers
        self.seconds = seconds
        self.done = 0
        self._queue: asyncio.Queue[tuple[float, dict[str, Any], asyncio.Future[Any]]]
        self._queue = asyncio.Queue()
        self._resumed = asyncio.Event()
        self._drivers: dict[str, tuple[float, float]] = {}
        self._trips: deque[tuple[str, str]] = deque(maxlen=_MOST_TRIPS)
        self._zones: Counter[str] = Counter()
        self._most = workers

    async def run(self) -> None:
        """Works until it is cancelled."""
        await asyncio.gather(*(self._work(number) for number in range(self._most)))

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request; that to a job comes when a worker has done it."""
        what = request["what"]
        if what in JOBS:
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._queue.put_nowait((self._clock(), request, reply))
            return dict(await reply)
        if what == "locate":
            self._drivers[request["driver"]] = (request["lat"], request["lng"])
            return {"drivers": len(self._drivers)}
        if what == "nearby":
            return {"drivers": self._nearest(request["lat"], request["lng"])}
        if what == "history":
            return {"trips": [d for rider, d in self._trips if rider == request["rider"]][-10:]}
        if what == "zones":
            return {"rides": dict(self._zones)}
        if what == "pool":  # an operator takes workers away, or gives them back
            self.workers = max(0, min(int(request["workers"]), self._most))
            self.seconds = float(request.get("seconds", self.seconds))
            self._resumed.set()
        return {"queued": self._queue.qsize(), "done": self.done, "workers": self.workers}

    async def _work(self, number: int) -> None:
        free_at = 0.0
        while True:
            while number >= self.workers:
                self._resumed.clear()
                await self._resumed.wait()
            queued_at, request, reply = await self._queue.get()
            begins_at = max(queued_at, free_at)
            free_at = begins_at + self.seconds
            await asyncio.sleep(free_at - self._clock())
            self.done += 1
            # Nobody tells the service that a rider has given up: it matches them all the same.
            reply.set_result({"waited": begins_at - queued_at, **self._result(request)})

    def _result(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["what"] == "fare":
            return {"fare": 12.5}
        drivers = self._nearest(request["lat"], request["lng"])
        driver = drivers[0] if drivers else f"driver-{self.done}"
        self._trips.append((request["rider"], driver))
        self._zones[f"{request['lat']:.1f},{request['lng']:.1f}"] += 1
        return {"driver": driver}

    def _nearest(self, lat: float, lng: float) -> list[str]:
        def squared(driver: str) -> float:
            at = self._drivers[driver]
            return (at[0] - lat) ** 2 + (at[1] - lng) ** 2

        return sorted(self._drivers, key=squared)[:3]


class MatchingClient:
    """Sends requests to the matching service over one connection, any number at once.

    Belongs to one event loop. A request raises ConnectionError when the connection ends.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reads: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connects, and waits for a service that has just been started."""
        give_up_at = time.monotonic() + _PATIENCE
        while True:
            try:
                reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
                break
            except OSError:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(0.05)
        self._reads = asyncio.create_task(self._read(reader))

    async def close(self) -> None:
        if self._writer is not None and self._reads is not None:
            self._writer.close()
            await self._reads

    async def __call__(self, what: str, **details: Any) -> dict[str, Any]:
        if self._writer is None or self._writer.is_closing():
            raise ConnectionError("the matching service is not connected")
        number = next(self._numbers)
        reply = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        self._writer.write(json.dumps({"id": number, "what": what, **details}).encode() + b"\n")
        try:
            return await reply
        finally:
            self._waiting.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                reply = json.loads(line)
                waiting = self._waiting.get(reply.pop("id"))
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        except OSError:
            pass
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError("the matching service has gone"))
            if self._writer is not None:
                self._writer.close()


async def serve(port: int, workers: int, seconds: float) -> None:
    """Serves until it is cancelled."""
    matching = Matching(workers, seconds)
    answering: set[asyncio.Task[None]] = set()

    async def answer(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        reply = await matching.answer(request)
        if not writer.is_closing():
            writer.write(json.dumps({"id": request["id"], **reply}).encode() + b"\n")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                task = asyncio.create_task(answer(json.loads(line), writer))
                answering.add(task)
                task.add_done_callback(answering.discard)
        except OSError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", port):
        await matching.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.1, help="that a job takes")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options.port, options.workers, options.seconds))


if __name__ == "__main__":
    main()
