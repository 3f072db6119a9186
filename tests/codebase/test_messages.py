"""Messages have one voice: ``the port is 'abc'; expected 1 to 65535``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Reports of `tidegate rules test` say of each decision what it was and what was expected of it,
# and `tidegate doctor` which of its findings are ordinary.
REPORTS = {
    "python/tidegate/cli/doctor_checks.py",
    "python/tidegate/cli/rules/cases.py",
    "python/tidegate/cli/rules/commands.py",
}
# Words of other packages, which are replaced by ours.
FOREIGN = {"Input should be"}

_LITERAL = r'"(?:[^"\\\n]|\\.)*"'


def problem(message: str) -> str | None:
    """What is wrong with the message, whose values are written as ``{}``."""
    for match in re.finditer(r"\b[Ee]xpected\b", message):
        before = message[: match.start()]
        if match[0] == "Expected":
            return "begins with what is expected, and not with what is given"
        # At the beginning, or after a value, the rest of the message is put before it.
        if before and not before.endswith(("; ", "{}")):
            return "does not separate what is given from what is expected by a semicolon"
    if re.search(r"(?:^|, |\band )got \b", message):
        return "says what was got, and not what something is"
    if re.search(r"\b(?:must|should|has to|have to|needs to) be\b", message):
        return "says what must be, and not what is expected"
    return None


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """The texts of a module by line, without those that document it."""
    tree = ast.parse(text)
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
            yield node.lineno, "".join(map(str, parts))


def of_cpp(text: str) -> Iterator[tuple[int, str]]:
    """The texts of a source by line; adjacent ones are one."""
    # Comments are blanked, raw texts left out: they are help and documents, and no messages.
    text = re.sub(r'R"(\w*)\((?:.|\n)*?\)\1"', lambda m: "0" + "\n" * m[0].count("\n"), text)
    text = re.sub(rf"({_LITERAL})|//[^\n]*", lambda match: match[1] or "", text)
    for match in re.finditer(rf"{_LITERAL}(?:\s*{_LITERAL})*", text):
        parts = re.findall(_LITERAL, match[0])
        yield text.count("\n", 0, match.start()) + 1, "".join(part[1:-1] for part in parts)


def messages() -> Iterator[tuple[str, int, str]]:
    for folder, endings in (("python/tidegate", {".py"}), ("cpp", {".cc", ".h"})):
        yield from _messages(ROOT / folder, endings)
    yield from _messages(ROOT / "python" / "bindings", {".cc", ".h"})


def _messages(folder: Path, endings: set[str]) -> Iterator[tuple[str, int, str]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix not in endings:
            continue
        read = of_python if path.suffix == ".py" else of_cpp
        name = path.relative_to(ROOT).as_posix()
        for line, message in read(path.read_text(encoding="utf-8")):
            yield name, line, message


def test_messages_say_what_is_given_and_then_what_is_expected() -> None:
    found = list(messages())
    assert len([each for _, _, each in found if "; expected " in each]) > 500
    wrong = [
        f"{name}:{line}: {message!r} {fault}"
        for name, line, message in found
        if name not in REPORTS and message not in FOREIGN and (fault := problem(message))
    ]
    assert wrong == []


def test_a_text_of_cpp_does_not_begin_with_what_is_expected() -> None:
    """Only a message that is continued does, after what is given in the call before it."""
    wrong = [
        f"{name}:{line}: {message!r}"
        for name, line, message in messages()
        if not name.endswith(".py") and re.match(r"expected\b .* ", message)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "message",
    [
        "Expected a port, got {}",
        "the port is {}, expected 1 to 65535",
        "the port is wrong: expected 1 to 65535",
        "a port is expected",
        "the port must be 1 to 65535",
        "a port from 1 to 65535, got 0",
    ],
)
def test_other_voices_are_noticed(message: str) -> None:
    assert problem(message)


@pytest.mark.parametrize(
    "message",
    ["the port is {}; expected 1 to 65535", "{}expected 1 to 65535", "the request got an answer"],
)
def test_the_one_voice_is_accepted(message: str) -> None:
    assert problem(message) is None


def test_messages_are_read_whole() -> None:
    python = (
        'def f(x):\n    """Expected."""\n    raise E(f"the port is {x}; "\n        "expected 1")\n'
    )
    assert list(of_python(python)) == [(3, "the port is {}; expected 1")]
    cpp = '// "must be"\nF(R"(Expected)", "is \\"a\\"; "\n  "expected", x);'
    assert list(of_cpp(cpp)) == [(2, 'is \\"a\\"; expected')]


def test_the_core_leaves_what_is_written_to_its_user() -> None:
    writes = re.compile(
        r"std(?:err|out)\b|std::c(?:err|out|log)\b|\bf?put[cs]\(|[^n]printf\(|\bperror\("
    )
    files = [path for room in ("core", "include") for path in (ROOT / "cpp" / room).rglob("*.*")]
    assert len(files) > 150
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if writes.search(line)
    ]
    assert found == []
