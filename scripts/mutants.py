"""Changes the package at random places, one at a time, and counts the changes that a test notices.

    python scripts/mutants.py --site build/mutants/site --sample 100 --seed 1

Cosmic Ray makes the mutants: it swaps operators, moves numbers by one, negates conditions, empties
loops and so on. In each room, places are drawn first and then one mutant of each place, so that an
operator with ten replacements weighs no more than a number with two. The tests that run a mutant's
statement judge it, in a copy of the installed package: the quickest first, as many as fit into
`--seconds`, and one of each function before the others of its parameters. A test kills a mutant if
it fails twice with the mutant and passes without it, so that a slow or unsteady test never counts
as one that noticed. The script fails if fewer than `--least` percent are killed in a room. Do not
edit tests while it runs.

Some mutants are not drawn, because a test could not or should not notice them:

- annotations, `@overload`, `TYPE_CHECKING`, `assert` and a TypedDict's `total=`, which only mypy
  reads;
- `is` against `==`, and `is not` against `!=`;
- `@functools.lru_cache`, with its size: the answers are the same without it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import itertools
import os
import queue
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOMS = {
    "limiter": [
        "limiter/loops.py",
        "limiter/clock.py",
        "limiter/limit.py",
        "limiter/limiter.py",
        "limiter/plan.py",
        "limiter/replay.py",
        "limiter/waiting/slot.py",
        "limiter/stats.py",
        "limiter/waiting/queue.py",
    ],
    "web": ["web/*.py", "keys.py", "refusals.py", "asgi.py", "wsgi.py"],
}
# The groups run at the same time. Only the last one needs Redis, which reaches the asynchronous
# paths of a limiter; its tests also run last for each mutant.
TESTS = [
    ["tests/python/integrations"],
    [
        "tests/python/limiter",
        "tests/python/web",
        "tests/python/observability",
        "tests/python/quotas",
        "tests/python/rules",
        "tests/property",
        "tests/conformance",
    ],
    [
        "tests/redis/test_busy_loop.py::test_a_loop_without_descriptors_degrades_and_recovers",
        "tests/redis/test_one_client.py",
        "tests/redis/test_redis_async.py",
        "tests/redis/test_redis_charge.py",
        "tests/redis/test_redis_charge_up_to.py",
        "tests/redis/test_redis_lifespan.py",
        "tests/redis/test_redis_plan.py",
        "tests/redis/test_redis_quotas.py",
        "tests/redis/test_redis_refunds_web.py",
        "tests/redis/test_redis_refusals.py",
        "tests/redis/test_redis_store.py",
        "tests/redis/test_redis_web.py",
    ],
]
INDISTINCT = {
    "core/ReplaceComparisonOperator_Eq_Is",
    "core/ReplaceComparisonOperator_Is_Eq",
    "core/ReplaceComparisonOperator_NotEq_IsNot",
    "core/ReplaceComparisonOperator_IsNot_NotEq",
}
SEED = ("--hypothesis-seed=0",)
# The time for one test and for all tests of one mutant, in seconds. A mutant that loops for ever
# is killed then.
TEST_TIMEOUT = 60
MUTANT_TIMEOUT = 600


@dataclass(frozen=True)
class Mutant:
    module: str  # below tidegate/
    line: int
    operator: str
    occurrence: int


# ------------------------------------------------------------------------- places


def statement_of(tree: ast.Module, line: int) -> ast.stmt | None:
    """The innermost statement that has `line`."""
    around = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    )
    return max(around, key=lambda node: node.lineno, default=None)


def lines_of(statement: ast.stmt) -> range:
    """The lines of a statement; of a compound one, those of its head."""
    body = getattr(statement, "body", None)
    end = body[0].lineno - 1 if body else statement.end_lineno
    return range(statement.lineno, max(end or 0, statement.lineno) + 1)


def runs_at_import(tree: ast.Module, statement: ast.stmt) -> bool:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return not any(
        isinstance(node, functions)
        and node is not statement
        and node.lineno <= statement.lineno <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )


def left_out(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.AnnAssign, ast.arg)):
            if node.annotation is not None:
                yield node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (node.returns,) if node.returns is not None else ()
            for decorator in node.decorator_list:
                if ast.unparse(decorator).startswith(("functools.lru_cache", "overload")):
                    yield decorator
        elif (
            isinstance(node, ast.Assert)
            or (isinstance(node, ast.keyword) and node.arg == "total")
            or (
                isinstance(node, (ast.Assign, ast.If))
                and ast.unparse(node).startswith(("TYPE_CHECKING =", "if TYPE_CHECKING:"))
            )
        ):
            yield node


def mutants_of(module: str, source: str) -> Iterator[list[Mutant]]:
    """The mutants of a module, by place."""
    tree = ast.parse(source)
    spans = [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in left_out(tree)
    ]
    places = defaultdict(list)
    nodes = list(ast_nodes(get_ast(source)))
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments() or name in INDISTINCT:
            continue
        positions = itertools.chain.from_iterable(map(operator().mutation_positions, nodes))
        for occurrence, (start, end) in enumerate(positions):
            # A decorator's position begins with its @.
            if any(first <= (start[0], start[1] + 1) and start < last for first, last in spans):
                continue
            places[start, end].append(Mutant(module, start[0], name, occurrence))
    yield from (places[place] for place in sorted(places))


def sample_of(site: Path, room: str, size: int, seed: int) -> tuple[list[Mutant], int]:
    """Mutants of a room, and the number of their places."""
    package = site / "tidegate"
    modules = sorted({path for each in ROOMS[room] for path in package.glob(each)})
    places = [
        place
        for path in modules
        for place in mutants_of(str(path.relative_to(package)), path.read_text("utf-8"))
    ]
    draw = random.Random(seed)
    chosen = draw.sample(places, min(size, len(places)))
    return [draw.choice(place) for place in chosen], len(places)


# -------------------------------------------------------------------------- tests


def environment(*folders: Path) -> dict[str, str]:
    path = os.pathsep.join(str(folder.resolve()) for folder in folders)
    return {**os.environ, "PYTHONPATH": path}


def pytest(*arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "-q", "-o", f"timeout={TEST_TIMEOUT}"),
        # Its import takes a third of the start of pytest, and no test uses it.
        *("-p", "no:faker", *arguments),
    ]


def run_all_tests(site: Path, tools: Path, work: Path) -> None:
    """Notes which tests run which lines, and how long they take."""
    env = environment(site, tools)
    runs = [
        subprocess.Popen(
            pytest(
                *("-p", "pytest_cov", f"--cov={site / 'tidegate'}", "--cov-context=test"),
                *("--cov-report=", "-o", "junit_family=xunit1", *SEED),
                *(f"--junit-xml={work}/{number}.xml", *tests),
            ),
            env={**env, "COVERAGE_FILE": f"{work}/{number}.coverage"},
        )
        for number, tests in enumerate(TESTS)
    ]
    statuses = [run.wait() for run in runs]
    failed = [test for n in range(len(runs)) for test in failures_in(work / f"{n}.xml")]
    # Once more and alone: a test may be too slow under coverage, on a busy machine.
    passed = not any(statuses) or (
        {*statuses} <= {0, 1} and failed and passes(pytest(*SEED, *failed), environment(site))
    )
    if not passed:
        sys.exit(f"there are no mutants to judge where tests fail without them: {failed}")


class TestMap:
    """Which tests run which lines, and how long they take, as recorded by run_all_tests()."""

    def __init__(self, site: Path, work: Path) -> None:
        self._seconds: dict[str, float] = {}
        self._tests: dict[tuple[str, int], set[str]] = defaultdict(set)
        for number in range(len(TESTS)):
            self._read_times(work / f"{number}.xml")
            self._read_lines(work / f"{number}.coverage", site)

    def _read_times(self, path: Path) -> None:
        for case in ElementTree.parse(path).iter("testcase"):
            self._seconds[f"{case.get('file')}::{case.get('name')}"] = float(case.get("time", 0))

    def _read_lines(self, path: Path, site: Path) -> None:
        package = (site / "tidegate").resolve()
        with sqlite3.connect(path) as database:
            rows = database.execute(
                "select file.path, context.context, numbits from line_bits"
                " join file on file.id = file_id join context on context.id = context_id"
            )
            for file, context, bits in rows:
                module = str(Path(file).relative_to(package))
                for byte, bit in itertools.product(range(len(bits)), range(8)):
                    if bits[byte] >> bit & 1:
                        self._tests[module, 8 * byte + bit].add(context.partition("|")[0])

    def of(self, module: str, lines: range, at_import: bool, seconds: float) -> list[str]:
        """The quickest tests that run any of these lines, first one of each test function.

        The tests of code that runs in a forked process are unknown, so any test that runs a line
        of the module is chosen. For code that runs at import, any test at all is chosen; tests
        that run a line of the module come first, and tests that run no line, which look at what
        was defined.
        """
        near: set[str] = set().union(
            *(tests for (name, _), tests in self._tests.items() if name == module)
        )
        found = set().union(*(self._tests.get((module, line), ()) for line in lines))
        if at_import or "" in found:
            found = set(self._seconds)
            near |= found - set().union(*self._tests.values())
        elif not found:
            found = near

        runs_before: dict[str, int] = defaultdict(int)  # of the same function
        places = {}
        for test in sorted(found, key=self._time_of):
            function = test.partition("[")[0]
            places[test] = runs_before[function]
            runs_before[function] += 1

        def order_of(test: str) -> tuple[bool, bool, int, float, str]:
            needs_redis = test.startswith("tests/redis/")
            return needs_redis, test not in near, places[test], self._time_of(test), test

        chosen: list[str] = []
        for test in sorted(found - {""}, key=order_of):
            seconds -= self._time_of(test)
            if chosen and seconds < 0:
                break
            chosen.append(test)
        return chosen

    def _time_of(self, test: str) -> float:
        return self._seconds.get(name_in_report(test), 1.0)


# ------------------------------------------------------------------------ judging


def passes(command: list[str], env: dict[str, str]) -> bool:
    process = subprocess.Popen(
        command,
        env=env,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return process.wait(MUTANT_TIMEOUT) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass
class Judge:
    """Judges mutants in copies of `site`, several at a time."""

    site: Path
    tests: TestMap
    work: Path
    seconds: float
    jobs: int

    def survivors(self, mutants: list[Mutant]) -> list[str]:
        """The mutants that no test notices, as diffs."""
        waiting: queue.Queue[Mutant] = queue.Queue()
        for mutant in mutants:
            waiting.put(mutant)
        found: list[str] = []

        def work_off(number: int) -> None:
            copy = self.work / f"site-{number}"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.site, copy)
            with contextlib.suppress(queue.Empty):
                while True:
                    diff = self._survives(waiting.get_nowait(), copy)
                    if diff is not None:
                        found.append(diff)

        workers = [threading.Thread(target=work_off, args=(n,)) for n in range(self.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return found

    def _survives(self, mutant: Mutant, copy: Path) -> str | None:
        path = copy / "tidegate" / mutant.module
        source = path.read_text("utf-8")
        changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
        tree = ast.parse(source)
        statement = statement_of(tree, mutant.line)
        lines = lines_of(statement) if statement is not None else range(0)
        at_import = statement is not None and runs_at_import(tree, statement)
        tests = self.tests.of(mutant.module, lines, at_import, self.seconds)
        started = time.monotonic()
        killers = self._killers(tests, copy, path, source, changed)
        verdict = "killed" if killers else "SURVIVED"
        print(
            f"{verdict:8} {time.monotonic() - started:5.1f} s {len(tests):4} tests"
            f"  {mutant.module}:{mutant.line}  {mutant.operator}"
            + (f"\n           by {killers[0]}" if len(killers) == 1 else ""),
            flush=True,
        )
        return None if killers else diff_of(mutant, source, changed)

    def _killers(
        self, tests: list[str], copy: Path, path: Path, source: str, changed: str
    ) -> list[str]:
        """The tests that fail with the change, fail with it again, and pass without it."""
        tests = list(tests)
        while tests:
            path.write_text(changed, "utf-8")
            try:
                failed = self._failed(tests, copy)
                again = failed and self._failed(failed, copy)
            finally:
                path.write_text(source, "utf-8")
            if not failed:
                return []
            if again and not self._failed(failed, copy):
                return failed
            print(f"           not the mutant's failure: {failed}", flush=True)
            tests = [test for test in tests if test not in failed]
        return []

    def _failed(self, tests: list[str], copy: Path) -> list[str]:
        """The first of these tests to fail; a few of them if pytest ends before it runs one."""
        listed = self.work / f"{copy.name}.tests"
        listed.write_text("\n".join(tests), "utf-8")
        report = self.work / f"{copy.name}.xml"
        report.unlink(missing_ok=True)
        # Loading Hypothesis takes half of the start of pytest, and most tests do not need it.
        files = {test.partition("::")[0] for test in tests}
        is_given = any("hypothesis" in Path(file).read_text("utf-8") for file in files)
        arguments = (
            *(SEED if is_given else ("-p", "no:hypothesispytest")),
            *("-x", "-o", "junit_family=xunit1", f"--junit-xml={report}", f"@{listed}"),
        )
        # A compiled mutant has the size and the second of the module, and could be taken for it.
        env = {**environment(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        if passes(pytest(*arguments), env):
            return []
        names = set(failures_in(report))
        return [test for test in tests if name_in_report(test) in names] or tests[:20]


def failures_in(report: Path) -> Iterator[str]:
    """The tests that failed; none if pytest was killed before it wrote a report."""
    with contextlib.suppress(FileNotFoundError, ElementTree.ParseError):
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                yield f"{case.get('file')}::{case.get('name')}"


def name_in_report(test: str) -> str:
    """How a report names a test: without its class."""
    file, _, rest = test.partition("::")
    return f"{file}::{rest.rpartition('::')[2]}"


def diff_of(mutant: Mutant, source: str, changed: str) -> str:
    name = f"tidegate/{mutant.module}"
    texts = source.splitlines(), changed.splitlines()
    return "\n".join(difflib.unified_diff(*texts, name, mutant.operator, n=2, lineterm=""))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--site", type=Path, required=True, help="where the package is installed")
    parser.add_argument("--tools", type=Path, required=True, help="where pytest-cov is installed")
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS), choices=ROOMS)
    parser.add_argument("--sample", type=int, default=40, help="number of mutants in each room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=90, help="percent to be killed in each room")
    parser.add_argument("--seconds", type=float, default=30, help="of tests for one mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--same-tests", action="store_true", help="run the same lines as last time")
    options = parser.parse_args()
    work = options.site.resolve().parent
    if not options.same_tests:
        run_all_tests(options.site, options.tools, work)
    judge = Judge(options.site, TestMap(options.site, work), work, options.seconds, options.jobs)
    reports, all_enough = [], True
    for room in options.rooms:
        mutants, places = sample_of(options.site, room, options.sample, options.seed)
        survivors = judge.survivors(mutants)
        percent = 100 * (1 - len(survivors) / len(mutants))
        all_enough = all_enough and percent >= options.least
        for diff in survivors:
            print(f"\nsurvives in the {room} room:\n{diff}")
        reports.append(
            f"{room}: {percent:.1f} % of {len(mutants)} mutants are killed, drawn from {places}"
            f" places with seed {options.seed}; expected {options.least:g} %"
        )
    print("", *reports, sep="\n")
    return 0 if all_enough else 1


if __name__ == "__main__":
    sys.exit(main())
