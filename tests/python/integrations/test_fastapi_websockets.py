"""Depends(RateLimit(...)) on WebSockets of FastAPI, which are charged once, when they connect."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import tidegate as tg
from fastapi import Depends, FastAPI, WebSocket, WebSocketException
from fastapi.testclient import TestClient
from servers import uvicorn_at
from starlette import testclient
from starlette.websockets import WebSocketDisconnect
from tidegate.fastapi import RateLimit

WebSocketDenialResponse: Any = getattr(testclient, "WebSocketDenialResponse", None)
sees_denials = pytest.mark.skipif(
    WebSocketDenialResponse is None, reason="this Starlette's TestClient offers no denial response"
)


def chat(*dependencies: RateLimit) -> FastAPI:
    app = FastAPI(dependencies=[Depends(each) for each in dependencies])

    @app.websocket("/chat")
    async def route(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("welcome")
        await websocket.close()

    return app


def clocked(limit: str, **options: Any) -> RateLimit:
    return RateLimit(limit, clock=tg.ManualClock(), **options)


BY_USER = clocked("5/minute", key=lambda websocket: websocket.headers["x-user"])


def connect(client: Any, path: str = "/chat") -> str:
    with client.websocket_connect(path) as websocket:
        return str(websocket.receive_text())


@sees_denials
def test_connecting_counts_as_one_request() -> None:
    client = TestClient(chat(clocked("2/minute")))
    assert [connect(client), connect(client)] == ["welcome", "welcome"]
    with pytest.raises(WebSocketDenialResponse) as refused:
        connect(client)
    assert refused.value.status_code == 429
    assert refused.value.headers["retry-after"] == "30"
    assert refused.value.headers["content-type"] == "application/problem+json"


def test_the_websocket_is_closed_if_the_server_cannot_send_a_response() -> None:
    app = chat(clocked("1/minute"))

    async def without_extensions(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {}}, receive, send)

    client = TestClient(without_extensions)
    assert connect(client) == "welcome"
    with pytest.raises(WebSocketDisconnect) as refused:
        connect(client)
    assert refused.value.code == 1013


def test_the_value_is_the_decision_and_functions_get_the_websocket() -> None:
    app = FastAPI()

    @app.websocket("/")
    async def route(websocket: WebSocket, decision: Annotated[Any, Depends(BY_USER)]) -> None:
        await websocket.accept()
        await websocket.send_text(str(decision.remaining))
        await websocket.close()

    client = TestClient(app)
    for name, left in (("a", "4"), ("a", "3"), ("b", "4")):
        with client.websocket_connect("/", headers={"x-user": name}) as websocket:
            assert websocket.receive_text() == left


@pytest.mark.parametrize(("methods", "charged"), [(["GET"], 1), (["POST"], 0)])
def test_connecting_counts_as_a_get(methods: list[str], charged: int) -> None:
    limit = clocked("5/minute", methods=methods)
    assert connect(TestClient(chat(limit))) == "welcome"
    assert limit.limiter is not None
    assert limit.limiter.peek("testclient").remaining == 5 - charged


def test_a_later_refusal_gives_back_the_earlier_charge() -> None:
    first, second = clocked("5/minute"), clocked("1/minute")
    client = TestClient(chat(first, second))
    assert connect(client) == "welcome"
    with pytest.raises(WebSocketDenialResponse or WebSocketDisconnect):
        connect(client)
    assert first.limiter is not None
    assert first.limiter.peek("testclient").remaining == 4


def test_on_refused_may_return_an_exception() -> None:
    def closed(websocket: Any, decision: tg.Decision) -> Exception:
        return WebSocketException(4029, "later")

    client = TestClient(chat(clocked("1/minute", on_refused=closed)))
    assert connect(client) == "welcome"
    with pytest.raises(WebSocketDisconnect) as refused:
        connect(client)
    assert (refused.value.code, refused.value.reason) == (4029, "later")


@pytest.mark.parametrize("ws", ["websockets-sansio", "wsproto"])
def test_websockets_are_limited_under_uvicorn(ws: str) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect as dial

    with uvicorn_at(chat(clocked("1/minute")), ws=ws) as (host, port):
        with dial(f"ws://{host}:{port}/chat") as websocket:
            assert websocket.recv() == "welcome"
        with pytest.raises(InvalidStatus) as refused:
            dial(f"ws://{host}:{port}/chat")
    if WebSocketDenialResponse is None:  # this Starlette cannot send a response either
        assert refused.value.response.status_code == 403
        return
    assert refused.value.response.status_code == 429
    assert refused.value.response.headers["retry-after"] == "60"
