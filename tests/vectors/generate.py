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
from vector_cases import calendar, clock_steps, one_algorithm, plans
from vector_recorder import Case

HERE = Path(__file__).resolve().parent


def files() -> dict[str, Callable[[], Iterator[Case]]]:
    def of(algorithm: Algorithm) -> Callable[[], Iterator[Case]]:
        return lambda: one_algorithm(algorithm)

    made = {f"{algorithm}.json": of(algorithm) for algorithm in ALGORITHMS}
    return {**made, "plans.json": plans, "clock_steps.json": clock_steps, "calendar.json": calendar}


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
        for path in {*wanted, *HERE.glob("*.json")}
        if not path.exists() or path not in wanted or path.read_text("utf-8") != wanted[path]
    ]
    if check:
        for name in sorted(stale):
            print(f"{name} is not what generate.py writes", file=sys.stderr)
        return 1 if stale else 0
    for path, text in wanted.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
