"""The time of a reservation in memory, beside the calls that it takes the place of.

    python benchmarks/python/bench_reserve.py [--quick] [--rounds N] [--json FILE]

1,000 hot keys, one thread. A commit alone is timed on 1,000 reservations that were made before, by
turns with 1,000 hits of the same keys: its multiple is the median of the turns' own.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import harness
import peers
from harness import Row, Subject, Target

_LIMIT = f"{peers.PLENTY}/{peers.PLENTY_PERIOD_S} second"
_PAIR = "hit + charge"
_RESERVE = "reserve"
# What is used: more than the estimate of 10, less, and as much.
_SETTLED = {"more": 15, "less": 4, "the same": 10}


def _of_a_plan(tidegate: Any) -> Any:
    limiters = [tidegate.Limiter(_LIMIT)]
    limiters += [
        tidegate.Limiter(_LIMIT, prefix=f"plan {number}", storage=limiters[0].storage)
        for number in range(3)
    ]
    return tidegate.Plan(limiters)


def _subjects(tidegate: Any) -> list[Subject]:
    def limiter() -> dict[str, Any]:
        return {"limiter": tidegate.Limiter(_LIMIT)}

    found = [
        Subject("hit", "limiter.hit(key, 10)", limiter(), verdict=bool),
        Subject(
            _PAIR, "(limiter.hit(key, 10), limiter.charge(key, 5))[0]", limiter(), verdict=bool
        ),
        Subject(_RESERVE, "limiter.reserve(key, 10)", limiter(), verdict=bool),
    ]
    for what, units in _SETTLED.items():
        call = f"limiter.reserve(key, 10).commit({units})"
        found.append(Subject(f"reserve + commit of {what}", call, limiter(), verdict=bool))
    call = "limiter.reserve(key, 10).release()"
    found.append(Subject("reserve + release", call, limiter(), verdict=bool))
    plan = {"plan": _of_a_plan(tidegate)}
    found.append(
        Subject("hit of a plan of four", "plan.hit([key] * 4, [10] * 4)", plan, verdict=bool)
    )
    call = "plan.reserve([key] * 4, [10] * 4).commit([15] * 4)"
    plan = {"plan": _of_a_plan(tidegate)}
    found.append(Subject("reserve + commit of a plan of four", call, plan, verdict=bool))
    rules = {"rules": [{"id": "tokens", "by": "user", "limits": _LIMIT}]}

    def by_rules() -> dict[str, Any]:
        return {"limiter": tidegate.Limiter(rules=tidegate.RuleSet(rules))}

    call = "limiter.check(cost=10, user=key)"
    found.append(Subject("check by rules", call, by_rules(), verdict=bool))
    call = "limiter.reserve(cost=10, user=key).commit(15)"
    found.append(Subject("reserve + commit by rules", call, by_rules(), verdict=bool))
    return found


# Loops without a call but the one that is timed.


def _hits(limiter: Any, keys: Sequence[Any], units: Any) -> int:
    start = time.perf_counter_ns()
    for key in keys:
        limiter.hit(key, units)
    return time.perf_counter_ns() - start


def _commits(_limiter: Any, reservations: Sequence[Any], units: Any) -> int:
    start = time.perf_counter_ns()
    for reservation in reservations:
        reservation.commit(units)
    return time.perf_counter_ns() - start


def _turn(
    limiter: Any, keys: Sequence[Any], estimate: Any, actual: Any, is_hit_first: bool
) -> tuple[float, float]:
    """The nanoseconds of a hit and of a commit. Neither always finds the caches as the other left
    them."""
    reservations = [limiter.reserve(key, estimate) for key in keys]
    hits = _hits(limiter, keys, estimate) if is_hit_first else 0
    commits = _commits(limiter, reservations, actual)
    hits += 0 if is_hit_first else _hits(limiter, keys, estimate)
    return hits / len(keys), commits / len(keys)


def _measure_alone(
    name: str, make: Callable[[], Any], of_plan: bool, actual: int, rounds: int, quick: bool
) -> tuple[Row, float]:
    """The row of a commit, and its multiple of a hit: medians of short turns, of which a busy
    machine interrupts few."""
    size = 4
    limiter = make()
    hot = harness.hot_keys()
    keys: list[Any] = [[key] * size for key in hot] if of_plan else list(hot)
    estimate: Any = [10] * size if of_plan else 10
    units: Any = [actual] * size if of_plan else actual
    turns = 2 if quick else 10
    _turn(limiter, keys, estimate, units, True)
    commits, ratios = [], []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for turn in range(turns):
                hit, commit = _turn(limiter, keys, estimate, units, turn % 2 == 0)
                commits.append(commit)
                ratios.append(commit / hit)
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    row = Row(
        name=name,
        peer="tidegate",
        group="",
        ns=statistics.median(commits),
        best_ns=min(commits),
        worst_ns=max(commits),
        calls=turns * len(keys),
        rounds=rounds,
        allowed=None,
    )
    return row, statistics.median(ratios)


def _commits_alone(tidegate: Any, rounds: int, quick: bool) -> tuple[list[Row], list[Target]]:
    rows, targets = [], []
    for what, units in _SETTLED.items():
        row, ratio = _measure_alone(
            f"commit of {what}", lambda: tidegate.Limiter(_LIMIT), False, units, rounds, quick
        )
        rows.append(row)
        name = f"a commit of {what}: multiple of a hit"
        targets.append(Target(name, ratio, 1.2, at_least=False))
    row, ratio = _measure_alone(
        "commit of a plan of four", lambda: _of_a_plan(tidegate), True, 15, rounds, quick
    )
    rows.append(row)
    targets.append(
        Target("a commit of a plan of four: multiple of its hit", ratio, 2.0, at_least=False)
    )
    return rows, targets


def main() -> None:
    options = harness.arguments(__doc__ or "", rounds=21, quick_rounds=5).parse_args()
    rounds = harness.rounds_of(options)
    tidegate = harness.load_tidegate()
    assert tidegate is not None
    harness.print_interpreter()
    rows = harness.measure(_subjects(tidegate), rounds, quick=options.quick)
    alone, targets = _commits_alone(tidegate, rounds, options.quick)
    rows += alone
    by_name = {row.name: row for row in rows}
    harness.print_rows(
        f"1,000 hot keys; medians of {rounds} interleaved rounds", rows, by_name["hit"]
    )
    figures = {"rounds": rounds, "quick": options.quick, "rows": rows}
    harness.report(options.json, "reserve", figures, targets)


if __name__ == "__main__":
    main()
