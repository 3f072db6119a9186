"""The time of a reservation in memory, beside the calls that it takes the place of.

    python benchmarks/python/bench_reserve.py [--quick] [--rounds N] [--json FILE]

1,000 hot keys, one thread. A commit settles a reservation that was made in the same call, so its
time is the difference of two rows.
"""

from __future__ import annotations

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
    return found


def _targets(rows: dict[str, Row]) -> list[Target]:
    hit, reserve = rows["hit"], rows[_RESERVE]
    found = []
    for what in _SETTLED:
        commit = rows[f"reserve + commit of {what}"].ns - reserve.ns
        name = f"a commit of {what}: multiple of a hit"
        found.append(Target(name, commit / hit.ns, 1.2, at_least=False))
    return found


def main() -> None:
    options = harness.arguments(__doc__ or "", rounds=21, quick_rounds=5).parse_args()
    rounds = harness.rounds_of(options)
    tidegate = harness.load_tidegate()
    assert tidegate is not None
    harness.print_interpreter()
    rows = harness.measure(_subjects(tidegate), rounds, quick=options.quick)
    by_name = {row.name: row for row in rows}
    harness.print_rows(
        f"1,000 hot keys; medians of {rounds} interleaved rounds", rows, by_name["hit"]
    )
    targets = _targets(by_name)
    harness.print_targets(targets)
    figures = {"rounds": rounds, "quick": options.quick, "rows": rows, "targets": targets}
    harness.write_json(options.json, "reserve", figures)


if __name__ == "__main__":
    main()
