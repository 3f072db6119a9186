"""The transports of httpx, before a service of our own whose clock the waits move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tidegate as tg

httpx = pytest.importorskip("httpx")

from tidegate import httpx as of_httpx  # noqa: E402
from tidegate.asgi import RateLimitMiddleware  # noqa: E402
from tidegate.httpx import AsyncRateLimitTransport, RateLimitTransport  # noqa: E402
from tidegate.outbound import pacing  # noqa: E402
from tidegate.wsgi import RateLimitMiddleware as OfWSGI  # noqa: E402

URL = "http://api.example.org/tides"


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch, clock: tg.ManualClock) -> list[float]:
    """How long transports have slept, while the clock moved in place of the time."""
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds)

    async def sleep_async(seconds: float) -> None:
        sleep(seconds)

    moved = SimpleNamespace(monotonic=lambda: clock.now_ns() / 10**9, sleep=sleep)
    monkeypatch.setattr(pacing, "time", moved)
    monkeypatch.setattr(of_httpx, "anyio", SimpleNamespace(sleep=sleep_async))
    return waits


def answering(*answers: tuple[int, dict[str, str]]) -> Any:
    """A transport that gives these answers in turn, the last one for ever."""
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        status, headers = left.pop(0) if len(left) > 1 else left[0]
        return httpx.Response(status, headers=headers, content=request.content)

    return httpx.MockTransport(answer)


class Reading(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Reads the body of a request as a connection does, and refuses the first one."""

    status = 429

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._answer(b"".join(request.stream))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self._answer(b"".join([part async for part in request.stream]))

    def _answer(self, body: bytes) -> httpx.Response:
        status, self.status = self.status, 200
        return httpx.Response(status, headers={"retry-after": "1"}, content=body)


def client(transport: Any, **options: Any) -> httpx.Client:
    return httpx.Client(transport=RateLimitTransport(transport, **{"jitter": 0, **options}))


def test_a_refusal_of_tidegate_is_waited_out_exactly(
    clock: tg.ManualClock, waits: list[float]
) -> None:
    def hello(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"hello"]

    service = OfWSGI(hello, limit="2/minute", clock=clock)
    with client(httpx.WSGITransport(service)) as one:
        assert [one.get(URL).status_code for _ in range(5)] == [200] * 5
    assert waits == [30.0] * 3


def test_an_async_client_too(clock: tg.ManualClock, waits: list[float]) -> None:
    async def hello(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    service = RateLimitMiddleware(hello, limit="2/minute", clock=clock)

    async def calls() -> list[int]:
        transport = AsyncRateLimitTransport(httpx.ASGITransport(service), jitter=0)
        async with httpx.AsyncClient(transport=transport) as one:
            return [(await one.get(URL)).status_code for _ in range(4)]

    assert asyncio.run(calls()) == [200] * 4
    assert waits == [30.0] * 2


def test_it_gives_up_after_the_retries(waits: list[float]) -> None:
    refusing = answering((429, {"retry-after": "2"}))
    assert client(refusing).get(URL).status_code == 429
    assert waits == [2.0] * 3
    assert client(refusing, retries=0).get(URL).status_code == 429
    assert len(waits) == 3


def test_the_wait_doubles_if_the_response_states_none(waits: list[float]) -> None:
    assert client(answering((429, {})), backoff=0.5).get(URL).status_code == 429
    assert waits == [0.5, 1.0, 2.0]
    assert client(answering((429, {})), backoff=None).get(URL).status_code == 429
    assert len(waits) == 3


def test_no_response_can_make_it_wait_for_long(waits: list[float]) -> None:
    for told in ("61", "999999999", "Tue, 14 Nov 2999 22:13:20 GMT"):
        assert client(answering((429, {"Retry-After": told}))).get(URL).status_code == 429
    for fields in (
        {"ratelimit": '"a";r=0;t=999999999999'},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "5000"},
        {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "5h"},
    ):
        assert client(answering((429, fields))).get(URL).status_code == 429
    assert waits == []
    assert client(answering((429, {"Retry-After": "60"}), (200, {}))).get(URL).status_code == 200


def test_a_refusal_is_sent_again_when_its_retry_after_says(waits: list[float]) -> None:
    nothing = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "5h"}
    for fields in (nothing, {"ratelimit": '"a";r=0;t=5000'}):
        answers = answering((429, {"retry-after": "1", **fields}), (200, {}))
        assert client(answers).get(URL).status_code == 200
    assert waits == [1.0, 1.0]


def test_only_a_429_is_asked_for_again(waits: list[float]) -> None:
    for status in (200, 302, 400, 500, 503):
        assert client(answering((status, {"retry-after": "1"}))).get(URL).status_code == status
    assert waits == []


