"""Runs the benchmarks, each several times in turn, and writes the report of what they found.

    python benchmarks/report.py [--only NAME ...] [--runs 3] [--quick] [--page]

What was found is kept in build/benchmarks.json. Once all figures of the README are among it, it
is the report, docs/benchmarks.json, and from it come docs/benchmarks.md, its pictures and the
README's lines. With --only, the other benchmarks keep what an earlier run has found for them; with
--page nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import combine
import machine
import report_page
from json_text import json_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import processes

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs" / "benchmarks.json"
KEPT = ROOT / "build" / "benchmarks.json"
_MOST_SECONDS = 3600


@dataclass(frozen=True)
class Build:
    """What is measured: an interpreter's package, and the programs in C++ of a build tree."""

    python: str = sys.executable
    tree: str = "build/release"


RELEASED = Build()


@dataclass(frozen=True)
class Bench:
    """A program that writes JSON. `once`: its own rounds suffice, or it takes too long for more."""

    name: str
    arguments: tuple[str, ...] = ()
    once: bool = False
    kind: str = "python"


BENCHES = {
    each.name: each
    for each in (
        Bench("core", ("core_bench",), kind="google"),
        Bench("governor", once=True, kind="governor"),
        Bench("call", ("--rounds", "11")),
        Bench("reserve", ("--rounds", "9")),
        Bench("overuse", once=True),
        Bench("memory", ("--rounds", "9"), once=True),
        Bench("import"),
        Bench("rate", once=True),
        Bench("redis", ("--rounds", "5")),
        Bench("leases", ("--rounds", "5")),
        Bench("lease_questions", once=True),
        Bench("grow"),
        Bench("shm", ("--rounds", "5")),
        Bench("stall", once=True),
        Bench("asgi"),
        Bench("web", ("--rounds", "3")),
        Bench("check"),
        Bench("rules"),
        Bench("rule_change", once=True),
        Bench("admin_change", once=True),
        Bench("server", ("--rounds", "3")),
        Bench("checks", ("--rounds", "3")),
        Bench("envoy", ("--rounds", "3")),
        Bench("sustained", once=True),
        Bench("logs", once=True),
        Bench("replay", once=True),
        Bench("recommend", once=True),
        Bench("what_if", once=True),
        Bench("sliding_error", once=True),
        Bench("anomaly", once=True),
    )
}

_DISTRIBUTIONS = (
    *("tidegate", "cpex-rate-limiter", "fastapi", "fastapi-limiter", "Flask", "Flask-Limiter"),
    *("floodgate-rs", "grpcio", "gunicorn", "hiredis", "limits", "numpy", "pyrate-limiter"),
    *("redis", "rust-py-rate-limit", "slowapi", "throttled-py", "token-bucket", "uvicorn"),
)


class Skipped(Exception):
    """A benchmark that cannot run here; the text says why."""


def run(bench: Bench, quick: bool, build: Build = RELEASED) -> dict[str, Any]:
    """What one run of a benchmark has printed. Raises Skipped where it cannot run or fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        ended = _ended(_command(bench, path, quick, build), build)
        if ended.returncode != 0:
            raise Skipped(f"it ended with status {ended.returncode}: {_last(ended.stderr)}")
        if bench.kind == "google":
            return dict(combine.google(json.loads(ended.stdout))["printed"])
        if bench.kind == "governor":
            return dict(combine.governor(json.loads(ended.stdout))["printed"])
        if not path.exists():  # it prints what it misses
            raise Skipped(_last(ended.stdout))
        return dict(json.loads(path.read_text(encoding="utf-8"))["printed"])


def _command(bench: Bench, path: Path, quick: bool, build: Build) -> list[str]:
    if bench.kind == "google":
        program, *how = bench.arguments
        return [
            str(Path(build.tree, "benchmarks", "cpp", program)),
            *how,
            "--benchmark_format=json",
            f"--benchmark_min_time={_least(quick)}",
        ]
    if bench.kind == "governor":
        manifest = str(ROOT / "benchmarks" / "governor" / "Cargo.toml")
        command = ["cargo", "run", "--quiet", "--release", "--locked", "--manifest-path", manifest]
        return [*command, "--", "--quick"] if quick else command
    program = str(ROOT / "benchmarks" / "python" / f"bench_{bench.name}.py")
    how = ["--quick"] if quick else list(bench.arguments)
    return [build.python, program, *how, "--json", str(path)]


def _least(quick: bool) -> str:
    """Seconds, without a unit: Debian 12 has google benchmark 1.7, which knows none."""
    return "0.01" if quick else "0.2"


def _ended(command: Sequence[str], build: Build) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "TIDEGATE_BUILD_TREE": build.tree},
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS,
        )
    except FileNotFoundError:
        raise Skipped(f"there is no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise Skipped(f"it took more than {_MOST_SECONDS} s") from None


def _last(text: str) -> str:
    """The last line of an output, in which paths of this machine are names only."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"(?<![\w.])/(?:[\w.-]+/)+", "", lines[-1]) if lines else "it printed nothing"


