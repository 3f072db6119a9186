"""A gateway before a language model: so many requests and so many tokens a minute, in one plan.

pip install 'tidegate[server]'
python examples/llm_gateway.py
curl -i -H 'authorization: Bearer sk-anna' -H 'content-type: application/json' \
     -d '{"prompt": "when is the tide high", "max_tokens": 50}' http://127.0.0.1:8000/v1/completions

What a completion costs is known only when the model has answered. So what it may cost at most
is charged before, by the prompt and `max_tokens`, and what it did not take is given back.
"""

from __future__ import annotations

import json

from fastapi import FastAPI, Request
from pydantic import BaseModel
from tidegate import keys, rate_limit

app = FastAPI(title="Gateway")

# Who may come, and the tokens a minute that they pay for.
CUSTOMERS = {"sk-anna": "anna", "sk-bert": "bert"}
TOKENS = {"anna": "1000/minute", "bert": "5000/minute"}
GUESTS = "100/minute"


def bearer(request: Request) -> str | None:
    return request.headers.get("authorization", "").removeprefix("Bearer ") or None


def customer(request: Request) -> str | None:
    return CUSTOMERS.get(bearer(request) or "")


# Who shows no key that is known is told apart by address.
client = keys.first_of(customer, keys.client_ip())


def tokens_a_minute(request: Request) -> str:
    return TOKENS.get(customer(request) or "", GUESTS)


async def most_tokens(request: Request) -> int:
    """What the completion may cost at most."""
    asked = json.loads(await request.body())
    return len(asked["prompt"].split()) + int(asked.get("max_tokens", 100))


async def tokens_used(request: Request, completion: Completion) -> int:
    return completion.usage


class Prompt(BaseModel):
    prompt: str
    max_tokens: int = 100


class Completion(BaseModel):
    text: str
    usage: int


async def model(prompt: str, max_tokens: int) -> str:
    """Stands for the model: it says the prompt backwards."""
    return " ".join(reversed(prompt.split()[-max_tokens:]))


@app.post("/v1/completions")
@rate_limit("60/minute", key=client)
@rate_limit(tokens_a_minute, key=client, cost=most_tokens, cost_after=tokens_used)
async def completions(prompt: Prompt) -> Completion:
    text = await model(prompt.prompt, prompt.max_tokens)
    return Completion(text=text, usage=len(prompt.prompt.split()) + len(text.split()))


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, port=8000)
