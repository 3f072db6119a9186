"""Messages of WebSockets counted in Redis, which the event loop never waits for."""

from __future__ import annotations

import pytest
from proxy import Proxy
from redis_server import PATIENT, RedisServer
from servers import echo, uvicorn_at
from tidegate.asgi import RateLimitMiddleware
from websockets.sync.client import connect


def app(storage: str) -> RateLimitMiddleware:
    return RateLimitMiddleware(
        echo,
        limit="100/30 days",
        messages="3/30 days",
        on_message_refused=lambda scope, decision: "refused",
        storage=storage,
    )


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_two_servers_count_together(server: RedisServer, loop: str) -> None:
    answers = []
    for number in range(2):
        # Each with a client of its own, as in another process.
        uri = server.uri(f"{PATIENT}&client_name={loop}-{number}")
        with (
            uvicorn_at(app(uri), loop=loop, ws="websockets-sansio") as (host, port),
            connect(f"ws://{host}:{port}/") as opened,
        ):
            for _ in range(2):
                opened.send("hello")
                answers.append(opened.recv(timeout=20))
    assert answers == ["hello", "hello", "hello", "refused"]


def test_a_redis_that_is_gone_closes_nothing(proxy: Proxy) -> None:
    storage = f"redis://127.0.0.1:{proxy.port}?timeout=0.02"
    with (
        uvicorn_at(app(storage), ws="websockets-sansio") as (host, port),
        connect(f"ws://{host}:{port}/") as opened,
    ):
        proxy.mode = "hole"
        for text in ("a", "b", "c"):
            opened.send(text)
            assert opened.recv(timeout=20) == text
        opened.send("d")
        assert opened.recv(timeout=20) == "refused"
