"""A chat over WebSockets, whose talkers can flood neither the room nor the server.

    uvicorn websocket_chat:app --app-dir examples

Each client may join 20 times and say 60 things a minute, 5 of them at once, over all the
connections that it has. Who says more is told to slow down, and nobody else hears it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tidegate as tg
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from tidegate.asgi import RateLimitMiddleware

talkers: set[WebSocket] = set()


async def chat(websocket: WebSocket) -> None:
    await websocket.accept()
    talkers.add(websocket)
    try:
        async for text in websocket.iter_text():
            for talker in list(talkers):
                # One that has gone leaves by its own task.
                with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                    await talker.send_text(text)
    finally:
        talkers.discard(websocket)


def slow_down(scope: Any, decision: tg.Decision) -> str:
    return f"slow down: {decision.retry_after:.1f} s"


app = Starlette(
    routes=[WebSocketRoute("/chat", chat)],
    middleware=[
        Middleware(
            RateLimitMiddleware,
            limit="20/minute",
            messages="60/minute burst 5",
            on_message_refused=slow_down,
        )
    ],
)

if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app)
