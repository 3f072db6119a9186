"""The site: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

_PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"

project = "tidegate"
author = "The tidegate authors"
copyright = author
release = re.findall(r'^version = "(.+)"', _PYPROJECT.read_text(encoding="utf-8"), re.MULTILINE)[0]

extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"tidegate {release}"
