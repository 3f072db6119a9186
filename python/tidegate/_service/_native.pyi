"""The server of checks: HTTP/2, HTTP/1.1 and gRPC without Python."""

from typing import Any

class Tls:
    """A certificate, from files in PEM."""

    def __init__(self, certificate: str, key: str, client_ca: str | None = None) -> None: ...
    def reload(self) -> None:
        """Reads the files again, for new connections; keeps what it had on an error."""

class Service:
    """Answers requests of a front."""

class Front:
    """Speaks HTTP for services."""

    def __init__(self, options: dict[str, Any] = ...) -> None: ...
    def listen(self, host: str, port: int, *, tls: Tls | None = None) -> int:
        """Returns the port."""
    def listen_unix(self, path: str, *, mode: int = 0o600, tls: Tls | None = None) -> None: ...
    def route(self, service: Service) -> None: ...
    def start(self) -> None: ...
    def drain(self, seconds: float) -> bool:
        """Waits for calls in progress; returns whether all connections are over."""
    def stop(self) -> None: ...
    @property
    def running(self) -> bool: ...
    def stats(self) -> dict[str, int]: ...

class Health:
    """grpc.health.v1 of a front, which serves the name "" from the start."""

    def __init__(self, front: Front) -> None: ...
    def set(self, name: str, serving: bool) -> None:
        """Other names are unknown until they are set."""

class _EchoService(Service):
    """For tests: answers with the body of the request."""

    def __init__(self) -> None: ...

class _LaterService(Service):
    """For tests: the same from another thread, or once released."""

    def __init__(self, *, holds: bool = False) -> None: ...
    @property
    def waiting(self) -> int: ...
    def release(self) -> None: ...
    def drop(self) -> None: ...
