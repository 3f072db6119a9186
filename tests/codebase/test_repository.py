"""Rules about the repository itself."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
import tidegate

ROOT = Path(__file__).resolve().parents[2]

CODE = {".py", ".pyi", ".cc", ".h", ".cmake", ".sh", ".lua", ".rs"}
TEXT = CODE | {".md", ".txt", ".toml", ".json", ".yml", ".yaml", ".in"}
NAMED = {"Makefile", "run", ".gitignore", ".clang-format", ".clang-tidy"}
# Written by programs, or by others.
GENERATED = {"LICENSE", "NOTICE", "Cargo.lock", "benchmarks.md"}
UNTRACKED = {"build", "dist", "wheelhouse", "target", "_build", "__pycache__"}

# What tools leave in a checkout: none of it is tracked, and all of it is ignored.
LEFT_BY_TOOLS = [
    *("build/", "dist/", "wheelhouse/", ".venv/", "docs/_build/", "htmlcov/", ".cache/"),
    *("tests/__pycache__/", "tests/a.pyc", "python/tidegate/_core.cpython-311.so"),
    *(".hypothesis/", ".schemathesis/", ".pytest_cache/", ".ipynb_checkpoints/"),
    *(".mypy_cache/", ".ruff_cache/", ".coverage", "tidegate.egg-info/"),
    *("Testing/", "compile_commands.json", "benchmarks/governor/target/"),
]

# Spelled in pieces, so that this file keeps to its own rules.
REGISTRIES = [
    "pypi" + ".org",
    "files." + "pythonhosted",
    "deb." + "debian.org",
    "crates" + ".io",
    "registry." + "npmjs",
    "proxy." + "golang.org",
    "repo." + "maven",
]
MACHINE_PATH = re.compile(r"(?<![A-Za-z0-9_.~])/(?:work|root|home|Users|farm)/")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def _listed() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
    except (OSError, subprocess.CalledProcessError):  # unpacked from an archive
        return [
            path
            for path in ROOT.rglob("*")
            if path.is_file() and not any(map(_is_untracked, path.relative_to(ROOT).parts[:-1]))
        ]
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def _is_untracked(folder: str) -> bool:
    return folder in UNTRACKED or (folder.startswith(".") and folder not in {".ci", ".github"})


FILES = [
    path
    for path in _listed()
    if (path.suffix in TEXT or path.name in NAMED) and path.name not in GENERATED
]


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _offending(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def _version() -> str:
    return re.findall(r'^version = "(.+)"$', _read("pyproject.toml"), re.MULTILINE)[0]


def test_there_are_files_to_look_at() -> None:
    assert {"README.md", "CMakeLists.txt", "Makefile"} <= {path.name for path in FILES}


def test_versions_agree() -> None:
    version = _version()
    assert re.findall(r"^project\(tidegate VERSION (\S+)", _read("CMakeLists.txt"), re.M) == [
        version
    ]
    assert tidegate.__version__ == version
    heading, first_line = re.findall(r"^## (.+)\n\n(.+)", _read("CHANGELOG.md"), re.MULTILINE)[0]
    assert heading.startswith(version) or (
        heading == "Unreleased" and first_line == f"This becomes {version}."
    )


def test_the_core_knows_nothing_of_python() -> None:
    core = [path for path in FILES if path.is_relative_to(ROOT / "cpp")]
    assert core
    assert _offending(re.compile(r"pybind11|\bPython\.h\b|\bPy[A-Z_]\w+"), core) == []


def test_one_file_of_the_bindings_takes_and_releases_the_gil() -> None:
    """Elsewhere a thread would not survive the interpreter's end."""
    bindings = [path for path in FILES if path.is_relative_to(ROOT / "python/bindings")]
    assert ROOT / "python/bindings/limiter/gil.cc" in bindings
    gil = re.compile(
        r"gil_scoped|\bPyGILState_(?:Ensure|Release)|\bPy_(?:BEGIN|END)_ALLOW_THREADS"
        r"|\bPyEval_(?:Save|Restore|Acquire|Release)|\bPyThreadState_(?:New|Swap|Delete)"
        r"|\bcall_guard\b"
    )
    others = [path for path in bindings if path.name != "gil.cc"]
    assert _offending(gil, others) == []


def test_no_package_registry_is_named() -> None:
    assert _offending(re.compile("|".join(map(re.escape, REGISTRIES))), FILES) == []


def test_no_path_of_one_machine_is_named() -> None:
    assert _offending(MACHINE_PATH, FILES) == []


def test_nothing_is_left_unfinished() -> None:
    assert _offending(UNFINISHED, FILES) == []


