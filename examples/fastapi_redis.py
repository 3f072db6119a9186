"""A default limit on Redis, an answer of the service's own, and a path that is not counted."""

import tidegate
from fastapi import FastAPI
from tidegate.asgi import RateLimitMiddleware


def too_many(request, decision):
    return {"error": "too many requests", "retry_after": decision.retry_after}


tidegate.configure(storage="redis://localhost", on_refused=too_many)
app = FastAPI()
app.add_middleware(RateLimitMiddleware, limit="100/minute", exempt_paths=["/health"])


@app.get("/tides")
async def tides():
    return {"high": "04:12"}


@app.get("/health")
async def health():
    return "ok"
