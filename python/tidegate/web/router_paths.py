"""How the routers of some frameworks read a path, where it is not as others do.

An endpoint has to be the path that the router matches: else a client who spells a path so that both
readings differ reaches a route, and the rule for it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable
from urllib.parse import urlparse

from tidegate.web.request_access import path_of

__all__ = ["PathReader", "ignores_case", "in_lower_case", "is_of_quart", "path_reader_of"]

PathReader = Callable[[Mapping[str, Any]], "str | bytes | None"]

# The attributes in which middleware keeps the application that it wraps.
_INNER = ("app", "asgi_app", "wsgi_app", "application")
_MOST_LAYERS = 32


def path_reader_of(app: object) -> PathReader | None:
    """Returns the function that reads the path of a request as the router of `app` does; None if
    that is path_of()."""
    return next((_READERS[name] for name in _packages(app) if name in _READERS), None)


def ignores_case(reader: PathReader | None) -> bool:
    """Whether the router takes paths that differ in case for one."""
    return reader is _of_blacksheep


def in_lower_case(endpoint: str) -> str:
    """Returns an endpoint of rules in lower case, apart from the names of its parts."""
    parts = endpoint.split("/")
    return "/".join(part if part.startswith("{") else part.lower() for part in parts)


def is_of_quart(app: object) -> bool:
    """Whether `app` is an application of Quart, whose `root_path` is a folder."""
    return any(name == "quart" for name in _packages(app))


def _packages(app: Any) -> Iterator[str]:
    """The packages of the classes of an application, and of those that it wraps."""
    for _ in range(_MOST_LAYERS):
        app = getattr(app, "__self__", app)  # such as of the method `app.asgi_app`
        for kind in type(app).__mro__:
            yield kind.__module__.partition(".")[0]
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


_READERS: dict[str, PathReader] = {
    "quart": _of_quart,
    "blacksheep": _of_blacksheep,
    "bottle": _of_bottle,
}
