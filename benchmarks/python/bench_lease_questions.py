"""Leased Redis under steady and bursty load: commands a decision, and what is admitted over strict.

    python benchmarks/python/bench_lease_questions.py [--quick] [--seed N] [--json FILE]

Starts a redis-server of its own on a free port. Several limiters of one process, each with a store
of its own, are the nodes of a fleet. Calls arrive at random instants, at a given rate, and go to
the nodes by lot. A strict bucket in Python says what strict mode would admit at these instants.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import harness
import tidegate
from harness import Target

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))

from redis_server import PATIENT, RedisServer

OPTIONS = f"{PATIENT}&deny_cache_max=0"
NODES = 8


@dataclass(frozen=True)
class Load:
    """Calls for one key, and what is expected of them."""

    name: str
    rate: float  # of the limit, units a second; its burst is as large
    share: float  # of the limit's rate that calls ask for
    commands: float | None = None  # at most, a decision
    admitted: float | None = None  # at least, over strict
    first: float = 1 / NODES  # the share of the first node
    on: float = 1.0  # the seconds of calls of each second; `share` is the rate in these


LOADS = [
    Load("50 %", 2000, 0.5, commands=0.045),
    Load("90 %", 2000, 0.9, commands=0.025),
    Load("1.1 x", 2000, 1.1, commands=0.04, admitted=0.985),
    Load("2 x", 2000, 2, commands=0.035, admitted=0.995),
    Load("10 x", 2000, 10, commands=0.01, admitted=0.995),
    Load("2 x, 90 % of it at one node", 2000, 2, admitted=0.98, first=0.9),
    Load("4 x for 0.25 s of each second", 2000, 4, admitted=0.96, on=0.25),
    Load("100 a second, 90 %", 100, 0.9, commands=0.35),
]


class Strict:
    """A token bucket, full at first."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self.units, self.at = burst, 0.0

    def allow(self, now: float) -> bool:
        """Takes a unit at this instant, if there is one."""
        self.units = min(self.burst, self.units + (now - self.at) * self.rate)
        self.at = now
        if self.units < 1:
            return False
        self.units -= 1
        return True


def arrivals(load: Load, seconds: float, chance: random.Random) -> list[tuple[float, int]]:
    """The instants of the calls and the nodes that they go to."""
    calls: list[tuple[float, int]] = []
    now = 0.0
    while True:
        now += chance.expovariate(load.rate * load.share)
        # Of each second only the first part has calls.
        whole, part = divmod(now, load.on)
        at = whole + part
        if at >= seconds:
            return calls
        other = chance.randrange(1, NODES)
        calls.append((at, 0 if chance.random() < load.first else other))


def commands(server: RedisServer) -> int:
    calls = server.calls()
    return sum(calls.get(name, 0) for name in ("eval", "evalsha"))


def run(server: RedisServer, load: Load, seconds: float, seed: int) -> dict[str, float]:
    """Returns commands a decision and the part of what strict mode admits."""
    options = f"{OPTIONS}&mode=leased"
    limit = f"{load.rate:g}/second burst {load.rate:g}"
    nodes = [
        tidegate.Limiter(limit, storage=server.uri(f"{options}&client_name=node{i}"))
        for i in range(NODES)
    ]
    for limiter in nodes:
        limiter.ping()
        limiter.hit("warm-up")  # the server has the script
    calls = arrivals(load, seconds, random.Random(seed))
    strict = Strict(load.rate, load.rate)
    key = f"{load.name}:{seed}"
    admitted = expected = 0
    server.command("CONFIG", "RESETSTAT")
    begin = time.monotonic()
    late = 0.0
    for at, i in calls:
        while (wait := begin + at - time.monotonic()) > 0:
            time.sleep(min(wait, 0.0005))
        late = max(late, -wait)
        admitted += nodes[i].allow(key)
        expected += strict.allow(time.monotonic() - begin)
    asked = commands(server)
    degraded = sum(limiter.stats().degraded for limiter in nodes)
    for limiter in nodes:
        limiter.close()
    return {
        "calls": len(calls),
        "commands": asked / len(calls),
        "admitted": admitted / expected,
        "late": late,
        "degraded": degraded,
    }


def cold(server: RedisServer, keys: int) -> float:
    """Commands for keys that are hit once, over those of strict mode."""
    counts = []
    for mode in ("strict", "leased"):
        with tidegate.Limiter(
            "100/second", storage=server.uri(f"{OPTIONS}&mode={mode}"), prefix=mode
        ) as limiter:
            limiter.hit("warm-up")
            server.command("CONFIG", "RESETSTAT")
            for i in range(keys):
                limiter.hit(f"user:{i}")
            counts.append(commands(server))
    return counts[1] / counts[0]


def main() -> None:
    parser = harness.arguments("commands a decision of leased Redis", rounds=1, quick_rounds=1)
    parser.add_argument("--seed", type=int, default=1, help="of the calls (default 1)")
    options = parser.parse_args()
    harness.print_interpreter()
    seconds = 2.0 if options.quick else 10.0
    figures: dict[str, dict[str, float]] = {}
    targets = []
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            for load in LOADS:
                told = figures[load.name] = run(server, load, seconds, options.seed)
                print(
                    f"{load.name:32} {told['calls']:8,.0f} calls, "
                    f"{told['commands']:.4f} commands a decision, "
                    f"{told['admitted']:.4f} of strict, latest call {told['late'] * 1000:.1f} ms"
                )
                if load.commands is not None:
                    # Of so few, thousands are easier to read.
                    what = f"{load.name}: commands in 1,000 decisions"
                    most = 1000 * load.commands
                    targets.append(
                        Target(what, 1000 * told["commands"], most, at_least=False, unit="")
                    )
                if load.admitted is not None:
                    what = f"{load.name}: admitted, % of strict"
                    least = 100 * load.admitted
                    targets.append(Target(what, 100 * told["admitted"], least, unit=""))
            over = cold(server, 2_000 if options.quick else 100_000)
        finally:
            server.kill()
    degraded = sum(told["degraded"] for told in figures.values())
    targets += [
        Target("cold keys: commands over strict", over, 1.0, at_least=False, unit=""),
        Target("degraded decisions", degraded, 0, at_least=False, unit=""),
    ]
    harness.report(
        options.json,
        "lease_questions",
        {"seed": options.seed, "seconds": seconds, "loads": figures},
        targets,
    )


if __name__ == "__main__":
    main()
