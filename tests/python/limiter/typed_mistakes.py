"""Mistakes of the kinds that users make; type checkers find each line that says so, and no other.

test_types.py has this file read by mypy and by pyright. It is never run.
"""

from __future__ import annotations

from pathlib import Path

import flask
import tidegate as tg
from fastapi import Depends, FastAPI, Request
from tidegate import keys
from tidegate.asgi import RateLimitMiddleware
from tidegate.fastapi import DefaultRateLimit, RateLimit
from tidegate.flask import RateLimiter as FlaskRateLimit
from tidegate.httpx import RateLimitTransport
from tidegate.wsgi import RateLimitMiddleware as WSGIRateLimitMiddleware

limiter = tg.Limiter("5/minute", storage="redis://localhost", timeout=0.1)
plan = tg.Plan([limiter, tg.Limiter("100/hour")])
app = FastAPI()
server = flask.Flask(__name__)


def name_of(request: Request) -> str:
    return request.headers["x-name"]


def option_that_nothing_has() -> None:
    tg.Limiter("5/minute", timeot=0.1)  # mistake: option
    tg.rate_limit("5/minute", kee=name_of)  # mistake: option
    RateLimit("5/minute", override_defaults=True)  # mistake: option
    app.add_middleware(RateLimitMiddleware, limit="5/minute", exempt=["/health"])  # mistake: option
    FlaskRateLimit(server, "5/minute", default_limits=["5/minute"])  # mistake: option
    tg.configure(storag="redis://localhost")  # mistake: option
    RateLimitTransport(limiter=limiter, retry=3)  # mistake: option


def key_of_another_type(request: Request) -> None:
    limiter.hit(42)  # mistake: key
    limiter.allow(None)  # mistake: key
    limiter.acquire(request.client)  # mistake: key
    plan.hit([42, "me"])  # mistake: key
    tg.rate_limit("5/minute", key="x-name")  # mistake: key
    Depends(RateLimit("5/minute", key=request.headers["x-name"]))  # mistake: key


def cost_of_another_type() -> None:
    limiter.hit("me", "2")  # mistake: cost
    limiter.charge("me", 1.5)  # mistake: cost
    limiter.peek("me", cost="2")  # mistake: cost
    tg.rate_limit("5/minute", cost="2")  # mistake: cost
    plan.hit(["me", "us"], [1, "2"])  # mistake: cost
    WSGIRateLimitMiddleware(server.wsgi_app, "5/minute", cost=2.5)  # mistake: cost


async def call_without_await() -> bool:
    limiter.hit_async("me")  # mistake: await
    decision = limiter.hit_async("me")
    print(decision.retry_after)  # mistake: await
    slot = limiter.acquire_async("me").allowed  # mistake: await
    if slot or plan.hit_async(["me", "us"]).remaining:  # mistake: await
        limiter.refund_async("me")  # mistake: await
    return limiter.allow_async("me")  # mistake: await


def unknown_algorithm() -> None:
    tg.Limiter("5/minute", algorithm="sliding_window")  # mistake: algorithm
    tg.Limit("5/minute", algorithm="moving-window")  # mistake: algorithm
    tg.parse("5/minute", algorithm="leaky")  # mistake: algorithm
    tg.rate_limit("5/minute", algorithm="token_bucket")  # mistake: algorithm
    DefaultRateLimit("5/minute", algorithm="fixed")  # mistake: algorithm


def storage_of_another_type() -> None:
    tg.Limiter("5/minute", storage=Path("/var/lib/limits"))  # mistake: storage
    tg.rate_limit("5/minute", storage=6379)  # mistake: storage
    RateLimitMiddleware(app, "5/minute", storage={"host": "localhost"})  # mistake: storage
    tg.configure(storage=["redis://one", "redis://two"])  # mistake: storage
    FlaskRateLimit(server, "5/minute", storage=limiter)  # mistake: storage


def name_that_does_not_exist() -> None:
    limiter.limit("5/minute")  # mistake: name
    tg.limit("5/minute")  # mistake: name
    tg.RateLimiter("5/minute")  # mistake: name
    keys.ip_address()  # mistake: name
    print(limiter.hit("me").retry_in)  # mistake: name
    limiter.check(user="me")  # mistake: name


def limit_of_another_type() -> None:
    tg.Limiter(5)  # mistake: limit
    tg.rate_limit(100)  # mistake: limit
    RateLimit({"5/minute": "me"}["5/minute"], "100/hour")  # mistake: limit
    tg.Limit(5)  # mistake: limit
    tg.Limiter("5/minute", "100/hour")  # mistake: limit
    RateLimitMiddleware(app, limit=b"5/minute")  # mistake: limit


# Right, and close to what is wrong.
tg.Limiter(["5/minute", tg.Limit("100/hour")], algorithm="sliding-window", timeout="0.1")
tg.rate_limit("5/minute", key=name_of, cost=lambda request: 2, storage=limiter.storage)
tg.configure(storage="redis://localhost", timeout=0.1)
limiter.hit(b"me", 2)
plan.hit(["me", b"us"], [1, 2])
