"""Serves the style sheet, the script and the icon of the pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from tidegate.server.admin.problems import ProblemError

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["asset"]

_STATIC = Path(__file__).parent / "static"
# The table has all files: no name from outside ever becomes a path.
_TYPES = {
    "style.css": "text/css",
    "live.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_HEADERS = {"Cache-Control": "private, max-age=300"}


def asset(request: Request, form: dict[str, str]) -> Response:
    """Returns one of the files."""
    name = request.path_params["name"]
    if name not in _TYPES:
        raise ProblemError(404, "There is no such file.")
    return Response((_STATIC / name).read_bytes(), 200, _HEADERS, _TYPES[name])
