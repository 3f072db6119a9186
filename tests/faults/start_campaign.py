"""Starts many processes at once, each of which asks one Redis at once.

    python tests/faults/start_campaign.py --rounds 5

They start on few cores, so that a reply may wait for a processor rather than for Redis. Counts the
calls that were decided without Redis, and fails if more of them were than `--most` allows for each
round.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "redis"))

from polling import eventually
from ports import free_port
from redis_server import PROGRAM

CALLS = 50
CHILD = f"""
import json, sys, time, tidegate
limiter = tidegate.Limiter("1000000/minute", storage=sys.argv[1])
degraded, slowest = [], 0.0
for number in range({CALLS}):
    begun = time.monotonic()
    if limiter.hit("k").degraded:
        degraded.append(number)
    slowest = max(slowest, time.monotonic() - begun)
stats = limiter.stats()
print(json.dumps([degraded, slowest, stats.errors, stats.breaker_opened]))
"""


def accepts(port: int) -> bool:
    socket.create_connection(("127.0.0.1", port)).close()
    return True


def run_round(uri: str, count: int) -> int:
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", CHILD, uri], stdout=subprocess.PIPE)
            )
            for _ in range(count)
        ]
        reports = [json.loads(process.communicate(timeout=600)[0]) for process in started]
    degraded = sum(len(report[0]) for report in reports)
    print(
        f"{degraded} of {count * CALLS} calls were decided without Redis: in "
        f"{sum(bool(report[0]) for report in reports)} processes, the first calls "
        f"{sum(0 in report[0] for report in reports)} times; the slowest took "
        f"{max(report[1] for report in reports) * 1e3:.0f} ms; breakers opened "
        f"{sum(report[3] for report in reports)} times; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return degraded


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=0, help="calls of a round without Redis")
    given = parser.parse_args()
    port = free_port()
    # In the session of the others, with which Linux has it share the processors.
    server = subprocess.Popen(
        [PROGRAM, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: accepts(port), 20, despite=OSError)
        uri = f"redis://127.0.0.1:{port}"
        rounds = [run_round(uri, given.processes) for _ in range(given.rounds)]
    finally:
        server.kill()
        server.wait()
    sys.exit(max(rounds) > given.most)


if __name__ == "__main__":
    main()
