"""Floods one shared memory with keys that come once, and holds steady clients to the oracle.

    python tests/faults/flood_campaign.py --keys 100000000

On an injected clock, `rate` new keys a second come in, each once, under the same limit as the
steady clients, who call at half to three times their rate and did so before. Far more keys are live
than the table has cells for, so that cells are given up all the time. Every decision for a steady
client is compared with the oracle's, which knows no table. Memory and file must not grow.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tidegate
from oracle import Algorithm, Oracle
from oracle import Limit as OracleLimit

_SECOND = 10**9
_START = 1_700_000_000 * _SECOND
_COUNT, _PERIOD_S = 10, 60
_STEPS_A_SECOND = 50
_CALM_S = 120  # before the flood


@dataclass
class Report:
    decisions: int = 0
    wrong: int = 0  # allowed, and the oracle refuses, or the other way round
    other_numbers: int = 0  # as it should be, but `remaining` differs
    evicted_live: int = 0
    memory_growth: int = 0  # bytes of this process, the file's not included
    file_growth: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        return self.wrong / self.decisions


def _own_memory() -> int:
    (kilobytes,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


def _file_bytes(path: Path) -> int:
    found = path.stat()
    return max(found.st_size, found.st_blocks * 512)


def campaign(
    keys: int,
    capacity: int,
    clients: int,
    rate: int,
    algorithm: Algorithm = "token-bucket",
    seed: int = 1,
) -> Report:
    """`keys` distinct ones come through a table for `capacity`."""
    dice = random.Random(seed)
    report = Report()
    oracle = Oracle([OracleLimit(_COUNT, _PERIOD_S * _SECOND, _burst(algorithm), algorithm)])
    clock = tidegate.ManualClock(_START)
    batch = rate // _STEPS_A_SECOND
    # Calls a step of each client, all of them together the same however long this takes.
    chances = [
        _COUNT / _PERIOD_S / _STEPS_A_SECOND * dice.uniform(0.5, 3.0) for _ in range(clients)
    ]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = Path(name) / "table"
        limiter = tidegate.Limiter(
            f"{_COUNT}/{_PERIOD_S} seconds",
            storage=f"shm://{path}?capacity={capacity}",
            algorithm=algorithm,
            clock=clock,
        )
        memory = 0
        size = _file_bytes(path)
        begin = time.monotonic()
        for first in range(-batch * _CALM_S * _STEPS_A_SECOND, keys, batch):
            clock.advance_ns(_SECOND // _STEPS_A_SECOND)
            if first >= 0:
                flood = [f"flood:{i}" for i in range(first, min(first + batch, keys))]
                assert all(limiter.hit_many(flood)), "a fresh key was refused"
            now = clock.now_ns()
            for client, chance in enumerate(chances):
                if dice.random() >= chance:
                    continue
                decision = limiter.hit(f"steady:{client}")
                expected = oracle.hit(client, now)
                if first < 0:
                    continue
                report.decisions += 1
                if decision.allowed != expected.allowed:
                    report.wrong += 1
                elif decision.remaining != expected.remaining:
                    report.other_numbers += 1
            if memory == 0 and first >= keys // 10:
                memory = _own_memory()
        report.seconds = time.monotonic() - begin
        report.memory_growth = _own_memory() - memory
        report.file_growth = _file_bytes(path) - size
        report.evicted_live = limiter.stats().evicted_live
        limiter.close()
    return report


def _burst(algorithm: Algorithm) -> int | None:
    return _COUNT if algorithm in ("token-bucket", "leaky-bucket") else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Floods one shared memory with fresh keys.")
    parser.add_argument("--keys", type=int, default=100_000_000)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=500_000, help="fresh keys a second")
    parser.add_argument("--algorithm", default="token-bucket")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    arguments = parser.parse_args()
    report = campaign(
        arguments.keys,
        arguments.capacity,
        arguments.clients,
        arguments.rate,
        arguments.algorithm,
        arguments.seed,
    )
    print(
        f"{arguments.algorithm}, seed {arguments.seed}: {arguments.keys:,} keys in "
        f"{report.seconds:.0f} s, {report.evicted_live:,} live ones given up\n"
        f"steady clients: {report.decisions:,} decisions, {report.wrong:,} unlike the oracle's "
        f"({100 * report.share:.4f} %; target 0.1 %), {report.other_numbers:,} more told "
        f"another `remaining`\n"
        f"growth: {report.memory_growth / 1e6:.1f} MB of memory, {report.file_growth} bytes of "
        "the file"
    )


if __name__ == "__main__":
    main()
