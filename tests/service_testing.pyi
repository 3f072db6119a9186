"""Services that echo, and calls of services without a front; see extension/."""

from collections.abc import Sequence
from typing import Any

from tidegate.server._native import Service

class EchoService(Service):
    """Answers with the body of the request."""

    def __init__(self) -> None: ...

class LaterService(Service):
    """Answers with the body from another thread, or once released."""

    def __init__(self, *, holds: bool = False) -> None: ...
    @property
    def waiting(self) -> int: ...
    def release(self) -> None: ...
    def drop(self) -> None: ...

def call(
    service: Service,
    method: str,
    target: str,
    headers: Sequence[tuple[str, str]] = ...,
    body: bytes = ...,
    grpc: bool = False,
) -> tuple[int, Any, bytes]:
    """Returns (status, headers, body) for HTTP, and (code, message, body) for gRPC."""
