"""The site: `make docs`. Nothing needs to be built for it, and no framework installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_ROOT = Path(__file__).resolve().parent.parent

project = "tidegate"
author = "The tidegate authors"
copyright = author
_PYPROJECT = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
release = re.findall(r'^version = "(.+)"', _PYPROJECT, re.MULTILINE)[0]

extensions = ["myst_parser"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"tidegate {release}"

# ----------------------------------------------------------------- the tree of pages

# Pages at the beginning of an item of a list of these pages are below them in the site. A page's
# own list is what readers of a checkout see, so the site's contents are not written twice.
_PARENTS = ("index", "migrate/index", "design", "reference/api")


def _add_contents(_app: Sphinx, name: str, source: list[str]) -> None:
    """Adds a hidden table of contents for each section that lists pages."""
    if name not in _PARENTS:
        return
    for section in re.split(r"^##? ", source[0], flags=re.MULTILINE)[1:]:
        pages = re.findall(r"^- \[[^\]]+\]\((?!http)([^)#]+)\.md\)", section, re.MULTILINE)
        if pages:
            options = [":hidden:", f":caption: {section.splitlines()[0]}", ""]
            source[0] += "\n".join(["\n```{toctree}", *options, *pages, "```\n"])


def setup(app: Sphinx) -> None:
    app.connect("source-read", _add_contents)
