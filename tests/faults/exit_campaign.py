"""Ends processes at random instants while their threads are inside calls of tidegate.

    python tests/faults/exit_campaign.py --processes 500

Each must end with the exit code of its main thread, and print nothing. Every blocking call is tried
with every state of the storage, also after close(); then every way for a process to end, Python
code that the core calls, event loops, and Flask's development server (tests/redis/exit_cases.py).

The environment variable TIDEGATE_EXIT_PYTHON names another interpreter to try.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "redis"))

from exit_cases import (
    CALLBACKS,
    CALLS,
    ENDS,
    LOOPS,
    Case,
    Storages,
    problem,
    problem_of_flask,
    storages,
)

FLASK = Case("ctrl-c of flask")


def _cases(servers: Storages) -> list[Case]:
    """All of them, once."""
    cases = [
        Case(end, storage, (call,), threads=4)
        for end in ("return", "close")
        for storage in servers.names
        for call in CALLS
    ]
    cases += [Case(end, storage) for end in ENDS for storage in servers.quick_names]
    cases += [Case(loop, storage) for loop in LOOPS for storage in servers.quick_names]
    cases += [Case(callback) for callback in CALLBACKS]
    return [*cases, FLASK]


def campaign(processes: int, parallel: int, seed: int) -> dict[str, int]:
    """How many processes ended as they should not, by case and problem."""
    dice = random.Random(seed)
    with storages() as servers, ThreadPoolExecutor(parallel) as pool:
        queue: list[Case] = []
        while len(queue) < processes:
            cases = _cases(servers)
            dice.shuffle(cases)
            queue += cases

        def run(case: Case) -> str | None:
            return problem_of_flask(servers) if case is FLASK else problem(case, servers)

        problems: dict[str, int] = {}
        for case, found in zip(queue, pool.map(run, queue[:processes])):
            if found is not None:
                text = f"{case}: {found}"
                problems[text] = problems.get(text, 0) + 1
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description="Ends processes while threads are in calls.")
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    arguments = parser.parse_args()
    began = time.monotonic()
    problems = campaign(arguments.processes, arguments.parallel, arguments.seed)
    for text, times in sorted(problems.items()):
        print(f"{times} x {text}")
    failed = sum(problems.values())
    print(
        f"{arguments.processes - failed} of {arguments.processes} processes ended as they should, "
        f"in {time.monotonic() - began:.0f} s (seed {arguments.seed})"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
