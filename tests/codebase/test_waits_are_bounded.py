"""Tests wait for other threads and processes with eventually(), which has a bound, and for the
answers of servers for longer than a loaded machine takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

# The statements of loops that only wait.
PYTHON_IDLE = re.compile(r"pass|\.\.\.|(?:await )?(?:\w+\.)*(?:sleep|sched_yield)\(.*\)")
_CPP_CALL = r"[\w:]*(?:[Ss]leep|yield)\w*\([^;]*\);"
CPP_IDLE = re.compile(rf"\s*(?:;|{_CPP_CALL}|\{{\s*(?:{_CPP_CALL}\s*)?\}})")
# The helpers themselves, and the process that waits for the end of the run.
HELPERS = {"polling.py", "testing.h", "undertaker.py"}


def python_waits(text: str) -> list[str]:
    """The `while` loops that do nothing but wait, in programs inside strings too."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = []
    for number, line in enumerate(lines):
        header = re.fullmatch(r"( *)while (.*):", line.partition("  #")[0])
        if header is None:
            continue
        body = []
        for below in lines[number + 1 :]:
            if len(below) - len(below.lstrip()) <= len(header[1]):
                break
            body.append(below.strip().partition("  #")[0])
        if all(map(PYTHON_IDLE.fullmatch, body)):
            found.append(header[2])
    return found


def cpp_waits(text: str) -> list[str]:
    found = []
    for header in re.finditer(r"^ *while \(", text, re.MULTILINE):
        depth, end = 1, header.end()
        while depth > 0:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if CPP_IDLE.match(text, end):
            found.append(text[header.end() : end - 1])
    return found


def is_bounded(condition: str) -> bool:
    # An exchange that fails has met another thread that succeeded.
    return re.search(r"deadline|compare_exchange", condition) is not None


@pytest.mark.parametrize(
    ("waits", "text", "found"),
    [
        (python_waits, "while a():\n    pass\nb()\n", ["a()"]),
        (python_waits, "  while a():\n\n    await asyncio.sleep(0)  # why\n  b()\n", ["a()"]),
        (python_waits, "while a():\n    b()\n    time.sleep(1)\n", []),
        (cpp_waits, "  while (a(b)) std::this_thread::yield();", ["a(b)"]),
        (cpp_waits, "while (a) {\n  absl::SleepFor(absl::Seconds(1));\n}", ["a"]),
        (cpp_waits, "while (a) {\n}\nwhile (b);\nwhile (c) {\n  d();\n}", ["a", "b"]),
    ],
)
def test_loops_that_only_wait_are_found(waits, text: str, found: list[str]) -> None:
    assert waits(text) == found


def test_no_test_waits_without_a_bound() -> None:
    unbounded = []
    for path in sorted(TESTS.rglob("*")):
        if path.suffix not in {".py", ".cc", ".h"} or path.name in {*HELPERS, Path(__file__).name}:
            continue
        text = path.read_text(encoding="utf-8")
        for condition in (python_waits if path.suffix == ".py" else cpp_waits)(text):
            if not is_bounded(condition):
                unbounded.append(f"{path.relative_to(TESTS)}: while {condition}")
    assert unbounded == [], "expected eventually() of polling.py, or of testing.h"


def impatient_calls(text: str) -> list[str]:
    """The calls of httpx that leave it the usual 5 s."""
    found = []
    for call in re.finditer(r"httpx\.(?:get|post|put|delete|Client|AsyncClient)\(", text):
        depth, end = 1, call.end()
        while depth > 0:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        # A transport is an application in this process.
        if not re.search(r"\b(?:timeout|transport)=", text[call.end() : end]):
            found.append(text[call.start() : end])
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("httpx.get(url(1))", ["httpx.get(url(1))"]),
        ("httpx.Client(http2=True)", ["httpx.Client(http2=True)"]),
        ("httpx.get(url(1), timeout=60)", []),
        ("httpx.AsyncClient(transport=transport)", []),
    ],
)
def test_impatient_calls_are_found(text: str, found: list[str]) -> None:
    assert impatient_calls(text) == found


def test_no_test_gives_a_server_5_seconds() -> None:
    # What a limited client asks is its test's own matter.
    folders = [TESTS / "python" / "service", *TESTS.glob("python/*.py"), TESTS / "redis"]
    paths = [
        path
        for folder in folders
        for path in ([folder] if folder.is_file() else folder.rglob("*.py"))
    ]
    impatient = [
        f"{path.relative_to(TESTS)}: {call}"
        for path in sorted(paths)
        for call in impatient_calls(path.read_text(encoding="utf-8"))
    ]
    assert impatient == [], "expected timeout=60"
