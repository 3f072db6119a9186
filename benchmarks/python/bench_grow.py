"""What each way to share a limit costs at 35,000 checks a second: the table of docs/grow.md.

    python benchmarks/python/bench_grow.py [--quick] [--rounds N] [--json FILE]

One thread hits a thousand hot keys in turn, in memory, in shared memory, on a redis-server of this
benchmark and on the same by leases. Processor time is that of the client and of the server; the
cores are that time at 35,000 checks a second, the peak of a service with 10 M users and 1,000 M
requests a day. The other process of each figure is on the same machine.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import harness
import tidegate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))

from redis_server import PATIENT, RedisServer
from tidegate._core import ShmStore

PEAK = 35_000
# Far more than a thread can spend.
LIMIT = "1000000/second burst 10000000"
CALLS = 200  # between two looks at the clock


class Cost(NamedTuple):
    a_second: float
    p99_us: float
    client_us: float
    server_us: float
    commands: float

    @property
    def cores(self) -> float:
        return (self.client_us + self.server_us) * PEAK / 1e6


def processor_seconds(server: RedisServer) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scripts(server: RedisServer) -> int:
    calls = server.calls()
    return sum(calls.get(name, 0) for name in ("eval", "evalsha"))


def cost_of(storage: str, server: RedisServer, seconds: float) -> Cost:
    with tidegate.Limiter(LIMIT, storage=storage, prefix=os.urandom(4).hex()) as limiter:
        keys = harness.hot_keys()
        hit = limiter.hit
        for _ in range(3):
            limiter.hit_many(keys)
        asked, server_s, client_s = scripts(server), processor_seconds(server), time.process_time()
        begun, calls = time.perf_counter(), 0
        while (passed := time.perf_counter() - begun) < seconds:
            for i in range(calls, calls + CALLS):
                hit(keys[i % len(keys)])
            calls += CALLS
        client_us = (time.process_time() - client_s) / calls * 1e6
        server_us = (processor_seconds(server) - server_s) / calls * 1e6
        commands = (scripts(server) - asked) / calls
        waits = []
        for i in range(min(calls, 50_000)):
            start = time.perf_counter_ns()
            hit(keys[i % len(keys)])
            waits.append((time.perf_counter_ns() - start) / 1e3)
    p99_us = sorted(waits)[len(waits) * 99 // 100]
    return Cost(calls / passed, p99_us, client_us, server_us, commands)


def main() -> None:
    parser = harness.arguments(__doc__.splitlines()[0], rounds=5, quick_rounds=1)
    options = parser.parse_args()
    harness.print_interpreter()
    found: dict[str, list[Cost]] = {}
    name = f"tidegate-grow-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="tg") as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            ways = {
                "one process, memory://": "memory://",
                "one host, shm://": f"shm://{name}",
                "one Redis": server.uri(PATIENT),
                "one Redis, leased": server.uri(f"{PATIENT}&mode=leased"),
            }
            for _ in range(harness.rounds_of(options)):
                for way, storage in ways.items():
                    cost = cost_of(storage, server, 0.5 if options.quick else 2)
                    found.setdefault(way, []).append(cost)
        finally:
            server.kill()
            ShmStore.remove(name)
    rows = []
    for way, costs in found.items():
        cost = Cost(*(statistics.median(values) for values in zip(*costs)))
        rows.append(
            [
                way,
                f"{cost.a_second:,.0f}",
                f"{cost.p99_us:.2f}",
                f"{cost.client_us:.2f}",
                f"{cost.server_us:.2f}",
                f"{cost.commands:.4f}",
                f"{cost.cores:.3f}",
            ]
        )
    headers = ["", "checks/s", "p99 us", "client us", "Redis us", "commands", "cores at 35,000/s"]
    harness.print_table("One thread, 1,000 hot keys", headers, rows)
    harness.write_json(options.json, "grow", {"costs": found})


if __name__ == "__main__":
    main()
