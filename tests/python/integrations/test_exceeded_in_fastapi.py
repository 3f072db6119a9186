"""RateLimitExceeded, which acquired() and slot() raise, is a 429 in FastAPI."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from tidegate import rate_limit
from tidegate.fastapi import RateLimit, RateLimitExceeded

CLOCK = tg.ManualClock(10**18)


def service(where: str) -> Any:
    app = FastAPI()
    limiter = tg.Limiter("1/minute", clock=CLOCK)

    def checked() -> None:
        with limiter.acquired("k", timeout=0):
            pass

    async def route() -> str:
        checked()
        return "ok"

    async def free() -> str:
        return "ok"

    if where == "a route":
        app.get("/")(route)
    elif where == "a limited route":
        app.get("/")(rate_limit("9/minute", clock=CLOCK)(route))
    elif where == "a route with a dependency":
        app.get("/", dependencies=[Depends(RateLimit("9/minute", clock=CLOCK))])(route)
    else:
        app.get("/", dependencies=[Depends(checked)])(free)
    return app


@pytest.mark.parametrize(
    "where", ["a route", "a limited route", "a route with a dependency", "a dependency"]
)
def test_a_limit_that_the_code_finds_exceeded_is_a_429(where: str) -> None:
    client = TestClient(service(where))
    assert client.get("/").status_code == 200
    refused = client.get("/")
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "60"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["violated-policies"] == ["1/minute"]


@pytest.mark.parametrize(
    "kind", [RateLimitExceeded, tg.RateLimitExceeded, tg.TidegateError, 429, HTTPException]
)
def test_a_handler_of_the_service_answers_it(kind: Any) -> None:
    app = service("a route")

    @app.exception_handler(kind)  # type: ignore[untyped-decorator]
    async def answer(request: Request, exc: Any) -> JSONResponse:
        return JSONResponse({"mine": exc.decision.limit}, 429)

    client = TestClient(app)
    assert client.get("/").status_code == 200
    refused = client.get("/")
    assert (refused.status_code, refused.json()) == (429, {"mine": 1})
