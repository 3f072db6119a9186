"""The native extension of the server, which a build may leave out."""

from __future__ import annotations

from tidegate.limiter.components import missing

try:
    from tidegate.server import _native
except ImportError as error:
    raise missing("server", error) from None

__all__ = ["_native"]
