"""Sends the arrivals of a surge with Locust, each at its instant, and writes what became of them.

    python drive.py SCHEDULE URL PATIENCE OUT

It prints the instant of time.perf_counter at which the surge begins, which all processes share.
SCHEDULE is a JSON list of [at, path, token]. A line of OUT is a JSON list of the arrival's number,
the seconds at which it was sent and at which it ended, its status (0 for a rider who gave up or
whose connection failed), and the names of the limits that refused it. Its process imports Locust,
which changes the standard library for gevent, so this is a program of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gevent
from locust import FastHttpUser, task
from locust.env import Environment
from summary import violated

_TRIP = json.dumps(
    {"pickup_lat": 40.7505, "pickup_lng": -73.9934, "dropoff_lat": 40.758, "dropoff_lng": -73.9855}
)


def user_class(schedule: list[Any], url: str, patience: float, rows: list[Any]) -> type:
    """A user of Locust that stands for all riders, each arrival in a greenlet of its own."""

    class Riders(FastHttpUser):  # type: ignore[misc]
        host = url
        concurrency = 20_000
        connection_timeout = network_timeout = patience

        @task
        def surge(self) -> None:
            begin = time.perf_counter() + 0.5
            print(begin, flush=True)
            sent = []
            for number, (at, path, token) in enumerate(schedule):
                gevent.sleep(max(0.0, begin + at - time.perf_counter()))
                sent.append(gevent.spawn(self.ask, number, begin, path, token))
            gevent.joinall(sent)
            self.environment.runner.quit()

        def ask(self, number: int, begin: float, path: str, token: str) -> None:
            fields = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            at = time.perf_counter()
            # A refusal is an answer too: Locust counts as failed what is not marked otherwise.
            with self.client.post(path, data=_TRIP, headers=fields, catch_response=True) as answer:
                ended = time.perf_counter()
                limits = violated(answer.text) if answer.status_code == 429 else []
                answer.success()
            rows.append([number, at - begin, ended - begin, answer.status_code, limits])

    return Riders


def main() -> None:
    # Riders have processors of their own: the generator takes what the platform leaves, and never
    # interrupts a process that has just answered it.
    os.nice(5)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    schedule = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    rows: list[Any] = []
    users = user_class(schedule, sys.argv[2], float(sys.argv[3]), rows)
    runner = Environment(user_classes=[users]).create_local_runner()
    runner.start(1, spawn_rate=1)
    runner.greenlet.join()
    with open(sys.argv[4], "w", encoding="utf-8") as out:
        for row in sorted(rows):
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
