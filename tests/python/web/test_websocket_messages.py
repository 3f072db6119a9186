"""Limits on the messages of WebSockets, under a real server and with real clients."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import tidegate as tg
from polling import eventually
from servers import echo, limited, uvicorn_at
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as dial

NOW = 1_700_000_000 * 10**9


@contextlib.contextmanager
def served(limit="100/minute", app=echo, **options):
    """Yields a function that opens WebSockets to the application under the middleware."""
    middleware = limited(limit, app, **options)
    with uvicorn_at(middleware, ws="websockets-sansio") as (host, port):
        yield lambda path="/": dial(f"ws://{host}:{port}{path}", close_timeout=5)


def closing(opened):
    """Returns the code and the reason with which the server closed the WebSocket."""
    with pytest.raises(ConnectionClosed) as closed:
        opened.recv(timeout=10)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


def said(opened, *messages):
    for message in messages:
        opened.send(message)
    return [opened.recv(timeout=10) for _ in messages]


def test_one_message_too_many_closes_with_the_wait_as_the_reason():
    with served(messages="3/minute") as connect, connect() as opened:
        assert said(opened, "a", b"b", "c") == ["a", b"b", "c"]
        opened.send("d")
        assert closing(opened) == (1008, "rate limit exceeded, try again in 20 s")


def test_the_wait_is_exact():
    clock = tg.ManualClock(NOW)
    options = {"messages": "1/minute", "on_message_refused": told, "clock": clock}
    with served(**options) as connect, connect() as opened:
        assert said(opened, "a", "b") == ["a", "60.0"]
        clock.set_ns(NOW + 60 * 10**9 - 1)
        assert said(opened, "c") == ["1e-09"]
        clock.set_ns(NOW + 60 * 10**9)
        assert said(opened, "d") == ["d"]


def told(scope, decision):
    return str(decision.retry_after)


def test_messages_of_all_connections_of_a_client_count_together():
    by_path = {"key": lambda scope: scope["path"]}
    with served(messages="2/minute", **by_path) as connect:
        with connect("/a") as first, connect("/a") as second, connect("/b") as other:
            assert said(first, "1") == ["1"]
            assert said(second, "2") == ["2"]
            first.send("3")
            assert closing(first)[0] == 1008
            assert said(other, "1", "2") == ["1", "2"]
        with connect("/a") as again:
            again.send("4")
            assert closing(again)[0] == 1008


def test_messages_and_connections_are_counted_separately():
    with served("3/minute", messages="3/minute") as connect:
        for text in ("a", "b", "c"):
            with connect() as opened:
                assert said(opened, text) == [text]


def test_the_application_never_sees_a_dropped_message():
    clock = tg.ManualClock(NOW)
    seen = []

    async def listening(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            seen.append(message["text"])
            await send({"type": "websocket.send", "text": "seen"})

    limiter = tg.Limiter("2/minute", clock=clock)
    options = {"messages": limiter, "on_message_refused": "drop"}
    with served(app=listening, **options) as connect, connect() as opened:
        said(opened, "a", "b")
        for _ in range(1000):
            opened.send("flood")
        eventually(lambda: limiter.stats().denied == 1000)
        clock.advance(30)
        assert said(opened, "c") == ["seen"]
    assert seen == ["a", "b", "c"]


def test_a_message_in_fragments_is_one_message():
    with served(messages="2/minute") as connect, connect() as opened:
        opened.send(str(number) for number in range(10))
        opened.send(bytes([number]) for number in range(10))
        assert opened.recv(timeout=10) == "0123456789"
        assert opened.recv(timeout=10) == bytes(range(10))
        opened.send(["a", "b"])
        assert closing(opened)[0] == 1008


def test_pings_do_not_count_as_messages():
    with served(messages="1/minute") as connect, connect() as opened:
        for _ in range(5):
            assert opened.ping().wait(10)
        assert said(opened, "a") == ["a"]


def test_messages_may_cost_their_size(caplog):
    with served(messages="10/minute", message_cost=len) as connect, connect() as opened:
        assert said(opened, "12345", b"1234", "") == ["12345", b"1234", ""]
        opened.send("1")
        assert closing(opened)[0] == 1008
    assert "message_cost" not in caplog.text


def test_a_message_above_the_capacity_is_too_big():
    with served(messages="10/minute", message_cost=len) as connect, connect() as opened:
        opened.send("12345678901")
        assert closing(opened) == (1009, "message above the rate limit")
        with connect() as again:
            # The refused message has cost nothing.
            assert said(again, "1234567890") == ["1234567890"]


def test_a_function_may_answer_refused_messages():
    async def reply(scope, decision):
        await asyncio.sleep(0)
        return None if scope["path"] == "/quiet" else b"slow down"

    limiter = tg.Limiter("1/minute", clock=tg.ManualClock(NOW))
    by_path = {"key": lambda scope: scope["path"]}
    with served(messages=limiter, on_message_refused=reply, **by_path) as connect:
        with connect() as opened:
            assert said(opened, "a", "b", "c") == ["a", b"slow down", b"slow down"]
        with connect("/quiet") as opened:
            assert said(opened, "a") == ["a"]
            opened.send("b")
            eventually(lambda: limiter.stats().denied == 3)
            limiter.reset("/quiet")
            assert said(opened, "c") == ["c"]


@pytest.mark.parametrize("reply", [lambda scope, decision: 7, lambda: None])
def test_a_failing_answer_closes_the_websocket(reply, caplog):
    with served(messages="1/minute", on_message_refused=reply) as connect, connect() as opened:
        said(opened, "a")
        opened.send("b")
        assert closing(opened)[0] == 1008
    assert "on_message_refused" in caplog.text


@pytest.mark.parametrize("cost", [lambda payload: "7", lambda payload: -1, lambda: 1])
def test_a_cost_that_fails_charges_one(cost, caplog):
    with served(messages="2/minute", message_cost=cost) as connect, connect() as opened:
        assert said(opened, "a", "b") == ["a", "b"]
        opened.send("c")
        assert closing(opened)[0] == 1008
    assert "message_cost" in caplog.text


def test_messages_of_exempt_websockets_are_not_limited():
    exempt = {"exempt_when": lambda scope: scope["path"] == "/"}
    with served(messages="1/minute", **exempt) as connect, connect() as opened:
        assert said(opened, *"abcde") == list("abcde")


def test_messages_may_have_their_own_limiter():
    limiter = tg.Limiter("1/minute", clock=tg.ManualClock(NOW))
    with served(messages=limiter) as connect, connect() as opened:
        said(opened, "a")
        assert limiter.stats().allowed == 1


def test_concurrent_messages_are_admitted_up_to_the_limit():
    limiter = tg.Limiter("100/minute", clock=tg.ManualClock(NOW))
    options = {"messages": limiter, "on_message_refused": "drop"}
    with served("1000/minute", **options) as connect, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect()) for _ in range(10)]
        for _ in range(30):
            for client in clients:
                client.send("x")
        eventually(lambda: limiter.stats().denied == 200)
        assert limiter.stats().allowed == 100


def test_sending_after_the_close_raises_as_a_server_does_without_a_client():
    outcome = []

    async def stubborn(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        outcome.append(message)
        try:
            await send({"type": "websocket.send", "text": "more"})
        except OSError:
            outcome.append("told")
        await send({"type": "websocket.close"})
        outcome.append((await receive())["type"])

    with served(app=stubborn, messages="1/minute") as connect, connect() as opened:
        said(opened, "a")
        opened.send("b")
        closing(opened)
    assert outcome[0]["code"] == 1008
    assert outcome[1:] == ["told", "websocket.disconnect"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"messages": "often"}, "often"),
        ({"messages": tg.Limit("3/minute", algorithm="concurrency")}, "expected limits"),
        ({"messages": "3/minute", "message_cost": 0}, "expected an int from 1 up"),
        ({"messages": "3/minute", "message_cost": 4}, "never lets through"),
        ({"messages": "3/minute", "on_message_refused": "wait"}, "expected 'close', 'drop'"),
        ({"messages": "3/minute", "websockets": False}, "expected one of them"),
    ],
)
def test_invalid_options_raise_at_construction(options, message):
    with pytest.raises(tg.ConfigurationError, match=message):
        limited(**options)
