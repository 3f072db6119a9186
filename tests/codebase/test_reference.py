"""docs/reference has all that is public, as the sources have it."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
INDEX = (REFERENCE / "api.md").read_text(encoding="utf-8")
NAMES = re.findall(r"^\| \[(tidegate\.[\w.]+)\]\(", INDEX, re.MULTILINE)
MODULES = sorted({name.rpartition(".")[0] for name in NAMES})
# Some pages and an example import these, of which no release promises anything.
UNPROMISED = {
    "tidegate._core",
    "tidegate.server",
    "tidegate.server.admin.app",
    "tidegate.server.admin.oidc",
}


def test_the_pages_of_the_python_api_are_up_to_date() -> None:
    pytest.importorskip("griffe")  # needs Python 3.11
    command = [sys.executable, str(ROOT / "scripts" / "render-api.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_reference_has_all_public_modules() -> None:
    """All faces, and of the rooms those that it names: what it does not list is private."""
    faces = {path.stem for path in (ROOT / "python" / "tidegate").glob("[a-z]*.py")}
    assert {f"tidegate.{name}" for name in faces} | {"tidegate"} <= set(MODULES)
    for name in set(MODULES) - {f"tidegate.{face}" for face in faces}:
        assert name.split(".")[1:2] in ([], ["rules"], ["tuning"]), name


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_all_that_a_module_exports_and_nothing_else(module: str) -> None:
    """What two modules export may be listed under one of them."""
    exported = importlib.import_module(module)
    listed = [name.rpartition(".")[2] for name in NAMES if name.rpartition(".")[0] == module]
    assert len(listed) == len(set(listed))
    assert set(listed) <= {*exported.__all__}
    for name in {*exported.__all__} - {*listed}:
        elsewhere = [
            other
            for other in NAMES
            if other.endswith(f".{name}")
            and getattr(importlib.import_module(other.rpartition(".")[0]), name)
            is getattr(exported, name)
        ]
        assert elsewhere, name


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_explained(name: str) -> None:
    """The index says what it is, and leads to a section with a text."""
    said, page = re.findall(
        rf"^\| \[{re.escape(name)}\]\((\S+\.md)#\S+\) \| (.*) \|$", INDEX, re.MULTILINE
    )[0][::-1]
    assert said.strip()
    text = (REFERENCE / page).read_text(encoding="utf-8")
    heading = re.escape(name.replace("__", r"\_\_"))
    section = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[0]
    without_code = re.sub(r"^```.*?^```$", "", section, flags=re.MULTILINE | re.DOTALL)
    assert without_code.strip()


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_the_arguments_of_each_public_name(name: str) -> None:
    """So does Shift-Tab in a notebook."""
    module, _, attribute = name.rpartition(".")
    public = getattr(importlib.import_module(module), attribute)
    if not inspect.isroutine(public) and not inspect.isclass(public):
        return
    if inspect.isclass(public) and issubclass(public, Exception):
        return
    parameters = inspect.signature(public).parameters.values()
    rest = {str(each.annotation) for each in parameters if each.kind is each.VAR_KEYWORD}
    # Only the options of storages, and what is passed on, have no names in signatures.
    passed_on = ("tidegate.testing.configured", "tidegate.limits.", "tidegate.rules.")
    expected = {"StorageOptions", "Unpack[StorageOptions]"}
    assert rest <= expected or name.startswith(passed_on), rest


def test_what_users_read_imports_only_what_is_public() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    read = [page.read_text(encoding="utf-8") for page in pages if "_build" not in page.parts]
    code = [
        *(path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")),
        *re.findall(r"^```python\n(.*?)^```$", "\n".join(read), re.MULTILINE | re.DOTALL),
    ]
    imported = {
        name
        for text in code
        for name in re.findall(r"^ *(?:from|import) (tidegate(?:\.\w+)*)", text, re.MULTILINE)
    }
    assert "tidegate.fastapi" in imported
    assert imported - {*MODULES} == UNPROMISED


@pytest.mark.parametrize(("framework", "form"), [("flask", "TIDEGATE_{}"), ("django", "{}")])
def test_the_page_of_a_framework_has_all_of_its_settings(framework: str, form: str) -> None:
    page = (ROOT / "docs" / f"{framework}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \|", page, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    accepted = importlib.import_module(f"tidegate.{framework}")._CONFIGURED
    assert sorted(listed) == sorted(form.format(name.upper()) for name in accepted)


def test_what_is_shown_of_docstrings_is_markdown() -> None:
    """A role of Sphinx, such as :mod:`a`, would be shown as it is written."""
    pages = [*(REFERENCE / "api").glob("*.md"), REFERENCE / "api.md"]
    assert [each.name for each in pages if re.search(r":[a-z]+:`", each.read_text("utf-8"))] == []
