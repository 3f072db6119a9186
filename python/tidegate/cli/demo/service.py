"""The service that ``tidegate demo`` protects: FastAPI under uvicorn, nothing simulated.

Run as ``python -m tidegate.cli.demo.service FD``, where FD is a listening socket.
"""

from __future__ import annotations

import argparse
import socket
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from tidegate.asgi import RateLimitMiddleware
from tidegate.cli.demo.run import LIVE_LIMIT, LOG_LIMIT
from tidegate.limiter.clock import ManualClock

if TYPE_CHECKING:
    from tidegate.web.asgi_types import ASGIApp, Receive, Scope, Send

__all__ = ["service"]


def service(*, fast: bool = False) -> FastAPI:
    """Two applications in one service, each with its limit.

    ``/live`` uses the system clock, or with `fast` a clock that the client sets. ``/log`` always
    uses the time of the log that is replayed against it.
    """
    live = FastAPI()
    log = FastAPI()

    @live.get("/tides")
    async def tides() -> dict[str, str]:
        return {"high": "04:12", "low": "10:31"}

    @log.api_route("/{path:path}", methods=["GET", "HEAD", "POST"])
    async def page(path: str) -> dict[str, str]:
        return {"path": path}

    app = FastAPI(title="tidegate demo")
    live_clock = ManualClock() if fast else None
    app.mount("/live", _limited(live, LIVE_LIMIT, live_clock))
    app.mount("/log", _limited(log, LOG_LIMIT, ManualClock()))
    return app


def _limited(app: ASGIApp, limit: str, clock: ManualClock | None) -> ASGIApp:
    limited = RateLimitMiddleware(app, limit=limit, key=_client, clock=clock)
    return limited if clock is None else _SetClock(limited, clock)


def _client(scope: Scope) -> str | None:
    """The client whose part the demo plays.

    Only a demo may do this: on a real service, anybody could send such a header and appear as a new
    client with each request. The default key is the address of the connection.
    """
    return _header(scope, b"x-demo-client")


class _SetClock:
    """Sets the clock of the limiter to the time that the demo sends."""

    def __init__(self, app: ASGIApp, clock: ManualClock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        now_ns = _header(scope, b"x-demo-time-ns")
        if now_ns is not None:
            self._clock.set_ns(int(now_ns))
        await self._app(scope, receive, send)


def _header(scope: Scope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            text: str = value.decode("latin-1")
            return text
    return None


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fd", type=int)
    parser.add_argument("--fast", action="store_true")
    arguments = parser.parse_args()
    listener = socket.socket(fileno=arguments.fd)
    config = uvicorn.Config(
        service(fast=arguments.fast),
        log_level="warning",
        access_log=False,
        lifespan="off",
        # Longer than the pauses of the demo.
        timeout_keep_alive=60,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    _main()
