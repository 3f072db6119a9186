"""A gateway in front of language models: limits on requests and weighted tokens, in one plan.

pip install 'tidegate[server]' httpx
UPSTREAM=https://api.example.com python examples/llm_gateway.py
curl -i -H 'authorization: Bearer sk-anna' -H 'content-type: application/json' \
     -d '{"model": "m", "messages": [{"role": "user", "content": "when is high tide"}]}' \
     http://127.0.0.1:8000/v1/chat/completions

It passes chat completions (`/v1/chat/completions`) and messages (`/v1/messages`) on, whole or as
streams. What an answer costs is known when it has ended, by the usage in it. So an estimate is
reserved before, or the request is refused, and it is settled exactly once: at the usage; at what
was passed on, if the upstream's stream breaks off or the client leaves; at nothing, if the upstream
refuses. Tokens are limited by customer and model.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import tidegate as tg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

# Keys of customers, and the units a minute that they pay for. A unit is a tenth of an input token.
CUSTOMERS = {"sk-anna": "anna", "sk-bert": "bert"}
UNITS = {"anna": 10_000, "bert": 50_000}
INPUT = 10
COST = tg.UsageCost({"input": INPUT, "cached": 1, "output": 50})
# Text has about four characters a token.
CHARACTERS_A_TOKEN = 4
# How long an answer may take.
TTL = 600.0

Usage = Mapping[str, int]


def estimate_of(asked: Mapping[str, Any]) -> Usage:
    """The most that a request is expected to use."""
    most = asked.get("max_completion_tokens") or asked.get("max_tokens") or 1000
    text = json.dumps([asked.get("system", ""), asked.get("messages", [])])
    return {"input": len(text) // CHARACTERS_A_TOKEN + 1, "output": int(most)}


def text_in(event: Mapping[str, Any]) -> str:
    """The text of an event of a stream, of either format."""
    if event.get("choices"):
        return str((event["choices"][0].get("delta") or {}).get("content") or "")
    return str((event.get("delta") or {}).get("text") or "")


class Counted:
    """What an answer has used, as far as it has come."""

    def __init__(self, estimate: Usage) -> None:
        self.estimate = estimate
        self.usage: dict[str, int] = {}
        self.characters = 0

    def hear(self, line: str) -> None:
        """Reads a line of a stream of events."""
        if not line.startswith("data:") or line.endswith("[DONE]"):
            return
        try:
            event = json.loads(line[5:])
        except ValueError:
            return
        self.characters += len(text_in(event))
        self.usage.update(tg.usage_in(event) or {})

    @property
    def units(self) -> int:
        """What the answer costs, by its usage; what that lacks is taken from the estimate of the
        input and from the text passed on."""
        passed = self.characters // CHARACTERS_A_TOKEN
        output = max(passed, self.usage.get("output", 0))
        given = {"input": self.estimate["input"]} if "input" not in self.usage else {}
        return COST.units({**given, **self.usage, "output": output})


class Gateway:
    """The application, over a client of the upstream."""

    def __init__(self, upstream: httpx.AsyncClient, **options: Any) -> None:
        self.upstream = upstream
        requests = tg.Limiter("60/minute", prefix="requests", **options)
        options["storage"] = requests.storage
        self.plans = {}
        for customer, units in UNITS.items():
            # An answer may be longer than its estimate; the customer then owes the rest.
            limiter = tg.Limiter(f"{units}/minute", prefix=f"units:{customer}", **options)
            self.plans[customer] = tg.Plan([requests, limiter])

    async def answer(self, request: Request) -> Response:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        customer = CUSTOMERS.get(request.headers.get("x-api-key") or bearer)
        if customer is None:
            return JSONResponse({"error": {"type": "authentication_error"}}, 401)
        asked = await request.json()
        if asked.get("stream") and request.url.path.endswith("completions"):
            asked["stream_options"] = {"include_usage": True}  # else the last event has no usage
        counted = Counted(estimate_of(asked))
        keys = [customer, f"{customer}:{asked.get('model')}"]
        units = COST.units(counted.estimate)
        plan = self.plans[customer]
        reservation = await plan.reserve_async(keys, [1, units], ttl=TTL, on_exit="keep")
        headers = await self.headers(plan, keys, reservation.decision)
        if not reservation:
            error = {"type": "rate_limit_error", "message": "too many requests or tokens a minute"}
            return JSONResponse({"type": "error", "error": error}, 429, headers)
        try:
            sent = self.upstream.build_request(
                "POST", request.url.path, json=asked, headers=self.passed_on(request)
            )
            answer = await self.upstream.send(sent, stream=True)
        except httpx.HTTPError:
            await reservation.release_async()
            return JSONResponse({"error": {"type": "upstream_error"}}, 502, headers)
        if answer.status_code >= 400:
            await reservation.release_async()
            content = await answer.aread()
            return Response(content, answer.status_code, headers, answer.headers["content-type"])
        if asked.get("stream"):
            passed = self.pass_on(answer, counted, reservation)
            return StreamingResponse(passed, media_type="text/event-stream", headers=headers)
        body = json.loads(await answer.aread())
        counted.usage.update(tg.usage_in(body) or counted.estimate)
        await reservation.commit_async([1, counted.units])
        return JSONResponse(body, headers=await self.headers(plan, keys, reservation.decision))

    async def pass_on(
        self, answer: httpx.Response, counted: Counted, reservation: tg.Reservation
    ) -> AsyncIterator[str]:
        try:
            async for line in answer.aiter_lines():
                counted.hear(line)
                yield f"{line}\n"
        except httpx.HTTPError:
            yield 'event: error\ndata: {"type": "error", "error": {"type": "upstream_error"}}\n\n'
        finally:  # also if the client has left, which cancels what is awaited here
            await asyncio.shield(asyncio.ensure_future(self.end(answer, counted, reservation)))

    @staticmethod
    async def end(answer: httpx.Response, counted: Counted, reservation: tg.Reservation) -> None:
        await reservation.commit_async([1, counted.units])
        await answer.aclose()

    @staticmethod
    def passed_on(request: Request) -> dict[str, str]:
        """The fields of the request that the upstream reads, with the gateway's own key."""
        names = ("anthropic-version", "content-type")
        fields = {name: request.headers[name] for name in names if name in request.headers}
        return {**fields, "authorization": f"Bearer {os.environ.get('UPSTREAM_KEY', '')}"}

    @staticmethod
    async def headers(plan: tg.Plan, keys: list[str], decision: tg.Decision) -> dict[str, str]:
        """The fields that clients of OpenAI read. A token stands for an input token."""
        fields = {}
        units = (("requests", 1), ("tokens", INPUT))
        for (what, each), limiter, key in zip(units, plan.limiters, keys):
            found = await limiter.peek_async(key)
            fields[f"x-ratelimit-limit-{what}"] = str(found.limit // each)
            fields[f"x-ratelimit-remaining-{what}"] = str(found.remaining // each)
            fields[f"x-ratelimit-reset-{what}"] = f"{found.reset_after:.3f}s"
        if not decision and decision.retry_after != float("inf"):
            fields["retry-after"] = str(int(decision.retry_after) + 1)
        return fields


def make_app(upstream: httpx.AsyncClient, **options: Any) -> Starlette:
    gateway = Gateway(upstream, **options)
    paths = ("/v1/chat/completions", "/v1/messages")
    return Starlette(routes=[Route(path, gateway.answer, methods=["POST"]) for path in paths])


if __name__ == "__main__":
    import uvicorn

    address = os.environ.get("UPSTREAM", "https://api.openai.com")
    uvicorn.run(make_app(httpx.AsyncClient(base_url=address, timeout=TTL)), port=8000)
