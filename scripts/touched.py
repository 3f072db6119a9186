"""Builds and runs the tests nearest to what was changed, for the loop of editing and testing.

    make touched                 # since the last commit
    make touched SINCE=main~3    # since another one
    make touched SECONDS=60      # for longer

C++ tests run from build/quick, which `make quick` has made. Python tests run in the order of their
nearness, and no further one begins once `--seconds` have passed. It is no substitute for
`make test`: scripts/nearest.py guesses.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nearest import ROOT, nearest, suites

BUILD = ROOT / "build" / "quick"
DOCUMENTS = "tests/codebase/test_documents.py"
REPOSITORY = "tests/codebase/test_repository.py"
EXTENSIONS = "tidegate_extensions"
_CODE = ("cpp/", "lua/", "python/")


def changed_since(revision: str) -> list[str]:
    """Returns the files that differ from `revision`, those that git does not know yet included."""
    names = _git("diff", "--name-only", "--no-renames", "-z", revision)
    return sorted({*names, *_git("ls-files", "--others", "--exclude-standard", "-z")})


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"git {arguments[0]} failed; expected a revision that it knows")
    return [name for name in done.stdout.decode().split("\0") if name]


def tests_of(changed: list[str]) -> tuple[list[str], list[str]]:
    """Returns the sources of C++ tests and the arguments of pytest for changed files."""
    ranked: list[list[str]] = []
    for name in sorted(changed, key=lambda name: name.startswith(_CODE), reverse=True):
        if name.endswith(".md"):
            ranked.append([f"{DOCUMENTS}::test_its_links_lead_somewhere[{name}]"])
            if "```python" in _text(name) and "migrate" not in name:
                ranked.append([f"{DOCUMENTS}::test_its_code_runs[{name}]"])
        elif name.startswith((*_CODE, "tests/")):
            ranked.append([test for test in nearest(name) if (ROOT / test).exists()])
        else:
            ranked.append([REPOSITORY])
    # The nearest of each file, then the second ones.
    rounds = max(map(len, ranked), default=0)
    every = [tests[i] for i in range(rounds) for tests in ranked if i < len(tests)]
    every = list(dict.fromkeys(every))
    return (
        [test for test in every if test.endswith(".cc")],
        [test for test in every if not test.endswith(".cc")],
    )


def _text(name: str) -> str:
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def programs_of(sources: list[str]) -> dict[str, list[str]]:
    """Returns the program of build/quick that holds each source, with the suites to run."""
    listed = (BUILD / "compile_commands.json").read_text(encoding="utf-8")
    programs: dict[str, list[str]] = {}
    for command in json.loads(listed):
        for source in sources:
            if Path(command["file"]) == ROOT / source:
                program = re.findall(r"CMakeFiles/(\w+)\.dir/", command["command"])[-1]
                programs.setdefault(program, []).extend(suites(_text(source)))
    return programs


def run_cpp(sources: list[str]) -> int:
    """Builds and runs what C++ tests `sources` have. Returns the exit status."""
    programs = programs_of(sources)
    if not programs:
        return 0
    if status := build(*programs):
        return status
    for program, names in programs.items():
        # Instances are named before suites with parameters, and types after suites with types.
        patterns = [f"{name}.*:*/{name}.*:{name}/*:*/{name}/*" for name in names]
        (executable,) = [path for path in BUILD.rglob(program) if os.access(path, os.X_OK)]
        chosen = f"--gtest_filter={':'.join(patterns)}"
        status = status or run([str(executable), "--gtest_brief=1", chosen])
    return status


def run_python(tests: list[str], seconds: float) -> int:
    """Runs the nearest of some tests for some seconds. Returns the exit status."""
    options = ["--quiet", "--no-header"]
    if importlib.util.find_spec("xdist"):
        options.append("-n0")
    if not any("hypothesis" in _text(test.partition("::")[0]) for test in tests):
        options += ["-p", "no:hypothesispytest"]  # which takes half a second to import
    os.chdir(ROOT)
    return int(pytest.main([*options, *tests], plugins=[Bound(seconds)]))


def build(*targets: str) -> int:
    return run(["cmake", "--build", str(BUILD), "--target", *targets])


def run(command: list[str]) -> int:
    began = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(f"{Path(command[0]).name}: {time.monotonic() - began:.1f} s", flush=True)
    return status


class Bound:
    """A plugin of pytest that begins no further test once some seconds have passed.

    The nearest file is always collected, and its tests get half of the seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._half = seconds / 2
        self._runs = False
        self._is_first = True
        self._left = 0
        self._left_files = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> pytest.CollectReport | None:
        if not isinstance(collector, pytest.Module):
            return None
        if self._is_first or time.monotonic() < self._until - self._half:
            self._is_first = False
            return None
        self._left_files += 1
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def pytest_runtest_protocol(self) -> bool | None:
        now = time.monotonic()
        if not self._runs:
            self._runs = True
            self._until = max(self._until, now + self._half)
        if now < self._until:
            return None
        self._left += 1
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left or self._left_files:
            terminalreporter.write_line(
                f"{self._left} tests and {self._left_files} files that are near were left out for "
                "want of time; SECONDS=60 takes longer"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--since", default="HEAD", metavar="REVISION")
    parser.add_argument("--seconds", type=float, default=2.0, help="of Python tests")
    parser.add_argument("--list", action="store_true", help="name the tests, and run none")
    options = parser.parse_args()
    changed = changed_since(options.since)
    if not changed:
        print(f"nothing differs from {options.since}")
        return 0
    cpp, python = tests_of(changed)
    print("\n".join([*cpp, *python]), flush=True)
    if options.list:
        return 0
    compiled = any(name.startswith(("python/bindings/", "lua/")) for name in changed)
    if (cpp or compiled) and not (BUILD / "compile_commands.json").exists():
        sys.exit(f"{BUILD.relative_to(ROOT)} has no build; expected `make quick` to have been run")
    status = run_cpp(cpp) if cpp else 0
    if python:
        if compiled:
            status = status or build(EXTENSIONS)
        status = status or run_python(python, options.seconds)
    return status


if __name__ == "__main__":
    sys.exit(main())
