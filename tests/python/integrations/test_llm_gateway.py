"""examples/llm_gateway.py before an upstream that speaks chat completions and messages."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")

PATH = Path(__file__).resolve().parents[3] / "examples" / "llm_gateway.py"
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ANNA = {"authorization": "Bearer sk-anna"}
WORDS = ["high ", "tide ", "is ", "at ", "noon"]
# 20 input tokens, 5 of them cached, and 12 of output: 150 + 5 + 600 units.
COST = 755


def gateway_module() -> Any:
    spec = importlib.util.spec_from_file_location("llm_gateway", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def data(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"


def chat_stream() -> list[str]:
    parts = [data({"choices": [{"delta": {"content": word}}]}) for word in WORDS]
    usage = {
        "prompt_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens": 12,
        "total_tokens": 32,
    }
    return [*parts, data({"choices": [], "usage": usage}), "data: [DONE]\n\n"]


def messages_stream() -> list[str]:
    begin = {"input_tokens": 15, "cache_read_input_tokens": 5, "output_tokens": 1}
    parts = [data({"type": "message_start", "message": {"usage": begin}})]
    parts += [
        "event: content_block_delta\n"
        + data({"type": "content_block_delta", "delta": {"type": "text_delta", "text": word}})
        for word in WORDS
    ]
    end = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 12}}
    return [*parts, data(end), data({"type": "message_stop"})]


STREAMS = {CHAT: chat_stream, MESSAGES: messages_stream}
WHOLE: dict[str, dict[str, Any]] = {
    CHAT: {
        "usage": {
            "prompt_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 5},
            "completion_tokens": 12,
        }
    },
    MESSAGES: {"usage": {"input_tokens": 15, "cache_read_input_tokens": 5, "output_tokens": 12}},
}


class Upstream(httpx.AsyncBaseTransport):  # type: ignore[misc]
    """A stub of the model: answers whole or as a stream, which breaks off after some events."""

    def __init__(self) -> None:
        self.status = 200
        self.events: int | None = None  # of a stream; None for all
        self.refuses_connections = False
        self.asked: list[dict[str, Any]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = json.loads(await request.aread())
        self.asked.append(asked)
        if self.refuses_connections:
            raise httpx.ConnectError("refused")
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"type": "overloaded_error"}})
        path = request.url.path
        if not asked.get("stream"):
            return httpx.Response(200, json=WHOLE[path])
        return httpx.Response(200, stream=Events(STREAMS[path](), self.events))


class Events(httpx.AsyncByteStream):  # type: ignore[misc]
    def __init__(self, events: list[str], most: int | None) -> None:
        self.events, self.most = events, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self.events[: self.most]:
            yield event.encode()
        if self.most is not None:
            raise httpx.ReadError("the connection was reset")


class Stage:
    def __init__(self) -> None:
        self.upstream = Upstream()
        module = gateway_module()
        self.module = module
        self.clock = tg.ManualClock(1_700_000_000 * 10**9)
        client = httpx.AsyncClient(transport=self.upstream, base_url="http://upstream")
        self.gateway = module.Gateway(client, clock=self.clock)
        routes = [module.Route(path, self.gateway.answer, methods=["POST"]) for path in STREAMS]
        self.app = module.Starlette(routes=routes)

    def ask(self, path: str, headers: Any = ANNA, **asked: Any) -> Any:
        body = {"model": "m", "max_tokens": 50, "messages": [{"content": "tide?"}], **asked}

        async def call() -> Any:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                return await client.post(path, json=body, headers=headers)

        return asyncio.run(call())

    def used(self) -> tuple[int, int]:
        """The requests and the units that the customer has used."""
        requests, units = self.gateway.plans["anna"].limiters
        return 60 - requests.peek("anna").remaining, 10_000 - units.peek("anna:m").remaining


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_an_answer_costs_what_its_usage_says(stage: Stage, path: str, stream: bool) -> None:
    answer = stage.ask(path, stream=stream)
    assert answer.status_code == 200
    assert stage.used() == (1, COST)
    if stream:
        assert answer.text.replace("\n", "") == "".join(STREAMS[path]()).replace("\n", "")
    else:
        assert answer.json() == WHOLE[path]
        assert answer.headers["x-ratelimit-remaining-requests"] == "59"
        assert answer.headers["x-ratelimit-remaining-tokens"] == str((10_000 - COST) // 10)
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"


def test_the_gateway_asks_for_the_usage_in_a_stream(stage: Stage) -> None:
    stage.ask(CHAT, stream=True)
    assert stage.upstream.asked[0]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_stream_that_breaks_off_costs_what_was_passed_on(stage: Stage, path: str) -> None:
    stage.upstream.events = 3
    answer = stage.ask(path, stream=True)
    assert answer.status_code == 200
    assert "upstream_error" in answer.text
    requests, units = stage.used()
    estimated = stage.module.COST.units(
        {"input": stage.module.estimate_of({"messages": [{"content": "tide?"}]})["input"]}
    )
    given = {CHAT: estimated + 50 * (len("high tide is ") // 4), MESSAGES: 150 + 5 + 50 * 2}
    assert (requests, units) == (1, given[path])


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_refuses_costs_nothing(stage: Stage, path: str, stream: bool) -> None:
    stage.upstream.status = 529
    answer = stage.ask(path, stream=stream)
    assert (answer.status_code, answer.json()["error"]["type"]) == (529, "overloaded_error")
    stage.upstream.refuses_connections = True
    assert stage.ask(path, stream=stream).status_code == 502
    assert stage.used() == (0, 0)


def test_a_client_that_leaves_pays_for_what_it_was_sent(stage: Stage) -> None:
    """The server ends a response that nobody reads by closing its stream."""

    async def leave() -> None:
        units = stage.module.COST.units(estimate := {"input": 10, "output": 50})
        limiters = stage.gateway.plans["anna"].limiters
        plan = tg.Plan(limiters)
        reservation = await plan.reserve_async(["anna", "anna:m"], [1, units], on_exit="keep")
        answer = httpx.Response(200, stream=Events(messages_stream(), None))
        passed = stage.gateway.pass_on(answer, stage.module.Counted(estimate), reservation)
        for _ in range(8):
            await passed.__anext__()
        await passed.aclose()
        assert answer.is_closed

    asyncio.run(leave())
    assert stage.used() == (1, 150 + 5 + 50 * 2)


def test_an_estimate_that_finds_no_room_is_refused_before_the_model_is_asked(stage: Stage) -> None:
    answer = stage.ask(MESSAGES, max_tokens=250)
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert "retry-after" not in answer.headers, "it can never pass"
    assert (stage.upstream.asked, stage.used()) == ([], (0, 0))
    assert stage.ask(MESSAGES, headers={"x-api-key": "sk-bert"}, max_tokens=250).status_code == 200
    assert stage.ask(MESSAGES, headers={}).status_code == 401


def test_an_answer_beyond_its_estimate_is_owed(stage: Stage) -> None:
    for _ in range(40):
        stage.ask(CHAT, max_tokens=1)
    refused = stage.ask(CHAT, max_tokens=1)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    _, units = stage.gateway.plans["anna"].limiters
    assert 0 <= units.peek("anna:m").debt <= COST
    stage.clock.advance(int(refused.headers["retry-after"]))
    assert stage.ask(CHAT, max_tokens=1).status_code == 200
