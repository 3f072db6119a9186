"""One limit for many processes of many threads: what they admit together is exact."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import processes
import pytest
import tidegate
from redis_server import PATIENT, RedisServer

PROCESSES = 4
THREADS = 16
CALLS = 20  # of each thread

# Tells when it is connected, waits for the word, and tells what its threads were admitted.
WORKER = """
import sys, threading, tidegate
uri, limit, algorithm, threads, calls = sys.argv[1:]
limiter = tidegate.Limiter(limit, algorithm=algorithm, storage=uri)
limiter.ping()
print("ready", flush=True)
sys.stdin.readline()
admitted, barrier = [], threading.Barrier(int(threads))
def work():
    barrier.wait()
    admitted.append(sum(limiter.allow("k") for _ in range(int(calls))))
team = [threading.Thread(target=work) for _ in range(int(threads))]
for thread in team: thread.start()
for thread in team: thread.join()
stats = limiter.stats()
limiter.close()
print(sum(admitted), stats.degraded, stats.errors, stats.script_errors, flush=True)
"""


@pytest.mark.parametrize(
    ("limit", "algorithm"),
    [
        ("777/30 days", "token-bucket"),  # the short script, many hits a command
        ("777/7 days burst 777", "leaky-bucket"),
        ("777/3 years", "fixed-window"),
        ("777/30 days", "sliding-window"),
        ("777/30 days", "sliding-log"),
        ("777/30 days", "concurrency"),
    ],
)
def test_processes_of_threads_admit_exactly(
    server: RedisServer, limit: str, algorithm: str
) -> None:
    command = [sys.executable, "-c", WORKER, server.uri(), limit, algorithm]
    workers = [
        processes.start(
            [*command, str(THREADS), str(CALLS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        told = [worker.communicate("go\n", timeout=60)[0].split() for worker in workers]
    finally:
        for worker in workers:
            processes.stop(worker)
            worker.communicate()
    assert all(failures == ["0", "0", "0"] for _, *failures in told)
    assert sum(int(admitted) for admitted, *_ in told) == 777


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_with_calls_in_flight_counts_nothing_twice(server: RedisServer) -> None:
    """Threads and tasks have calls under way at each fork(); both processes go on."""
    all_there = 1_000_000  # and half a minute until the next
    limiter = tidegate.Limiter(f"{all_there}/365 days", storage=server.uri(PATIENT))
    limiter.ping()
    stop = threading.Event()
    admitted: list[int] = []

    def threads() -> None:
        count = 0
        while not stop.is_set():
            count += limiter.allow("k")
        admitted.append(count)

    async def tasks() -> None:
        count = 0
        while not stop.is_set():
            count += sum(await asyncio.gather(*(limiter.allow_async("k") for _ in range(20))))
        admitted.append(count)

    async def in_child() -> int:
        return sum(await asyncio.gather(*(limiter.allow_async("k") for _ in range(20))))

    def child() -> int:
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            right = False
            try:
                right = sum(limiter.allow("k") for _ in range(20)) == 20
                right = right and asyncio.run(in_child()) == 20
                right = right and limiter.stats().degraded == 0
            finally:
                os._exit(0 if right else 1)
        return pid

    team = [threading.Thread(target=threads) for _ in range(6)]
    team += [threading.Thread(target=lambda: asyncio.run(tasks())) for _ in range(2)]
    for thread in team:
        thread.start()
    try:
        pids = [child() for _ in range(20)]
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    finally:
        stop.set()
        for thread in team:
            thread.join()
    assert ends == [0] * len(pids)
    assert limiter.stats().degraded == 0
    assert limiter.peek("k").remaining == all_there - sum(admitted) - 40 * len(pids)
    limiter.close()
