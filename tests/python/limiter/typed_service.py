"""A service as a user types it, for `mypy --strict` to read; see test_types.py."""

from __future__ import annotations

from typing import Annotated, Any, assert_type

import tidegate as tg
from fastapi import APIRouter, Depends, FastAPI, Request
from flask import Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from tidegate import keys, rate_limit
from tidegate.asgi import RateLimitMiddleware
from tidegate.django import rate_limit as django_rate_limit
from tidegate.fastapi import RateLimit
from tidegate.flask import RateLimiter as FlaskRateLimit
from tidegate.rules import RuleFile, Tiers
from tidegate.types import Algorithm
from tidegate.wsgi import RateLimitMiddleware as WSGIRateLimitMiddleware

app = FastAPI(dependencies=[Depends(RateLimit("1000/hour"))])
app.add_middleware(
    RateLimitMiddleware,
    limit="100/minute",
    key=keys.client_ip(trusted_proxies=["10.0.0.0/8"]),
    storage="redis://localhost",
    timeout=0.05,
)
starlette = Starlette(middleware=[Middleware(RateLimitMiddleware, limit=["5/minute", "9/hour"])])
mounted = RateLimitMiddleware(app, "5/minute")
named = RateLimitMiddleware(app=app, limit=tg.Limit("5/minute"))
router = APIRouter(dependencies=[Depends(RateLimit("10/second", scope="router"))])


def api_key(request: Request) -> str | None:
    return request.headers.get("x-api-key")


@router.get("/report")
@rate_limit("5/minute", key=api_key, cost=lambda request: 2, scope="reports")
async def report(number: int, *, kind: str = "short") -> dict[str, int]:
    return {kind: number}


@rate_limit("5/minute")
def text(number: int) -> str:
    return str(number)


@app.get("/left")
def left(decision: Annotated[tg.Decision, Depends(RateLimit("5/minute"))]) -> int:
    return assert_type(decision.remaining, int)


class Counting(tg.Limiter):
    calls = 0


async def use() -> None:
    assert_type(await report(1, kind="long"), dict[str, int])
    assert_type(text(1), str)
    async with tg.Limiter("5/minute") as limiter:
        assert_type(limiter, tg.Limiter)
        assert_type(await limiter.hit_async("me"), tg.Decision)
        assert_type(limiter.allow(b"me", 2), bool)
        either: list[str | bytes] = ["me", b"you"]
        assert_type(limiter.hit_many(either), list[bool])
    with Counting("5/minute") as counting:
        counting.calls += 1
    rules = tg.RuleSet.load("rules.yaml")
    with tg.Limiter(rules=rules, tiers=Tiers({"1": "gold"})) as by_rules:
        assert_type(by_rules, tg.RuleLimiter)
        assert_type(by_rules.check(user="1"), tg.Decision)
        assert_type(by_rules.explain(user="1").priority, str)
        by_rules.use(rules)
        by_rules.hit("1")  # type: ignore[attr-defined]
    assert_type(tg.Limiter(rules), tg.RuleLimiter)
    assert_type(tg.Limiter(RuleFile("rules.yaml")), tg.RuleLimiter)
    tg.Limiter("5/minute").check(user="1")  # type: ignore[attr-defined]
    tg.Limiter("5/minute", tiers=Tiers({}))  # type: ignore[call-overload]
    tg.Limiter(rules=rules, algorithm="gcra")  # type: ignore[call-overload]
    limiters: list[tg.BaseLimiter] = [tg.Limiter("5/minute"), by_rules]
    assert_type(limiters[0].stats(), tg.Stats)
    chosen: Algorithm = tg.Limit("5/minute").algorithm
    tg.Limiter("5/minute", algorithm=chosen)


flask = Flask(__name__)
flask.wsgi_app = WSGIRateLimitMiddleware(flask.wsgi_app, "5/minute")  # type: ignore[method-assign]
wrong: Any = text("1")  # type: ignore[arg-type]
# What no storage has, and a value that its option does not take.
RateLimitMiddleware(app, "5/minute", timeot=1)  # type: ignore[call-arg]
WSGIRateLimitMiddleware(flask.wsgi_app, "5/minute", timeot=1)  # type: ignore[call-arg]
RateLimit("5/minute", timeot=1)  # type: ignore[call-arg]
FlaskRateLimit(flask, storage="redis://localhost", timeot=1)  # type: ignore[call-arg]
rate_limit("5/minute", timeot=1)  # type: ignore[call-arg]
django_rate_limit("5/minute", timeot=1)  # type: ignore[call-arg]
tg.Limiter("5/minute", capacity=1_000, timeot=1)  # type: ignore[call-overload]
tg.Limiter("5/minute", storage="redis://localhost", on_error=1)  # type: ignore[call-overload]
tg.Limiter("5/minute", algorithm="sliding-windows")  # type: ignore[call-overload]
tg.Limit("5/minute", algorithm="fixed_window")  # type: ignore[call-overload]
tg.parse_many("5/minute", algorithm="")  # type: ignore[arg-type]
tg.replay("5/minute", [], [], algorithm="x")  # type: ignore[arg-type]
rate_limit("5/minute", algorithm="token_bucket")  # type: ignore[arg-type]
RateLimitMiddleware(app, "5/minute", algorithm="token_bucket")  # type: ignore[arg-type]
