"""Leased Redis beside `memory://` and strict Redis: the time of a call, and commands a decision.

    python benchmarks/python/bench_leases.py [--quick] [--rounds N] [--json FILE]

Starts a redis-server of its own on a free port. One thread hits one key, a thousand keys in
turn, and many at once, under a limit that it never reaches. In each round every subject has its
turn. Then tasks await hits of a hundred keys with the server 20 ms away, through a proxy. The
decisions a second in C++ are those of build/release/benchmarks/cpp/hit_loop, which `make bench` and
`make bench-report` build, as does `cmake --build --preset release --target hit_loop`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
import tidegate
from far_away import far_away
from harness import Subject, Target

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))

from redis_server import PATIENT, RedisServer

# Far more than a thread can spend. All keys stay hot on a slow machine too: their leases are long.
LIMIT = "100000000/second burst 2000000000"
LEASED = f"{PATIENT}&mode=leased&lease=5"
TRIP_MS = 20
FAR_KEYS = 100
FAR_RATE = 20_000  # calls a second
WARM_S = 3
ROOT = Path(__file__).resolve().parents[2]
TREE = os.environ.get("TIDEGATE_BUILD_TREE", "build/release")
HIT_LOOP = ROOT / TREE / "benchmarks/cpp/hit_loop"


def commands(server: RedisServer) -> int:
    calls = server.calls()
    return sum(calls.get(name, 0) for name in ("eval", "evalsha"))


def commands_a_decision(server: RedisServer, keys: int, decisions: int) -> float:
    with tidegate.Limiter(LIMIT, storage=server.uri(LEASED), prefix=f"c{keys}") as limiter:
        names = [f"user:{i}" for i in range(keys)]
        for name in names * 3:
            limiter.hit(name)
        server.command("CONFIG", "RESETSTAT")
        for i in range(decisions):
            limiter.hit(names[i % keys])
        return commands(server) / decisions


async def waits_far_away(server: RedisServer, seconds: float) -> list[float]:
    """Milliseconds of each `await hit_async(key)` of hot keys, with leases of the usual length.

    Twenty calls come each millisecond, whether those before them have their answers or not.
    """
    waits: list[float] = []
    with far_away(server.port, TRIP_MS) as port:
        # A limit that no key reaches, and leases of 0.2 s.
        storage = f"redis://127.0.0.1:{port}?{PATIENT}&mode=leased"
        limiter = tidegate.Limiter("1000000/second burst 10000000", storage=storage, prefix="far")

        async def hit(key: str) -> None:
            begun = time.perf_counter_ns()
            await limiter.hit_async(key)
            waits.append((time.perf_counter_ns() - begun) / 1e6)

        keys = harness.hot_keys(FAR_KEYS)
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        begun, made, is_warm = loop.time(), 0, False
        while (passed := loop.time() - begun) < WARM_S + seconds:
            # The rate grows until all keys have leases, without a crowd of calls that all ask.
            due = int(
                FAR_RATE * (passed**2 / 2 / WARM_S if passed < WARM_S else passed - WARM_S / 2)
            )
            if passed > WARM_S and not is_warm:
                is_warm = True
                waits.clear()
            for i in range(made, min(due, made + 1000)):
                task = loop.create_task(hit(keys[i % FAR_KEYS]))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            made = due  # a machine that stood still makes no crowd of calls
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        limiter.close()
    return sorted(waits)


def millions_in_cpp(server: RedisServer, decisions: int) -> float | None:
    """A second, by one thread and 1,000 hot keys; None if the program was not built."""
    if not HIT_LOOP.exists():
        return None
    done = subprocess.run(
        [HIT_LOOP, "token-bucket/leased", str(decisions)],
        env={**os.environ, "REDIS_PORT": str(server.port)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[0]) / 1e6


def main() -> None:
    parser = harness.arguments(
        "leased Redis beside memory and strict Redis", rounds=7, quick_rounds=2
    )
    options = parser.parse_args()
    rounds = harness.rounds_of(options)
    harness.print_interpreter()
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            limiters = {
                "memory": tidegate.Limiter(LIMIT),
                "leased": tidegate.Limiter(LIMIT, storage=server.uri(LEASED)),
                "strict": tidegate.Limiter(LIMIT, storage=server.uri(PATIENT)),
            }
            # A lease grows with the calls of its key.
            for key in harness.hot_keys() * 10:
                limiters["leased"].hit(key)
            one = ["k"] * 1000
            rows = harness.measure(
                [
                    Subject(f"{name}, {what}", "hit(key)", {"hit": limiter.hit}, keys=keys)
                    for what, keys in (("one key", one), ("1,000 keys", harness.hot_keys()))
                    for name, limiter in limiters.items()
                ],
                rounds,
                quick=options.quick,
            )
            batch = harness.hot_keys() * 100
            limiters["leased"].hit_many(batch)
            bulk = harness.measure(
                [
                    Subject(
                        f"{name}, 1,000 keys, 100,000 hits at once",
                        "hit_many(keys)",
                        {"hit_many": limiters[name].hit_many},
                        keys=batch,
                        batch=True,
                    )
                    for name in ("memory", "leased")
                ],
                rounds,
                quick=options.quick,
            )
            decisions = 20_000 if options.quick else 200_000
            one_key = commands_a_decision(server, 1, decisions)
            many_keys = commands_a_decision(server, 1000, decisions)
            degraded = limiters["leased"].stats().degraded
            waits = asyncio.run(waits_far_away(server, 2 if options.quick else 10))
            in_cpp = millions_in_cpp(server, 50 * decisions)
        finally:
            server.kill()
    memory, leased, strict, memory_of_many, leased_of_many, *_ = rows
    rows += bulk
    harness.print_rows("A hit", rows, memory)
    parts = {"median": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
    late = {name: waits[int(part * (len(waits) - 1))] for name, part in parts.items()}
    harness.print_table(
        f"Awaiting a hit of {FAR_KEYS} hot keys, Redis {TRIP_MS} ms away",
        ["", "ms"],
        [[name, f"{ms:.4f}"] for name, ms in late.items()],
    )
    targets = [
        Target("one key: leased over memory://", leased.ns / memory.ns, 1.5, at_least=False),
        Target(
            "1,000 keys: leased over memory://",
            leased_of_many.ns / memory_of_many.ns,
            1.5,
            at_least=False,
        ),
        Target("hits at once: million decisions a second", 1000 / bulk[1].ns, 3, unit=""),
        Target(
            f"p99.9 of hit_async, Redis {TRIP_MS} ms away, ms",
            late["p99.9"],
            1,
            at_least=False,
            unit="",
        ),
        Target("one key: strict over leased", strict.ns / leased.ns, 20),
        Target("one key: commands a decision", one_key, 0.025, at_least=False, unit=""),
        Target("1,000 keys: commands a decision", many_keys, 0.35, at_least=False, unit=""),
        Target("degraded decisions", degraded, 0, at_least=False, unit=""),
    ]
    if in_cpp is not None:
        targets.append(Target("C++, 1,000 keys: million decisions a second", in_cpp, 10, unit=""))
    else:
        print(f"\nC++: not measured, there is no {HIT_LOOP}")
    harness.report(
        options.json,
        "leases",
        {
            "rounds": rounds,
            "rows": rows,
            "commands": {"one key": one_key, "1,000 keys": many_keys},
            "awaited_ms": late,
        },
        targets,
    )


if __name__ == "__main__":
    main()
