"""WebSockets under the ASGI middleware."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import tidegate as tg
from servers import limited, uvicorn_at


async def echo(scope, receive, send):
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept", "headers": [(b"x-mine", b"1")]})
    await send({"type": "websocket.close"})


def connect(app, extensions=None):
    scope = {"type": "websocket", "path": "/", "headers": [], "client": ("203.0.113.9", 1)}
    if extensions is not None:
        scope["extensions"] = extensions
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def test_connecting_counts_as_one_request():
    app = limited("1/minute", echo)
    accepted, _ = connect(app)
    assert accepted["type"] == "websocket.accept"
    fields = dict(accepted["headers"])
    assert fields[b"x-mine"] == b"1"
    assert fields[b"x-ratelimit-remaining"] == b"0"
    assert [message["type"] for message in connect(app)] == ["websocket.close"]


def test_a_429_is_sent_if_the_server_supports_it():
    app = limited("1/minute", echo)
    extensions = {"websocket.http.response": {}}
    connect(app, extensions)
    start, body = connect(app, extensions)
    assert start["type"] == "websocket.http.response.start"
    assert start["status"] == 429
    fields = dict(start["headers"])
    assert fields[b"retry-after"] == b"60"
    assert int(fields[b"content-length"]) == len(body["body"])


def test_websockets_may_pass_untouched():
    app = limited("1/minute", echo, websockets=False)
    for _ in range(3):
        assert connect(app)[0]["headers"] == [(b"x-mine", b"1")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"websockets": "no"}, "websockets is 'no'; expected True and False"),
        ({"message_cost": 9}, "message_cost was given without messages"),
        (
            {"message_cost": len, "on_message_refused": "drop"},
            "message_cost and on_message_refused",
        ),
        (
            {"messages": "9/second", "websockets": False},
            "messages were given with websockets=False",
        ),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, message):
    with pytest.raises((tg.ConfigurationError, TypeError), match=message):
        limited("1/minute", echo, **options)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_websockets_are_limited_under_uvicorn(loop):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect as dial

    app = limited("1/minute", echo)
    with uvicorn_at(app, loop=loop, ws="websockets-sansio") as (host, port):
        url = f"ws://{host}:{port}/"
        with dial(url) as opened:
            assert opened.response.headers["x-ratelimit-remaining"] == "0"
        with pytest.raises(InvalidStatus) as refused, contextlib.closing(dial(url)):
            pass
        assert refused.value.response.status_code == 429
        assert refused.value.response.headers["retry-after"] == "60"