def test_jitter_is_added(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    client(answering((429, {"retry-after": "2"}), (200, {})), jitter=1).get(URL)
    assert waits == [2.5]


def test_a_body_is_sent_again_unless_it_can_be_read_only_once(waits: list[float]) -> None:
    def once() -> Iterator[bytes]:
        yield b"ebb"

    assert client(Reading()).post(URL, content=b"ebb").content == b"ebb"
    assert client(Reading()).post(URL, json={}).status_code == 200
    assert client(Reading()).post(URL, content=once()).status_code == 429
    assert waits == [1.0, 1.0]


def test_a_stream_of_an_async_client_is_sent_once(waits: list[float]) -> None:
    async def once() -> AsyncIterator[bytes]:
        yield b"ebb"

    async def call() -> int:
        transport = AsyncRateLimitTransport(Reading())
        async with httpx.AsyncClient(transport=transport) as one:
            return (await one.post(URL, content=once())).status_code  # type: ignore[no-any-return]

    assert asyncio.run(call()) == 429
    assert waits == []


def test_refusals_that_are_not_returned_are_closed() -> None:
    class Body(httpx.SyncByteStream):
        closed = 0

        def __iter__(self) -> Iterator[bytes]:
            while True:  # a service may send for ever
                yield b"x"

        def close(self) -> None:
            Body.closed += 1

    answers = [httpx.Response(429, headers={"retry-after": "1"}, stream=Body())]
    answers.append(httpx.Response(200))
    one = client(httpx.MockTransport(lambda request: answers.pop(0)))
    assert one.get(URL).status_code == 200
    assert Body.closed == 1


def test_each_attempt_waits_for_its_turn_by_its_host(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter("2/minute", clock=clock)
    one = client(answering((429, {"retry-after": "1"}), (200, {})), limiter=limiter, timeout=0)
    assert one.get(URL).status_code == 200
    assert limiter.peek("api.example.org").remaining == 0
    with pytest.raises(tg.RateLimitExceeded):
        one.get(URL)
    assert one.get("http://other.example.org").status_code == 200


def test_an_async_attempt_waits_for_its_turn_by_a_key(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter("2/minute", clock=clock)

    async def calls() -> None:
        transport = AsyncRateLimitTransport(
            answering((200, {})),
            limiter=limiter,
            key=lambda request: request.headers["x-account"],
            timeout=0,
        )
        async with httpx.AsyncClient(transport=transport, headers={"x-account": "a"}) as one:
            for _ in range(2):
                assert (await one.get(URL)).status_code == 200
            with pytest.raises(tg.RateLimitExceeded):
                await one.get(URL)
        assert limiter.peek("a").remaining == 0

    asyncio.run(calls())


def test_closing_closes_what_is_beneath() -> None:
    closed = []

    class Beneath(httpx.MockTransport):
        def close(self) -> None:
            closed.append("close")

        async def aclose(self) -> None:
            closed.append("aclose")

    with client(Beneath(lambda request: httpx.Response(200))):
        pass

    async def call() -> None:
        async with httpx.AsyncClient(transport=AsyncRateLimitTransport(Beneath(lambda _: None))):
            pass

    asyncio.run(call())
    assert closed == ["close", "aclose"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "retries is -1; expected an int from 0 up"),
        ({"retries": True}, "retries is True"),
        ({"max_wait": float("inf")}, "max_wait is inf; expected 0 or more seconds"),
        ({"max_wait": float("nan")}, "max_wait is nan"),
        ({"backoff": "1"}, "backoff is '1' of type str; expected seconds"),
        ({"jitter": -1}, "jitter is -1"),
        ({"limiter": "5/minute"}, "the limiter is '5/minute' of type str; expected a tidegate"),
        (
            {"limiter": tg.Limiter("2 at once")},
            "name='2 at once'.*; expected slot",
        ),
        ({"key": "k"}, "without a limiter"),
        ({"timeout": 1}, "without a limiter"),
        ({"limiter": tg.Limiter("5/minute"), "timeout": -1}, "the timeout is -1"),
        ({"limiter": tg.Limiter("5/minute"), "key": ""}, "key"),
        ({"limiter": tg.Limiter("5/minute"), "key": 5}, "key"),
        ({"retires": 1}, "unknown option retires="),
    ],
)
def test_wrong_options_are_refused_at_construction(options: dict[str, Any], message: str) -> None:
    for kind in (RateLimitTransport, AsyncRateLimitTransport):
        with pytest.raises(tg.ConfigurationError, match=message):
            kind(None, **options)


def test_what_is_no_transport_is_refused_at_construction() -> None:
    with pytest.raises(tg.ConfigurationError, match=r"expected .*AsyncBaseTransport"):
        AsyncRateLimitTransport(httpx.HTTPTransport())
    with pytest.raises(tg.ConfigurationError, match=r"expected .*BaseTransport"):
        RateLimitTransport("https://api.example.org")


@pytest.mark.parametrize(
    "fields",
    [{}, {"x-ratelimit-remaining": "0"}, {"ratelimit": '"a";r=0'}, {"ratelimit": '"a";r=5'}],
)
def test_a_429_with_a_wait_holds_the_next_request_back(
    fields: dict[str, str], waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        pacing, "time", SimpleNamespace(monotonic=lambda: 100.0, sleep=pacing.time.sleep)
    )
    with client(answering((429, {"retry-after": "3", **fields}), (200, {})), retries=0) as one:
        assert [one.get(URL).status_code for _ in range(2)] == [429, 200]
    assert waits == [3.0]


def test_a_200_that_says_that_nothing_is_left_holds_the_next_request_back(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    moved = SimpleNamespace(monotonic=lambda: now[0], sleep=pacing.time.sleep)
    monkeypatch.setattr(pacing, "time", moved)
    nothing = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6s"}
    some = {"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "6s"}
    with client(answering((200, nothing), (200, some))) as one:
        assert one.get(URL).status_code == 200
        now[0] += 2
        assert one.get("http://other.example.org/").status_code == 200
        assert waits == []
        assert one.get(URL).status_code == 200
        assert waits == [4.0]
        assert one.get(URL).status_code == 200
    assert waits == [4.0], "something is left again"
    with client(answering((200, nothing)), learn=False) as one:
        assert [one.get(URL).status_code for _ in range(2)] == [200, 200]
    with client(answering((200, nothing)), max_wait=1.0) as one:
        assert [one.get(URL).status_code for _ in range(2)] == [200, 200]
    assert waits == [4.0, 1.0], "at most max_wait"
    with pytest.raises(TypeError, match="learn is 'no'; expected True and False"):
        client(answering((200, some)), learn="no")
