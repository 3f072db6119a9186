"""FastAPI services whose route `/` has a limit of its own."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from tidegate import rate_limit
from tidegate.asgi import RateLimitMiddleware
from tidegate.fastapi import DefaultRateLimit, RateLimit

HOW = ("a decorator", "an async decorator", "a dependency", "a default")
"""The ways to give it one."""


def limited_service(how: str, limit: Any, **options: Any) -> FastAPI:
    """Returns a service that answers 200 at `/` within `limit`, given in one of the ways `HOW`."""
    app = FastAPI()
    if how == "a default":
        app = FastAPI(dependencies=[Depends(DefaultRateLimit(limit, **options))])

        @app.get("/")
        async def default() -> str:
            return "ok"

    elif how == "a dependency":

        @app.get("/", dependencies=[Depends(RateLimit(limit, **options))])
        async def depends() -> str:
            return "ok"

    elif how == "a decorator":

        @app.get("/")
        @rate_limit(limit, **options)
        def decorated() -> str:
            return "ok"

    else:

        @app.get("/")
        @rate_limit(limit, **options)
        async def decorated_async() -> str:
            return "ok"

    return app


def refuse_three_websockets(limiter: Any, **options: Any) -> None:
    """Opens four connections to a WebSocket of one an hour, below a middleware with `limiter`."""
    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(RateLimit("1/hour", **options))])
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    client = TestClient(RateLimitMiddleware(app, limiter=limiter))
    with client.websocket_connect("/"):
        pass
    for _ in range(3):
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/"):
            pass
