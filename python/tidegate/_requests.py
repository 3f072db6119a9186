"""What a request is made of: an ASGI scope, a WSGI environ, or a framework's own object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate._errors import ArgumentTypeError

__all__ = ["connection_of", "fields_of", "source_of"]


def source_of(request: Any) -> Mapping[str, Any]:
    """The scope or the environ of whatever a framework calls a request."""
    for name in ("scope", "environ", "META"):
        source = getattr(request, name, None)
        if type(source) is dict or (source is not None and isinstance(source, Mapping)):
            return source
    if isinstance(request, Mapping):
        return request
    raise ArgumentTypeError(
        f"a key function was given a {type(request).__name__}; accepted are an ASGI scope, a "
        "WSGI environ, or a request of a framework on one of these"
    )


def connection_of(request: Any) -> str | None:
    """The address that a connection came from, without its port; None where it has none."""
    # What a server gives is a plain dict, of which there is no need to ask more.
    source = request if type(request) is dict else getattr(request, "scope", None)
    if type(source) is not dict:
        source = source_of(request)
    client = source.get("client")
    address: Any = client[0] if client else source.get("REMOTE_ADDR")
    return address if address and isinstance(address, str) else None


def fields_of(request: Any, name: str) -> list[str]:
    """The lines of a header field, in order. A WSGI server has joined them already."""
    source = source_of(request)
    headers = source.get("headers")
    if headers is None:
        value = source.get("HTTP_" + name.upper().replace("-", "_"))
        return [value] if isinstance(value, str) else []
    wanted = name.encode("ascii")
    return [value.decode("latin-1") for found, value in headers if found.lower() == wanted]
