"""Reads requests: ASGI scopes, WSGI environs, and frameworks' own objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.limiter.errors import ArgumentTypeError

__all__ = ["connection_of", "fields_of", "path_of", "source_of"]


def source_of(request: Any) -> Mapping[str, Any]:
    """Returns the scope or the environ of a framework's request."""
    if isinstance(request, Mapping):
        return request
    # Services may set any other attribute on a request of WSGI.
    for name in ("environ", "scope", "META"):
        source = getattr(request, name, None)
        if isinstance(source, Mapping):
            return source
    raise ArgumentTypeError(
        f"a key function was given a {type(request).__name__}; expected an ASGI scope, a "
        "WSGI environ, or a request of a framework on one of these"
    )


def connection_of(request: Any) -> str | None:
    """Returns the address that a connection came from, without its port; None if it has none."""
    # Most requests are a server's dict, or Starlette's object with its scope: the fast path.
    if isinstance(request, dict):
        source: Any = request
    else:
        source = getattr(request, "scope", None)
        if type(source) is not dict or source.get("type") not in ("http", "websocket"):
            source = source_of(request)
    client = source.get("client")
    address: Any = client[0] if client else source.get("REMOTE_ADDR")
    return address if address and isinstance(address, str) else None


def fields_of(request: Any, name: str) -> list[str]:
    """Returns the lines of a header field, in order. A WSGI server has joined them already."""
    source = source_of(request)
    headers = source.get("headers")
    if headers is None:
        value = source.get("HTTP_" + name.upper().replace("-", "_"))
        return [value] if isinstance(value, str) else []
    wanted = name.encode("ascii")
    return [value.decode("latin-1") for found, value in headers if found.lower() == wanted]


def path_of(request: Any) -> str | bytes | None:
    """Returns the path inside the application, as its router reads it."""
    inside = getattr(request, "path_info", None)  # of Django, which decodes it
    if isinstance(inside, str):
        return _as_path(inside)
    source = source_of(request)
    path = source.get("path")
    if isinstance(path, str):
        root = source.get("root_path")
        if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
            path = path[len(root) :]
        return _as_path(path)
    path = source.get("PATH_INFO")
    if path is None:
        return None
    # A WSGI server decodes the bytes of a path as Latin-1.
    return _as_path(path).encode("latin-1", "replace")


def _as_path(path: str) -> str:
    """Returns a path without what routers do not see: a last line feed, and no first slash."""
    path = path.rstrip("\n")
    if not path.startswith("/"):
        scheme, colon, rest = path.partition(":")
        path = rest if colon and scheme.isalnum() and rest.startswith("/") else f"/{path}"
    return path
