"""How the routers of some frameworks read a path, where it is not as others do.

An endpoint has to be the path that the router matches: else a client who spells a path so that both
readings differ reaches a route, and the rule for it does not apply.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Callable
from urllib.parse import urlparse

from tidegate.web.request_access import path_of

__all__ = [
    "PathReader",
    "ignores_case",
    "in_lower_case",
    "is_of_quart",
    "path_reader_of",
    "reads_other_roots",
    "root_reader_of",
]

PathReader = Callable[[Mapping[str, Any]], "str | bytes | None"]

# The modules of its applications and routers. Its middleware may be around those of others.
_STARLETTE = {"starlette.applications", "starlette.routing"}
# The attributes in which middleware keeps the application that it wraps.
_INNER = ("app", "asgi_app", "wsgi_app", "application")
_MOST_LAYERS = 32


def path_reader_of(app: object) -> PathReader | None:
    """Returns the function that reads the path of a request as the router of `app` does; None if
    that is path_of()."""
    names = (module.partition(".")[0] for module in _modules(app))
    return next((_READERS[name] for name in names if name in _READERS), None) or root_reader_of(app)


def root_reader_of(app: object) -> PathReader | None:
    """Returns the function that reads the path of a request as the router of `app` does, if that is
    a router of Starlette that takes `root_path` for something else than path_of() does."""
    return None if _STARLETTE.isdisjoint(_modules(app)) else _root_reader_of_starlette()


def reads_other_roots(reader: PathReader | None) -> bool:
    """Whether the reader is that of root_reader_of(): it is path_of() without a root path."""
    return reader in (_whole, _without_pattern)


def ignores_case(reader: PathReader | None) -> bool:
    """Whether the router takes paths that differ in case for one."""
    return reader is _of_blacksheep


def in_lower_case(endpoint: str) -> str:
    """Returns an endpoint of rules in lower case, apart from the names of its parts."""
    parts = endpoint.split("/")
    return "/".join(part if part.startswith("{") else part.lower() for part in parts)


def is_of_quart(app: object) -> bool:
    """Whether `app` is an application of Quart, whose `root_path` is a folder."""
    return any(module.partition(".")[0] == "quart" for module in _modules(app))


def _modules(app: Any) -> Iterator[str]:
    """The modules of the classes of an application, and of those that it wraps."""
    for _ in range(_MOST_LAYERS):
        app = getattr(app, "__self__", app)  # such as of the method `app.asgi_app`
        for kind in type(app).__mro__:
            yield kind.__module__
        inner = (getattr(app, name, None) for name in _INNER)
        app = next((each for each in inner if each is not None), None)
        if app is None:
            return


def _of_quart(scope: Mapping[str, Any]) -> str | bytes | None:
    """A path without a first slash is a URL, and no slash has to follow the root path."""
    path = scope.get("path")
    if not isinstance(path, str):
        return path_of(scope)
    if not path.startswith("/"):
        path = urlparse(path).path
    root = scope.get("root_path") or ""
    if path != root and path.startswith(root):
        path = path[len(root) :]
    return "/" + path.lstrip("/").rstrip("\n")


def _of_blacksheep(scope: Mapping[str, Any]) -> str | bytes | None:
    """Case makes no difference."""
    path = path_of(scope)
    return path if path is None else path.lower()


def _of_bottle(environ: Mapping[str, Any]) -> str | bytes | None:
    """Bytes that are not UTF-8 are left out."""
    path = path_of(environ)
    return path.decode("utf-8", "ignore") if isinstance(path, bytes) else path


def _whole(scope: Mapping[str, Any]) -> str | bytes | None:
    """Starlette before 0.33 matches all of a path: a server or a mount took the root path away."""
    return path_of({"path": scope.get("path")})


def _without_pattern(scope: Mapping[str, Any]) -> str | bytes | None:
    """Starlette from 0.33 to 0.39 takes a root path for a regular expression."""
    path, root = scope.get("path"), scope.get("root_path")
    if not isinstance(path, str) or not root:
        return path_of(scope)
    return path_of({"path": re.sub(rf"^{root}(?=/|$)", "", path)})


@functools.cache
def _root_reader_of_starlette() -> PathReader | None:
    """Asks the routes of the Starlette that is installed how they read a root path."""
    from starlette.routing import Route

    route = Route("/inside", lambda request: None)

    def finds(path: str, root: str) -> bool:
        scope = {"type": "http", "method": "GET", "path": path, "root_path": root}
        return route.matches(scope)[0].value > 0

    if not finds("/shop/inside", "/shop"):
        return _whole
    return _without_pattern if finds("/shop/inside", "/s..p") else None


_READERS: dict[str, PathReader] = {
    "quart": _of_quart,
    "blacksheep": _of_blacksheep,
    "bottle": _of_bottle,
}
