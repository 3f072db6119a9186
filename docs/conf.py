"""The site: `make docs`. Nothing needs to be built for it, and no framework installed."""

from __future__ import annotations
import __future__

import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_ROOT = Path(__file__).resolve().parent.parent

project = "tidegate"
author = "The tidegate authors"
copyright = author
_PYPROJECT = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
release = re.findall(r'^version = "(.+)"', _PYPROJECT, re.MULTILINE)[0]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"tidegate {release}"

# ----------------------------------------------------------------- the tree of pages

# Pages at the beginning of an item of a list of these pages are below them in the site. A page's
# own list is what readers of a checkout see, so the site's contents are not written twice.
_PARENTS = ("index", "migrate/index", "design")


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


# ------------------------------------------------------------------ reference/api.md

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = [
    *("asgiref", "django", "fastapi", "flask", "starlette", "werkzeug"),
    *("anyio", "click", "httpx", "jwt", "limits", "opentelemetry", "prometheus_client"),
    *("alembic", "psycopg", "pytest", "requests", "sqlalchemy"),
]
# Types in signatures are names, and not links to pages.
nitpick_ignore_regex = [(r"py:.*", r".*")]


def _load_stub_of_an_extension(name: str) -> None:
    """Has its stub, which documents it, stand for the compiled module."""
    package = _ROOT / "python" / "tidegate"
    stub = types.ModuleType(f"tidegate.{name}")
    stub.__file__ = str(package.joinpath(*name.split(".")).with_suffix(".pyi"))
    sys.modules["tidegate"] = types.ModuleType("tidegate")  # the stub imports a sibling
    sys.modules["tidegate"].__path__ = [str(package)]
    source = Path(stub.__file__).read_text(encoding="utf-8")
    flags = __future__.annotations.compiler_flag
    with mock.patch("typing.overload", lambda function: function):  # the last of several serves
        exec(compile(source, stub.__file__, "exec", flags=flags), vars(stub))
    for each in vars(stub).get("__annotations__", {}).keys() - vars(stub).keys():
        setattr(stub, each, None)
    sys.modules[stub.__name__] = stub
    del sys.modules["tidegate"]


_load_stub_of_an_extension("_core")
_load_stub_of_an_extension("tuning._logs")
sys.path.insert(0, str(_ROOT / "python"))
