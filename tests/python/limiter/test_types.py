"""The findings of type checkers on uses of the public API."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jedi
import pytest
import tidegate as tg
from parso.cache import parser_cache
from tidegate.rules import RuleFile

SERVICE = Path(__file__).with_name("typed_service.py")
MISTAKES = Path(__file__).with_name("typed_mistakes.py")
OF_LINTERS = Path(__file__).resolve().parents[3] / ".mypy_cache"


@pytest.fixture(scope="module")
def errors_of_mypy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of both files, which import much the same. Their process takes along what mypy has read.

    Most of that is other packages, which mypy has read already if the linters have run.
    """
    cache = tmp_path_factory.mktemp("mypy")
    if OF_LINTERS.is_dir():
        shutil.copytree(OF_LINTERS, cache, dirs_exist_ok=True)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-pretty"]
    done = subprocess.run(
        [*command, f"--cache-dir={cache}", str(SERVICE), str(MISTAKES)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_a_typed_service_is_accepted(errors_of_mypy: list[str]) -> None:
    # An ignored error that is none is one.
    assert [line for line in errors_of_mypy if MISTAKES.name not in line] == []


def _marked() -> dict[int, str]:
    """The kind of mistake on each line that has one."""
    lines = MISTAKES.read_text(encoding="utf-8").splitlines()
    found = (
        (number, re.search(r"# mistake: (\w+)$", line)) for number, line in enumerate(lines, 1)
    )
    return {number: match[1] for number, match in found if match}


def test_there_are_eight_kinds_of_mistakes_with_three_forms_each() -> None:
    kinds = Counter(_marked().values())
    assert len(kinds) >= 8
    assert min(kinds.values()) >= 3


def test_mypy_finds_each_mistake_and_nothing_else(errors_of_mypy: list[str]) -> None:
    said = "\n".join(errors_of_mypy)
    found = re.findall(rf"^\S*{MISTAKES.name}:(\d+): error: ", said, re.MULTILINE)
    assert {int(line) for line in found} == _marked().keys(), said


def test_pyright_finds_each_mistake_and_nothing_else(tmp_path: Path) -> None:
    """In basedpyright's mode that judges as pyright does; its package brings all that it runs."""
    pytest.importorskip("basedpyright")  # needs Python 3.10
    mistakes = tmp_path / MISTAKES.name
    mistakes.write_bytes(MISTAKES.read_bytes())
    source = Path(inspect.getfile(tg)).parents[1]
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(source)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--outputjson"),
            *("--pythonpath", sys.executable, "--project", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    said = json.loads(done.stdout)["generalDiagnostics"]
    found = {each["range"]["start"]["line"] + 1 for each in said if each["severity"] == "error"}
    assert found == _marked().keys(), said


@pytest.fixture(scope="module", autouse=True)
def _what_jedi_has_read_is_forgotten() -> Iterator[None]:
    yield
    parser_cache.clear()


API = Path(__file__).resolve().parents[3] / "docs" / "reference" / "api.md"


def _callables() -> Iterator[str]:
    """The names of the reference that can be called, but for exceptions."""
    for name in re.findall(r"^\| \[(tidegate\.[\w.]+)\]\(", API.read_text("utf-8"), re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        public = getattr(importlib.import_module(module), attribute)
        is_class = isinstance(public, type)
        if inspect.isroutine(public) or (is_class and not issubclass(public, Exception)):
            yield name


def test_an_editor_shows_the_arguments_of_each_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(_callables())
    assert {"tidegate.rate_limit", "tidegate.Plan", "tidegate.keys.client_ip"} <= {*names}
    # An editor reads the package's files; the finder of an editable installation hides them.
    finders = [each for each in sys.meta_path if "ScikitBuild" not in type(each).__name__]
    monkeypatch.setattr(sys, "meta_path", finders)
    where = os.path.dirname(os.path.dirname(os.path.abspath(tg.__file__)))
    project = jedi.Project(where, sys_path=[where, *sys.path])
    # All calls are in one document, of which the editor reads each module once.
    modules = sorted({name.rpartition(".")[0] for name in names})
    document = [*(f"import {module}" for module in modules), *(f"{name}()" for name in names)]
    editor = jedi.Script(
        "\n".join(document), environment=jedi.InterpreterEnvironment(), project=project
    )
    hidden = []
    for line, name in enumerate(names, len(modules) + 1):
        shown = editor.get_signatures(line, len(f"{name}("))
        if not shown or any("*args" in each.to_string() for each in shown):
            hidden.append(name)
    assert hidden == []


def test_names_that_do_not_exist_are_not_listed() -> None:
    """What the package's own lines need is no name of it."""
    assert {*tg.__all__} <= {*dir(tg)}
    assert not {"TYPE_CHECKING", "annotations"} & {*dir(tg)}
    with pytest.raises(AttributeError, match=r"expected perhaps .*rate_limit"):
        tg.rate_limits  # type: ignore[attr-defined]  # noqa: B018


def test_the_signature_of_a_limiter_has_its_arguments() -> None:
    of_limiter = inspect.signature(tg.Limiter).parameters
    of_rules = inspect.signature(tg.RuleLimiter).parameters
    assert {"limit", "rules", "storage", "algorithm", "prefix", "clock"} <= set(of_limiter)
    assert set(of_rules) <= set(of_limiter)


def test_each_limiter_is_of_its_public_class(tmp_path: Path) -> None:
    document = tmp_path / "rules.json"
    document.write_text('{"rules": [{"id": "a", "by": "user", "limit": "1/minute"}]}')
    rules = tg.RuleSet.load(document)
    with RuleFile(document) as source:
        for given in ({"rules": rules}, {"limit": rules}, {"rules": source}, {"limit": source}):
            limiter: tg.BaseLimiter = tg.Limiter(**given)
            assert type(limiter) is tg.RuleLimiter
            limiter.close()
    assert type(tg.Limiter("1/minute")) is tg.Limiter
    assert issubclass(tg.Limiter, tg.BaseLimiter)
    assert issubclass(tg.RuleLimiter, tg.BaseLimiter)