def measure(names: Sequence[str], runs: int, quick: bool) -> dict[str, Any]:
    """Runs the benchmarks in turn, `runs` times, and puts their runs together."""
    facts = machine.facts(*_DISTRIBUTIONS)
    if not machine.is_quiet(facts):
        print(f"the load average is {facts['load_before']}: these figures mean little")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    skipped: dict[str, str] = {}
    for number in range(runs):
        for name in names:
            if name in skipped or (number > 0 and BENCHES[name].once):
                continue
            began = time.monotonic()
            try:
                found[name].append(run(BENCHES[name], quick))
            except Skipped as reason:
                skipped[name] = str(reason)
            taken = time.monotonic() - began
            print(f"run {number + 1}: {name}: {skipped.get(name, f'{taken:.0f} s')}", flush=True)
    return {
        name: {"machine": facts, "quick": quick, "skipped": skipped[name]}
        if name in skipped
        else {
            "machine": facts,
            "quick": quick,
            "runs": len(found[name]),
            "tables": combine.tables([each["tables"] for each in found[name]]),
            "targets": combine.targets([each["targets"] for each in found[name]]),
        }
        for name in names
    }


def merged(report: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """The report with what was measured in place of what it had for the same benchmarks."""
    benches = {**report.get("benches", {}), **measured}
    return {"benches": {name: benches[name] for name in BENCHES if name in benches}}


def publish(report: dict[str, Any], root: Path = ROOT) -> bool:
    """Writes the report, its page and pictures, and the README's lines, if those are complete."""
    try:
        lines = report_page.headlines(report)
    except KeyError as missing:
        print(f"the page and the README stay as they are: there is no figure of {missing.args[0]}")
        return False
    path = root / "docs" / "benchmarks.json"
    path.write_text(json_text(report), encoding="utf-8")
    report_page.draw(report, root / "docs" / "images")
    report_page.replace(root / "docs" / "benchmarks.md", report_page.generated(report))
    report_page.replace(root / "README.md", lines)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=BENCHES, metavar="NAME", help="of these")
    parser.add_argument("--runs", type=int, default=3, help="of each benchmark (default 3)")
    parser.add_argument("--quick", action="store_true", help="rough figures, and no page")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    options = parser.parse_args()
    report: dict[str, Any] = {}
    for path in (KEPT, REPORT):
        if path.exists():
            report = json.loads(path.read_text(encoding="utf-8"))
            break
    if not options.page:
        measured = measure(options.only or list(BENCHES), max(1, options.runs), options.quick)
        if options.quick:
            print(report_page.targets_table(measured))
            return
        report = merged(report, measured)
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json_text(report), encoding="utf-8")
    if publish(report):
        print(f"written: {REPORT.relative_to(ROOT)}, docs/benchmarks.md, README.md")


if __name__ == "__main__":
    with processes.guarded():  # a benchmark that is ended takes its servers along
        main()
