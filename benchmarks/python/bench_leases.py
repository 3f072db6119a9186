"""Leased Redis beside `memory://` and strict Redis: the time of a call, and commands a decision.

    python benchmarks/python/bench_leases.py [--quick] [--rounds N] [--json FILE]

Starts a redis-server of its own on a free port. One thread hits one key, a thousand keys in
turn, and many at once, under a limit that it never reaches. In each round every subject has its
turn.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import harness
import tidegate
from harness import Subject, Target

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))

from redis_server import PATIENT, RedisServer

# Far more than a thread can spend. All keys stay hot on a slow machine too: their leases are long.
LIMIT = "100000000/second burst 2000000000"
LEASED = f"{PATIENT}&mode=leased&lease=5"


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
        finally:
            server.kill()
    memory, leased, strict, memory_of_many, leased_of_many, *_ = rows
    rows += bulk
    harness.print_rows("A hit", rows, memory)
    targets = [
        Target("one key: leased over memory://", leased.ns / memory.ns, 1.5, at_least=False),
        Target(
            "1,000 keys: leased over memory://",
            leased_of_many.ns / memory_of_many.ns,
            1.5,
            at_least=False,
        ),
        Target("hits at once: million decisions a second", 1000 / bulk[1].ns, 3, unit=""),
        Target("one key: strict over leased", strict.ns / leased.ns, 20),
        Target("one key: commands a decision", one_key, 0.025, at_least=False, unit=""),
        Target("1,000 keys: commands a decision", many_keys, 0.35, at_least=False, unit=""),
        Target("degraded decisions", degraded, 0, at_least=False, unit=""),
    ]
    harness.print_targets(targets)
    harness.write_json(
        options.json,
        "leases",
        {
            "rounds": rounds,
            "rows": rows,
            "commands": {"one key": one_key, "1,000 keys": many_keys},
            "targets": targets,
        },
    )


if __name__ == "__main__":
    main()
