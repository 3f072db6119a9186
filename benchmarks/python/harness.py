"""Helpers that the Python benchmarks share: interleaved rounds, tables, targets, JSON.

Subjects are timed in rounds, each once a round, so that a machine that slows down slows all of
them. Every figure is a median over the rounds, and only ratios taken within one run mean anything.

No target is asserted: a missed target is printed as missed and the exit code stays 0, because a
busy machine is not a defect.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HOT_KEYS = 1_000
_BLOCK_NS = 10_000_000
_MIN_CALLS = HOT_KEYS
_MAX_CALLS = 200_000
_SETTLE_S = 0.05

# What this process has printed, for the JSON from which benchmarks/report.py makes a page.
_printed: dict[str, list[Any]] = {"tables": [], "targets": []}

# Compiled once for each subject, like timeit: every name is a local variable and the loop has only
# the call that a user would write.
_TEMPLATE = """
def time_loop(keys, _clock, {names}):
    _start = _clock()
    for key in keys:
        {call}
    return _clock() - _start

def time_once(keys, _clock, {names}):
    _start = _clock()
    {call}
    return _clock() - _start

def call_once(key, keys, {names}):
    return {call}
"""


@dataclass
class Subject:
    """One line of a table: an expression over `key` (or over `keys`, if batched)."""

    name: str
    call: str
    names: Mapping[str, Any] = field(default_factory=dict)
    peer: str = "tidegate"
    group: str = ""
    keys: Sequence[str] | None = None
    batch: bool = False
    verdict: Callable[[Any], bool] | None = None


@dataclass
class Row:
    """The figures of one subject. Times are nanoseconds per call (or per key)."""

    name: str
    peer: str
    group: str
    ns: float
    best_ns: float
    worst_ns: float
    calls: int
    rounds: int
    allowed: float | None


@dataclass
class Target:
    """A figure with the bound that it should reach."""

    what: str
    value: float
    bound: float
    at_least: bool = True
    unit: str = "x"
    note: str = ""

    @property
    def reached(self) -> bool:
        """Whether the figure reaches its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


