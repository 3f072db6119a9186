"""Finds the tests that are nearest to a file of this repository.

A test is near a file if it imports or includes it, directly or through few others; if the rare
words of both paths are the same; and if commits have changed both. All are guesses: the whole run
is what has to pass.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections import defaultdict
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# How many files of tests are near one file.
MOST = 6
# How far an import or an include reaches.
_FARTHEST = 8
_DULL = {"python", "cpp", "src", "include", "tidegate", "tests", "test", "bindings", "init"}
# The tests of what everything rests on, where no test is near.
_FIRST = {
    "cpp/": "tests/cpp/memory_store_test.cc",
    "python/": "tests/python/limiter/test_limiter.py",
}
# What files of a kind are about.
_SUBJECTS = {".pyi": "stub", ".lua": "redi"}

_FROM = re.compile(r"^[ \t]*from ([\w.]+) import (?:\(([^)]*)\)|([^\n#]*))", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import ([\w.]+)", re.MULTILINE)
_USED = re.compile(r"\b(?:tidegate|tg)\.([A-Za-z]\w*)")
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_SUITE = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+)", re.MULTILINE)


def nearest(changed: str, root: Path = ROOT) -> list[str]:
    """Returns the files of tests that are nearest to `changed`, the nearest first.

    All paths are relative to `root`. C++ sources have C++ tests, all others Python tests.
    """
    graph = _cpp(root) if changed.startswith(("cpp/", "tests/cpp/")) else _python(root)
    if changed in graph.tests:
        return [changed]
    distances = graph.distances(_twins(changed, graph))
    together = _changed_together(changed, root)
    words = _words(changed) | {_SUBJECTS[each] for each in _SUBJECTS if changed.endswith(each)}
    scores = {}
    for test in graph.tests:
        shared = sum(graph.rarity[word] for word in words & _words(test))
        near = 6 / distances[test] if test in distances else 0.0
        named = 4 if _words(Path(test).name) == _words(Path(changed).name) else 0
        scores[test] = 2 * shared + named + near + 2 * min(together.get(test, 0.0), 2.0)
    ranked = sorted((test for test in scores if scores[test] > 0), key=lambda t: (-scores[t], t))
    if not ranked:
        return [test for part, test in _FIRST.items() if changed.startswith(part)]
    return [test for test in ranked[:MOST] if scores[test] >= scores[ranked[0]] / 2]


def suites(source: str) -> list[str]:
    """Returns the names of GoogleTest's suites in the text of a test."""
    return sorted(set(_SUITE.findall(source)))


class _Graph:
    """Files, what each imports or includes, and which of them are tests."""

    def __init__(self, uses: dict[str, set[str]], tests: set[str]) -> None:
        self.tests = tests
        self.files = set(uses)
        self._users: dict[str, set[str]] = defaultdict(set)
        for user, used in uses.items():
            for each in used:
                self._users[each].add(user)
        counts: dict[str, int] = defaultdict(int)
        for test in tests:
            for word in _words(test):
                counts[word] += 1
        self.rarity = defaultdict(float, {w: math.log(len(tests) / n) for w, n in counts.items()})

    def distances(self, sources: set[str]) -> dict[str, int]:
        """Returns how many steps it takes from each user of `sources` to one of them."""
        found = dict.fromkeys(sources, 0)
        waiting = list(sources)
        for each in waiting:
            if found[each] < _FARTHEST:
                for user in self._users[each] - found.keys():
                    found[user] = found[each] + 1
                    waiting.append(user)
        return found


@cache
def _words(path: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9]+", str(Path(path).with_suffix("")).lower())
    return frozenset(word.removesuffix("s") for word in words) - _DULL


def _twins(changed: str, graph: _Graph) -> set[str]:
    """Returns `changed`, and the header of a source or the modules beside a file of data."""
    path = Path(changed)
    same = {changed, str(path.with_suffix(".h")), str(path.with_suffix(".py"))}
    same.add(f"cpp/include/tidegate/{path.stem}.h")
    if path.suffix not in {".py", ".pyi", ".cc", ".h"}:
        same |= {each for each in graph.files if Path(each).parent == path.parent}
    return same & graph.files


def _changed_together(changed: str, root: Path) -> dict[str, float]:
    """Returns how often commits changed each file with `changed`; large commits say little."""
    log = ["git", "log", "-n", "60", "--full-diff", "--name-only", "--format=%x00", "--", changed]
    done = subprocess.run(log, cwd=root, stdout=subprocess.PIPE, check=False, text=True)
    together: dict[str, float] = defaultdict(float)
    for commit in done.stdout.split("\0"):
        names = commit.split()
        for name in names:
            together[name] += min(1.0, 4 / len(names))
    return together


@lru_cache(maxsize=1)
def _cpp(root: Path) -> _Graph:
    files = [p for part in ("cpp", "tests/cpp") for p in (root / part).rglob("*.*")]
    texts = {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in {".h", ".cc"}
    }
    uses = {}
    for name, text in texts.items():
        folders = (f"{Path(name).parent}", "cpp/include", "cpp/core", "cpp", "tests/cpp")
        uses[name] = {
            f"{folder}/{included}"
            for included in _INCLUDE.findall(text)
            for folder in folders
            if f"{folder}/{included}" in texts
        }
    for name in texts:
        # Who includes the header uses the source.
        stem = Path(name).stem
        for header in (str(Path(name).with_suffix(".h")), f"cpp/include/tidegate/{stem}.h"):
            if name.endswith(".cc") and header in texts:
                uses[header].add(name)
    tests = {name for name in texts if re.fullmatch(r"tests/cpp/\w+_test\.cc", name)}
    return _Graph(uses, tests)


@lru_cache(maxsize=1)
def _python(root: Path) -> _Graph:
    texts = {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for part in ("python/tidegate", "tests")
        for path in (root / part).rglob("*.py")
    }
    modules = {_module(name): name for name in texts}
    imports = {name: _imports(text) for name, text in texts.items()}
    uses = {}
    for name, found in imports.items():
        used = {_definer(module, each, modules, imports) for module, each in found}
        conftest = f"{Path(name).parent}/conftest.py"
        if name.startswith("tests/") and conftest in texts:
            used.add(conftest)
        uses[name] = {each for each in used if each} - {name}
    tests = {name for name in texts if Path(name).name.startswith("test_")}
    return _Graph(uses, tests)


def _module(name: str) -> str:
    """Returns what `name` is imported as. Helpers of tests are imported by their stem."""
    path = Path(name)
    if path.parts[0] == "tests":
        return path.stem
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(text: str) -> set[tuple[str, str]]:
    """Returns modules with the names that are taken from them; no name stands for the module."""
    found = {(module, "") for module in _IMPORT.findall(text)}
    for module, several, line in _FROM.findall(text):
        for each in re.findall(r"(\w+)(?: as \w+)?", several or line):
            found.add((module, each))
    if ("tidegate", "") in found:
        found.remove(("tidegate", ""))
        found |= {("tidegate", name) for name in _USED.findall(text)}
    return found


def _definer(
    module: str, name: str, modules: dict[str, str], imports: dict[str, set[tuple[str, str]]]
) -> str | None:
    """Returns the file that defines a name of a module, past modules that only pass it on."""
    if name and f"{module}.{name}" in modules:
        return modules[f"{module}.{name}"]
    file = modules.get(module)
    if file is not None and name and file.startswith("python/"):
        for source, passed in imports[file]:
            if passed == name and source.startswith("tidegate") and source != module:
                return _definer(source, name, modules, imports)
    return file
