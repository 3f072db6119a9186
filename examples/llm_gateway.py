"""A gateway in front of a language model: limits on requests and tokens a minute, in one plan.

pip install 'tidegate[server]'
python examples/llm_gateway.py
curl -i -H 'authorization: Bearer sk-anna' -H 'content-type: application/json' \
     -d '{"prompt": "when is the tide high", "max_tokens": 50}' http://127.0.0.1:8000/v1/completions

The cost of a completion is known only when the model has answered. So its highest possible cost, by
the prompt and `max_tokens`, is charged before, and the unused part is given back afterwards. With
`"stream": true` that is when the stream has ended, even if the client disconnected early.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from tidegate import keys, rate_limit

app = FastAPI(title="Gateway")

# The customers, and the tokens a minute that they pay for.
CUSTOMERS = {"sk-anna": "anna", "sk-bert": "bert"}
TOKENS = {"anna": "1000/minute", "bert": "5000/minute"}
GUESTS = "100/minute"


def bearer(request: Request) -> str | None:
    return request.headers.get("authorization", "").removeprefix("Bearer ") or None


def customer(request: Request) -> str | None:
    return CUSTOMERS.get(bearer(request) or "")


# A client without a known key is identified by its address.
client = keys.first_of(customer, keys.client_ip())


def tokens_a_minute(request: Request) -> str:
    return TOKENS.get(customer(request) or "", GUESTS)


async def most_tokens(request: Request) -> int:
    """The highest possible cost of the completion."""
    asked = json.loads(await request.body())
    return len(asked["prompt"].split()) + int(asked.get("max_tokens", 100))


def tokens_used(request: Request, answer: Any) -> int:
    """The actual cost, once everything is sent or the client has disconnected."""
    tokens: int = request.state.tokens
    return tokens


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 100
    stream: bool = False


class Completion(BaseModel):
    text: str
    usage: int


async def model(prompt: str, max_tokens: int) -> AsyncIterator[str]:
    """Simulates the model: it repeats the prompt backwards, a word at a time."""
    for word in reversed(prompt.split()[-max_tokens:]):
        await asyncio.sleep(0)
        yield word


async def counted(request: Request, words: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yields the words of the model, and counts each as a used token."""
    async for word in words:
        request.state.tokens += 1
        yield word


async def events(words: AsyncIterator[str]) -> AsyncIterator[str]:
    async for word in words:
        yield f"data: {json.dumps(word)}\n\n"
    yield "data: [DONE]\n\n"


@app.post("/v1/completions", response_model=Completion)
@rate_limit("60/minute", key=client)
@rate_limit(tokens_a_minute, key=client, cost=most_tokens, cost_after=tokens_used)
async def completions(prompt: Prompt, request: Request) -> Any:
    request.state.tokens = len(prompt.prompt.split())
    words = counted(request, model(prompt.prompt, prompt.max_tokens))
    if prompt.stream:
        return StreamingResponse(events(words), media_type="text/event-stream")
    text = " ".join([word async for word in words])
    return Completion(text=text, usage=request.state.tokens)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, port=8000)