class _Runner:
    """A prepared subject: its compiled loop and the number of calls in a block."""

    def __init__(self, subject: Subject, hot_keys: Sequence[str], block_ns: int) -> None:
        self.subject = subject
        scope: dict[str, Any] = {}
        names = ", ".join(subject.names) or "_nothing=None"
        exec(_TEMPLATE.format(names=names, call=subject.call), scope)
        self._once = scope["call_once"]
        self._keys: Sequence[str] = subject.keys if subject.keys is not None else hot_keys
        self._timed = scope["time_once" if subject.batch else "time_loop"]
        self.samples: list[float] = []
        if subject.keys is None and not subject.batch:
            self._keys = self._block(hot_keys, block_ns)

    def _block(self, hot_keys: Sequence[str], block_ns: int) -> Sequence[str]:
        """Returns so many hot keys that they take about `block_ns`."""
        probe = min(self._time(hot_keys) for _ in range(2))
        calls = min(max(block_ns * len(hot_keys) // max(probe, 1), _MIN_CALLS), _MAX_CALLS)
        times = max(1, round(calls / len(hot_keys)))
        return [*hot_keys] * times

    def _time(self, keys: Sequence[str]) -> int:
        return int(self._timed(keys, time.perf_counter_ns, **self.subject.names))

    @property
    def calls(self) -> int:
        return len(self._keys)

    def run(self) -> float:
        if not self.subject.batch:
            # The subject before has filled the caches; this pass makes the keys hot.
            self._time(self._keys[:HOT_KEYS])
        return self._time(self._keys) / self.calls

    def allowed(self) -> float | None:
        """Returns the share of one more pass over some keys that is allowed."""
        verdict = self.subject.verdict
        if verdict is None:
            return None
        keys = self._keys[:HOT_KEYS]
        passed = sum(verdict(self._once(k, None, **self.subject.names)) for k in keys)
        return passed / len(keys)


def _settle() -> None:
    """Waits until no timer that a peer left behind can run while another subject is timed."""
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        if not any(isinstance(thread, threading.Timer) for thread in threading.enumerate()):
            return
        time.sleep(_SETTLE_S / 20)


def hot_keys(count: int = HOT_KEYS) -> list[str]:
    """Returns the keys of `count` users."""
    return [f"user:{i}" for i in range(count)]


def measure(subjects: Sequence[Subject], rounds: int, *, quick: bool = False) -> list[Row]:
    """Times every subject once in each of `rounds` rounds."""
    keys = hot_keys()
    block_ns = _BLOCK_NS // 5 if quick else _BLOCK_NS
    runners = [_Runner(subject, keys, block_ns) for subject in subjects]
    collecting = gc.isenabled()
    try:
        for _ in range(rounds):
            gc.collect()
            gc.disable()
            for runner in runners:
                _settle()
                runner.samples.append(runner.run())
    finally:
        if collecting:
            gc.enable()
    return [
        Row(
            name=r.subject.name,
            peer=r.subject.peer,
            group=r.subject.group,
            ns=statistics.median(r.samples),
            best_ns=min(r.samples),
            worst_ns=max(r.samples),
            calls=r.calls,
            rounds=rounds,
            allowed=r.allowed(),
        )
        for r in runners
    ]


def print_table(title: str, headers: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Prints a table whose first column is text and whose others are numbers."""
    _printed["tables"].append(
        {"title": title, "headers": list(headers), "lines": [list(line) for line in lines]}
    )
    _put_table(title, headers, lines)


def _put_table(title: str, headers: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(headers, *lines, strict=True)]

    def put(cells: Sequence[str]) -> None:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        print("  ".join([first, *rest]).rstrip())

    print(f"\n{title}")
    put(headers)
    put(["-" * width for width in widths])
    for line in lines:
        put(line)


def print_rows(title: str, rows: Sequence[Row], base: Row | None) -> None:
    """Prints rows with their ratio to `base`."""
    lines = [
        [
            row.name,
            f"{row.ns:,.1f}",
            f"{row.best_ns:,.1f}",
            f"{row.ns / base.ns:,.2f}x" if base else "-",
            "-" if row.allowed is None else f"{row.allowed:.0%}",
        ]
        for row in rows
    ]
    ratio = f"x {base.name}" if base else "ratio"
    print_table(title, ["", "ns/call", "best", ratio, "allowed"], lines)


def print_targets(targets: Sequence[Target]) -> None:
    """Prints each target, its figure, and whether the figure reaches the target."""
    if not targets:
        return
    _printed["targets"] += targets
    lines = [
        [
            target.what,
            f"{target.value:,.2f}{target.unit}",
            f"{'>=' if target.at_least else '<='} {target.bound:g}{target.unit}",
            "reached" if target.reached else "MISSED",
        ]
        for target in targets
    ]
    _put_table("Targets", ["", "measured", "target", ""], lines)
    for note in dict.fromkeys(target.note for target in targets if target.note):
        print(f"  {note}")


def arguments(description: str, *, rounds: int, quick_rounds: int) -> argparse.ArgumentParser:
    """Returns a parser with the options that most benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, help=f"rounds (default {rounds})")
    parser.add_argument("--quick", action="store_true", help="less of everything, rougher figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    parser.set_defaults(default_rounds=rounds, quick_rounds=quick_rounds)
    return parser


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the options, once tidegate is imported and what measures it is printed."""
    options = parser.parse_args()
    load_tidegate()
    print_interpreter()
    return options


def rounds_of(options: argparse.Namespace) -> int:
    """Returns the number of rounds that the options ask for."""
    if options.rounds is not None:
        return max(1, int(options.rounds))
    return int(options.quick_rounds if options.quick else options.default_rounds)


def optional(module: str) -> Any | None:
    """Imports a module, or returns None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def skipped(what: str, *programs: str) -> bool:
    """Whether one of the programs is missing; then it prints that `what` is skipped, and why."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        print(f"{what}: skipped, there is no {' and no '.join(missing)}")
    return bool(missing)


@contextlib.contextmanager
def server_process(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[tuple[int, int]]:
    """The port and the process of a server that prints its port, and ends when its input does."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
            process.stdin.close()
            process.wait(60)
        finally:
            process.kill()


def load_tidegate(*, required: bool = True) -> Any | None:
    """Imports tidegate; if that fails, prints what to do and exits."""
    try:
        return importlib.import_module("tidegate")
    except ImportError as error:
        if not required:
            return None
        sys.exit(
            f"cannot import tidegate: {error}\n"
            "Build it first (pip install . in the repository's root), and run this with the "
            "interpreter that it was installed for."
        )


def is_optimized_build() -> bool | None:
    """Whether this interpreter was built with profile-guided optimization, if known."""
    arguments_given = sysconfig.get_config_var("CONFIG_ARGS")
    return None if arguments_given is None else "--enable-optimizations" in str(arguments_given)


def print_interpreter() -> None:
    """Prints the interpreter and the machine that the figures are measured with."""
    built = {True: "profile-guided build", False: "not a profile-guided build", None: "?"}
    print(
        f"{platform.python_implementation()} {platform.python_version()} "
        f"({built[is_optimized_build()]}), {platform.machine()}, {os.cpu_count()} cores"
    )


def version(distribution: str) -> str | None:
    """Returns the installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def resident_bytes() -> int:
    """Returns the resident set size of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        import resource

        # Without /proc there is only the peak, which suffices for a process that grows.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def write_json(path: Path | None, bench: str, figures: Mapping[str, Any]) -> None:
    """Writes `figures`, with the interpreter and the machine of the run, to `path`."""
    if path is None:
        return
    document: dict[str, Any] = {
        "bench": bench,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "optimized_build": is_optimized_build(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "printed": _printed,
        **figures,
    }

    def plain(value: Any) -> Any:
        if isinstance(value, Target):
            return {**asdict(value), "reached": value.reached}
        if isinstance(value, Row):
            return asdict(value)
        raise TypeError(f"cannot write {type(value).__name__} as JSON")

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, default=plain) + "\n", encoding="utf-8")
    print(f"\nwritten to {path}")


def report(
    path: Path | None, bench: str, figures: Mapping[str, Any], targets: Sequence[Target]
) -> None:
    """Prints the targets, and writes them to `path` with the figures."""
    print_targets(targets)
    write_json(path, bench, {**figures, "targets": targets})


def in_child(program: str, task: str, *given: Any) -> Any:
    """Runs a task of a benchmark in a fresh interpreter, which gets ``--child``; its result."""
    command = [sys.executable, program, "--child", json.dumps([task, *given])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{task} {given} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
