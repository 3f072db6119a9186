"""A chat over WebSockets, whose clients can flood neither the room nor the server.

    uvicorn websocket_chat:app --app-dir examples

Each client may join 20 times and send 60 messages a minute, 5 of them at once, over all of its
connections. A client that sends more is told to slow down, and nobody else gets these messages.
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
                # A disconnected client is removed by its own task.
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
