"""Patterns of paths as other programs write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tidegate.rules.advice.places import Finding, conditions
from tidegate.rules.advice.values import PLACEHOLDER, hidden_character

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.model import Rules

__all__ = ["METHOD_AND_PATH", "URL", "endpoint_names", "find"]

METHOD_AND_PATH = re.compile(
    r"([A-Z]{3,10}|(?i:get|head|post|put|patch|delete|options))(?::\s*|\s+)(/.*)"
)
URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/]*(/.*)?", re.IGNORECASE)
_NO_SLASH = re.compile(r"[\w.~%{}<>:-]+(/[\w.~%{}<>:-]+)*/?")
_CONVERTER = re.compile(r"\{([^{}:]*):([^{}]*)\}")
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
# As in `/a, /b`, `/a|/b` and `/a /b`.
_SEVERAL = re.compile(r"/.*(\s|[,|;]\s*)/.*")
_EXPRESSION = re.compile(r"\\|\[.*\]|\(\?|\(.*\|.*\)|^\^|.\$$")


def find(rules: Rules) -> Iterator[Finding]:
    """`/users/<id>`, `api/posts` and others, which match no path that was meant."""
    known: dict[str, str | None] = {}
    for where, what in conditions(rules):
        for i, endpoint in enumerate(what.endpoints):
            if endpoint not in known:
                known[endpoint] = _problem(endpoint)
            message = known[endpoint]
            if message is not None:
                yield Finding((*where, "endpoints", i), f"the endpoint {endpoint!r:.200} {message}")


def endpoint_names(rules: Rules) -> tuple[str, ...]:
    """The endpoints that are names, such as `search`, which callers may give and no path has."""
    found = {name: None for _, what in conditions(rules) for name in what.endpoints}
    return tuple(name for name in found if not name.startswith(("/", "*")))


def _problem(endpoint: str) -> str | None:
    """What is likely to be wrong with it, and what is expected."""
    if endpoint != endpoint.strip():
        return f"begins or ends in white space; expected {endpoint.strip()!r}"
    if len(endpoint) > 1 and endpoint[0] == endpoint[-1] and endpoint[0] in "'\"":
        return f"has quotes in it; expected {endpoint[1:-1]!r}"
    if hidden_character(endpoint):
        return f"has the character {hidden_character(endpoint)!a}, which nobody sees; expected none"
    if endpoint.startswith("!"):
        return "begins with '!', which excludes nothing; expected the endpoints that it is for"
    with_method = METHOD_AND_PATH.fullmatch(endpoint)
    if with_method:
        method = with_method[1].upper()
        return f"has a method; expected {with_method[2]!r}, and {method} in `methods`"
    url = URL.fullmatch(endpoint)
    if url:
        return f"has a host, which no path has; expected {url[1] or '/'!r}"
    if endpoint.startswith("\\") and "/" not in endpoint:
        return f"has no slash; expected {endpoint.replace(chr(92), '/')!r}"
    if endpoint.startswith("/"):
        return _problem_of_path(endpoint)
    if _EXPRESSION.search(endpoint) and "/" in endpoint:
        return _A_REGULAR_EXPRESSION
    if "/" in endpoint and _NO_SLASH.fullmatch(endpoint):
        return (
            f"is no path without a slash at its beginning; expected '/{endpoint.rstrip(chr(47))}'"
        )
    return None


_A_REGULAR_EXPRESSION = (
    "is a regular expression, which is a text here; expected '*' or '{name}' for a part of a path, "
    "or '**' for all that follows"
)


def _problem_of_path(path: str) -> str | None:
    parts = path.split("/")
    if any(part.startswith("<") and part.endswith(">") for part in parts):
        meant = re.sub(r"<(?:path:)[^<>]*>", "**", path)
        meant = re.sub(r"<(?:[^<>:]*:)?([^<>]*)>", r"{\1}", meant)
        return f"has a part in '<>', which is a text here; expected {meant!r}"
    if any(part.startswith(":") and len(part) > 1 for part in parts):
        meant = re.sub(r"/:([^/]+)", r"/{\1}", path)
        return f"has a part with ':', which is a text here; expected {meant!r}"
    if _SEVERAL.fullmatch(path):
        return "is several in one text; expected a list of them"
    if any(PLACEHOLDER.fullmatch(part) or re.fullmatch(r"\$\w+", part) for part in parts):
        return "has a part that nothing fills in here; expected '{name}' for any part"
    converter = _CONVERTER.search(path)
    if converter:
        meant = _CONVERTER.sub(lambda m: "**" if m[2] == "path" else f"{{{m[1]}}}", path)
        return f"has the converter {':' + converter[2]!r}, which is not read; expected {meant!r}"
    if _EXPRESSION.search(path):
        return _A_REGULAR_EXPRESSION
    if _ESCAPE.search(path):
        return f"has an escape, and paths are matched without; expected {unquote(path)!r}"
    return None