@pytest.mark.parametrize(
    "header",
    [path for path in FILES if path.suffix == ".h"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_headers_have_guards_and_say_what_they_are_for(header: Path) -> None:
    text = header.read_text(encoding="utf-8")
    assert text.startswith("// ")
    guard = re.search(r"^#ifndef (TIDEGATE_\w+_H_)\n#define \1$", text, re.MULTILINE)
    assert guard is not None
    stem = re.sub(r"\W", "_", header.stem).upper()
    assert guard[1].endswith(f"{stem}_H_")
    assert text.rstrip().endswith(f"#endif  // {guard[1]}")


def test_long_files_hold_one_idea() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in FILES
        if path.suffix in CODE | {".md"}
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert long == {}, (
        "which second idea is in these files? Move that to a file of its own. A class stays whole "
        "in one place: never split one idea by length"
    )


def test_nothing_that_tools_leave_is_tracked() -> None:
    folders = {Path(each).name for each in LEFT_BY_TOOLS if each.endswith("/")}
    ended = re.compile(r"\.(?:py[cod]|so|o|a|whl|egg-info|orig|rej|sw[op])$")
    left = [
        name
        for name in (path.relative_to(ROOT) for path in _listed())
        if folders & set(name.parts[:-1]) or ended.search(name.name) or name.name == ".coverage"
    ]
    assert left == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git alone knows what is ignored")
def test_what_tools_leave_is_ignored() -> None:
    names = [f"{each}x" if each.endswith("/") else each for each in LEFT_BY_TOOLS]
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *names],
        cwd=ROOT, stdout=subprocess.PIPE, check=False, text=True,
    )  # fmt: skip
    assert ignored.stdout.splitlines() == names


def test_what_the_readme_promises_can_be_run() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*)(?: [a-z -]*)?:(?!=)", _read("Makefile"), re.M))
    promised = {
        "help", "demo", "test", "bench", "lint", "asan", "tsan", "fuzz", "docs", "wheel", "clean",
    }  # fmt: skip
    assert promised <= targets
    readme = _read("README.md")
    assert "make demo" in readme
    assert "make test" in readme
    for document in (readme, _read("CONTRIBUTING.md")):
        assert set(re.findall(r"(?:^|`)make ([a-z-]+)", document, re.M)) <= targets


def test_the_lowest_frameworks_that_are_tested_are_those_that_are_promised() -> None:
    promised = dict(re.findall(r'^(\w+) = \["\1>=([\d.]+)"\]$', _read("pyproject.toml"), re.M))
    pinned = dict(re.findall(r"^(\w+)==([\d.]+)", _read("tests/frameworks/lowest.txt"), re.M))
    for name in ("django", "fastapi", "flask"):
        version = {key.lower(): value for key, value in pinned.items()}[name]
        assert version.removesuffix(".0") == promised[name], name
    assert "make frameworks" in _read(".github/workflows/ci.yml")


def test_ci_runs_what_contributors_run() -> None:
    commands = [line for line in _read(".ci/run").splitlines() if not line.startswith("#")]
    assert commands[-1] == "exec make test"


def test_the_files_that_workers_begin_with_exist() -> None:
    names = re.findall(r'^    "(.+/test_\w+\.py)",$', _read("tests/conftest.py"), re.MULTILINE)
    assert len(names) > 5
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []


def test_presets_cover_what_the_makefile_builds() -> None:
    presets = json.loads(_read("CMakePresets.json"))
    named = {preset["name"] for preset in presets["configurePresets"]}
    assert {"release", "debug", "asan", "tsan", "tidy", "fuzz", "fetch"} <= named
    assert set(re.findall(r"--preset ([a-z]+)", _read("Makefile"))) <= named


def test_what_tests_start_keeps_their_environment() -> None:
    """It says where the sanitizers are, and the extension that is to be tested."""
    lost = re.compile(r"\benv=\{(?!\*\*os\.environ)")
    tests = [path for path in FILES if path.suffix == ".py" and "tests" in path.parts]
    assert [path for path in tests if lost.search(path.read_text(encoding="utf-8"))] == []


def test_downloads_are_pinned() -> None:
    downloads = 0
    for path in FILES:
        if path.name != "CMakeLists.txt" and path.suffix != ".cmake":
            continue
        text = path.read_text(encoding="utf-8")
        fetched = re.findall(r"tidegate_fetch\(([^()]*)\)?", text)
        assert all(re.search(r"\shttps://\S+\s+[0-9a-f]{64}\b", each) for each in fetched), path
        declared = re.findall(r"FetchContent_Declare\(([^()]*)\)?", text)
        assert all("URL_HASH SHA256=${hash}" in each for each in declared), path
        downloads += len(fetched)
    assert downloads > 5


def test_errors_say_what_was_given_before_what_is_expected() -> None:
    """One voice: "the port is 'abc'; expected 1 to 65535"."""
    for path in sorted((ROOT / "python" / "tidegate").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                message: ast.expr = node.exc.args[0]
                if isinstance(message, ast.JoinedStr):
                    message = message.values[0]
                text = message.value if isinstance(message, ast.Constant) else ""
                assert not str(text).startswith("Expected"), f"{path}:{node.lineno}: {text}"
