"""Writes the vectors beside this file, as the naive oracle answers them.

    python tests/vectors/generate.py            writes tests/vectors/*.json
    python tests/vectors/generate.py --check    exits 1 where they would differ

Deterministic: the random cases are seeded by their names. README.md tells the format.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from oracle import ALGORITHMS, Algorithm
from quota_cases import QuotaCase, quotas
from vector_cases import calendar, clock_steps, debts, one_algorithm, plans
from vector_recorder import Case

HERE = Path(__file__).resolve().parent


def files() -> dict[str, Callable[[], Iterator[Case | QuotaCase]]]:
    def of(algorithm: Algorithm) -> Callable[[], Iterator[Case]]:
        return lambda: one_algorithm(algorithm)

    made: dict[str, Callable[[], Iterator[Case | QuotaCase]]]
    made = {f"{algorithm}.json": of(algorithm) for algorithm in ALGORITHMS}
    made |= {"plans.json": plans, "clock_steps.json": clock_steps, "calendar.json": calendar}
    made["debts.json"] = debts
    # Of another format, so apart from what the readers of the others look for.
    return {**made, "quotas/quotas.json": quotas}


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes or checks the vectors.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    check: bool = parser.parse_args().check
    wanted = {
        HERE / name: "[\n" + ",\n".join(case.text() for case in make()) + "\n]\n"
        for name, make in files().items()
    }
    stale = [
        path.name
        for path in {*wanted, *HERE.rglob("*.json")}
        if not path.exists() or path not in wanted or path.read_text("utf-8") != wanted[path]
    ]
    if check:
        for name in sorted(stale):
            print(f"{name} is not what generate.py writes", file=sys.stderr)
        return 1 if stale else 0
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
