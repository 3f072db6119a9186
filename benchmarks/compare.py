"""Compares the benchmarks of this tree with those of another commit, in turn on one machine.

    python benchmarks/compare.py COMMIT [--only NAME ...] [--rounds 3] [--quick]

Checks the commit out into build/against, builds both as they are released, each into an
environment of its own, and runs each benchmark of this tree against both. The programs in C++ are
those of each tree. What it finds is in build/against.json too.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import combine
import machine
import report
from json_text import json_text
from report import ROOT, Bench, Build, Skipped

AGAINST = ROOT / "build" / "against"
MOST = 1.03  # times the cost of the old build; above, a figure is slower
PROGRAMS = ("core_bench", "checks_bench", "hit_loop")
BENCHES = {
    **{name: bench for name, bench in report.BENCHES.items() if name != "governor"},
    "checks_in_cpp": Bench("checks_in_cpp", ("checks_bench",), kind="google"),
}

# What a column, a line or a table measures, by its words: a rate or a cost. Other numbers, such as
# counts of keys, ratios within one run and the best of several, are not compared.
_RATE = re.compile(r"(?<!\d)/s\b|\ba second\b")
_COST = re.compile(
    r"(?<![/\w])(?<!> 1 )([num]?s|[Ss]econds|bytes|KiB|memory_mib|p\d+|cores)\b|_ms\b|bytes_a"
)
_VAGUE = ("", "median", "measured")  # columns whose line or table says what they measure


class Figure(NamedTuple):
    value: float
    more_is_better: bool


@dataclass(frozen=True)
class Change:
    """The cost of the new build over that of the old one; of rates, the old over the new."""

    name: str
    old: float
    new: float
    ratio: float
    least: float
    most: float

    @property
    def slower(self) -> bool:
        return self.ratio > MOST


def more_is_better(*texts: str) -> bool | None:
    """Whether a figure is a rate, by the first of the texts that says it; None if none does."""
    for text in texts:
        if _RATE.search(text):
            return True
        if _COST.search(text):
            return False
    return None


def figures(printed: dict[str, Any]) -> dict[str, Figure]:
    """The figures of one run that are better if they are more, or if they are less."""
    found = {}
    for table in printed["tables"]:
        for name, *cells in table["lines"]:
            for header, text in zip(table["headers"][1:], cells):
                number = combine.number_in(text)
                where = (header, name, table["title"]) if header in _VAGUE else (header,)
                better = more_is_better(*where)
                if better is not None and number and number[1].strip() not in ("x", "%"):
                    found[f"{table['title']} | {name} | {header}"] = Figure(number[0], better)
    for target in printed["targets"]:
        found[f"target | {target['what']}"] = Figure(target["value"], target["at_least"])
    return found


def changes(
    old: Sequence[dict[str, Figure]], new: Sequence[dict[str, Figure]]
) -> tuple[list[Change], list[str]]:
    """Each figure by the ratios of the rounds; and those that have none, or that a run lacks."""
    runs = (*old, *new)
    shared = [name for name in new[0] if all(name in run and run[name].value > 0 for run in runs)]
    found = []
    for name in shared:
        pairs = [(before[name].value, after[name].value) for before, after in zip(old, new)]
        rate = new[0][name].more_is_better
        ratios = [before / after if rate else after / before for before, after in pairs]
        values = map(statistics.median, zip(*pairs))
        found.append(Change(name, *values, statistics.median(ratios), min(ratios), max(ratios)))
    return found, sorted({name for run in runs for name in run} - set(shared))


def text_of(change: Change) -> str:
    old, new = combine.shown(change.old), combine.shown(change.new)
    spread = f"({change.least:.3f} to {change.most:.3f})"
    mark = "SLOWER" * change.slower
    return f"  {old:>8} {new:>8} {change.ratio:6.3f} {spread:20}{mark:7} {change.name}"


def compare(
    names: Sequence[str], rounds: int, quick: bool, builds: dict[str, Build]
) -> dict[str, Any]:
    """Runs each benchmark with both builds in each round, and prints what has changed."""
    benches: dict[str, Any] = {}
    for name in names:
        runs: dict[str, list[dict[str, Figure]]] = {which: [] for which in builds}
        try:
            for number in range(rounds):
                # Each goes first in every other round: what warms up or slows down harms both.
                for which in list(builds) if number % 2 == 0 else reversed(list(builds)):
                    runs[which].append(figures(report.run(BENCHES[name], quick, builds[which])))
        except Skipped as reason:
            benches[name] = {"not_compared": f"{which}: {reason}"}
            print(f"{name}: NOT COMPARED, {which}: {reason}", flush=True)
            continue
        found, others = changes(runs["old"], runs["new"])
        benches[name] = {
            "figures": [{**asdict(change), "slower": change.slower} for change in found],
            "without_ratio": others,
        }
        print(f"{name}:\n  {'old':>8} {'new':>8} {'ratio':>6}  (over {rounds} rounds)")
        print("\n".join(map(text_of, found)))
        print("".join(f"  without a ratio: {label}\n" for label in others), end="", flush=True)
    return benches


def built(which: str, tree: Path) -> Build:
    """An environment with the package of `tree` as it is released, and its programs in C++."""
    python, made = (AGAINST / which / part for part in ("venv/bin/python", "build"))
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}

    def run(*command: object) -> int:
        return subprocess.run(list(map(str, command)), env=environment).returncode

    def install(*what: object) -> None:
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        if run(*pip, "--no-input", *what):
            raise SystemExit(f"the {which} build cannot be installed; pip says why above")

    print(f"building {which}", flush=True)
    run(sys.executable, "-m", "venv", AGAINST / which / "venv")
    install("-r", tree / "python" / "requirements.txt")
    install(*(f"--requirement={ROOT}/{of}/requirements.txt" for of in ("benchmarks", "tests")))
    options = (f"build-dir={made}", "cmake.define.TIDEGATE_BUILD_BENCHMARKS=ON")
    settings = (f"--config-settings={option}" for option in options)
    install("--no-build-isolation", "--no-deps", *settings, tree)
    for program in PROGRAMS:
        if run("cmake", "--build", made, "--target", program):
            print(f"the {which} build has no {program}")
    return Build(str(python), str(made))


def checked_out(commit: str) -> Path:
    """The tree of a commit in build/against."""
    tree = AGAINST / "tree"
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "remove", "--force", str(tree)], capture_output=True)
    subprocess.run([*git, "prune"], check=True)
    subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
    return tree


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", help="to compare with")
    parser.add_argument("--only", nargs="+", choices=BENCHES, metavar="NAME", help="of these")
    parser.add_argument("--rounds", type=int, default=3, help="of both builds (default 3)")
    parser.add_argument("--quick", action="store_true", help="rough figures")
    options = parser.parse_args()
    builds = {"old": built("old", checked_out(options.commit)), "new": built("new", ROOT)}
    facts = machine.facts()
    if not machine.is_quiet(facts):
        print(f"the load average is {facts['load_before']}: these figures mean little")
    names, rounds = options.only or list(BENCHES), max(1, options.rounds)
    benches = compare(names, rounds, options.quick, builds)
    found = {"against": options.commit, "rounds": rounds, "machine": facts, "benches": benches}
    path = AGAINST.with_suffix(".json")
    path.write_text(json_text(found), encoding="utf-8")
    slower = [c for each in benches.values() for c in each.get("figures", []) if c["slower"]]
    print(f"{len(slower)} figures are slower than {MOST} times; written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
