"""The Python in the documents runs, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _blocks(document: Path) -> list[tuple[int, str]]:
    text = document.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(1)), match[1])
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


# Those in docs/migrate are programs of their own, which tests/python/migrate/test_migrate.py runs.
SCRIPTS = [d for d in DOCUMENTS if _blocks(d) and d.parent.name != "migrate"]


@pytest.fixture(autouse=True)
def _django() -> None:
    """What is typed into a Django project has its settings."""
    from django.conf import settings

    if not settings.configured:
        settings.configure()


@pytest.mark.parametrize("document", SCRIPTS, ids=_name)
def test_its_code_runs(document: Path, tmp_path: Path) -> None:
    """Block after block, in one namespace, as a reader would type them."""
    namespace: dict[str, Any] = {"__name__": "document"}
    for line, block in _blocks(document):
        # Shared memories of the host are not ours to make.
        source = re.sub(r"shm://(?=\w)", f"shm://{tmp_path}/", block)
        # The decorator looks at its module's source, so lines have to be where they are.
        exec(compile("\n" * line + source, str(document), "exec"), namespace)


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_its_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    targets += [f"{name}.md" for name in re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", text)]
    assert [t for t in targets if not (document.parent / t).exists()] == []
