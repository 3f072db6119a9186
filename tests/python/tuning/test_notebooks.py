"""The notebooks run, are stored without outputs, and match their pages in the documents."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def _name(path: Path) -> str:
    return path.stem


def cells(path: Path) -> list[Any]:
    found: list[Any] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def source(cell: Any) -> str:
    return "".join(cell["source"])


def test_the_expected_notebooks_exist() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "a_surge",
        "choosing_a_limit_from_a_log",
        "comparing_algorithms",
        "first_limit",
        "tuning_a_live_service",
    ]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=_name)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    for cell in cells(notebook):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=_name)
@pytest.mark.filterwarnings("default")  # Jupyter's own warnings are not ours
def test_a_notebook_runs(notebook: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    resources = {"metadata": {"path": str(notebook.parent)}}

    def run() -> Any:
        read = nbformat.read(notebook, as_version=4)
        nbclient.NotebookClient(
            read, timeout=120, kernel_name="python3", resources=resources
        ).execute()
        return read

    try:
        read = run()
    except RuntimeError as error:
        # Another process may take a port between its choice and the start of the kernel.
        if "Kernel died before replying" not in str(error):
            raise
        read = run()
    shown = [output for cell in read.cells for output in cell.get("outputs", [])]
    assert shown
    said = [each.text for each in shown if each.get("name") == "stderr"]
    assert [text for text in said if "Warning" in text or "Error" in text] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=_name)
def test_the_page_of_a_notebook_has_its_cells(notebook: Path) -> None:
    page = (ROOT / "docs" / "notebooks" / f"{notebook.stem}.md").read_text(encoding="utf-8")
    at = 0
    for cell in cells(notebook):
        found = page.find(source(cell), at)
        assert found >= 0, f"run scripts/render-notebooks.py: {source(cell)[:60]!r} is not there"
        at = found
    pictures = re.findall(r"\]\(\.\./(images/notebooks/[^)]+)\)", page)
    assert [each for each in pictures if not (ROOT / "docs" / each).exists()] == []
    drawn = sum(source(cell).count("plots.") for cell in cells(notebook))
    assert len(pictures) >= min(drawn, 1)


def test_the_stored_pictures_are_exactly_those_that_pages_show() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "notebooks").glob("*.md"))
    stored = {path.name for path in (ROOT / "docs" / "images" / "notebooks").glob("*.png")}
    assert stored == set(re.findall(r"images/notebooks/([\w-]+\.png)", pages))
