"""What the web frameworks' layers ask of Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from polling import eventually_async
from redis_server import PATIENT, RedisServer
from tidegate import asgi
from tidegate.keys import peer
from tidegate.web.execution import BLOCKING
from tidegate.web.request_limiter import RequestLimiter

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_all_limits_of_a_flask_request_are_one_command(server: RedisServer) -> None:
    flask = pytest.importorskip("flask")
    from tidegate.flask import RateLimiter

    app = flask.Flask(__name__)
    limiter = RateLimiter(app, "9/minute", storage=server.uri())
    blueprint = flask.Blueprint("ships", __name__)
    limiter.limit("6/minute")(blueprint)

    @blueprint.get("/")
    @limiter.limit("5/hour", key=lambda request: "everybody")
    @limiter.limit("2/minute")
    async def ships() -> str:
        return "ships"

    app.register_blueprint(blueprint)
    client = app.test_client()
    client.get("/")  # which loads the script
    before = server.calls()["evalsha"]
    second, refusal = client.get("/"), client.get("/")
    assert server.calls()["evalsha"] - before == 2
    assert (second.status_code, refusal.status_code) == (200, 429)
    assert refusal.json["violated-policies"] == ["2/minute"]
    assert 'q=9;w=60, "6/minute"' in refusal.headers["RateLimit-Policy"]
    # The refusal was charged nowhere.
    assert client.get("/nowhere").headers["X-RateLimit-Remaining"] == "6"


def test_async_middleware_of_django_does_not_block_its_loop(server: RedisServer) -> None:
    pytest.importorskip("django")
    from django.conf import settings

    if not settings.configured:
        settings.configure()
    from django.http import HttpResponse
    from django.test import RequestFactory, override_settings
    from tidegate.django import RateLimitMiddleware

    async def page(request: object) -> HttpResponse:
        return HttpResponse("page")

    async def statuses(middleware: RateLimitMiddleware) -> list[int]:
        request = RequestFactory().get("/")
        answers = await asyncio.gather(*(middleware(request) for _ in range(20)))
        return [answer.status_code for answer in answers]

    with override_settings(TIDEGATE={"LIMIT": "5/hour", "STORAGE": server.uri()}, MIDDLEWARE=[]):
        middleware = RateLimitMiddleware(page)
        blocking = []
        request_limiter = middleware._request_limiter
        assert request_limiter is not None
        assert isinstance(request_limiter.limiter, tg.Limiter)
        request_limiter.limiter.hit = lambda *_: blocking.append(True)  # type: ignore[method-assign]
        assert sorted(asyncio.run(statuses(middleware))) == [200] * 5 + [429] * 15
        assert blocking == []


def test_fields_go_by_the_clock_of_the_host(server: RedisServer) -> None:
    """Whatever the server's clock shows: here the host's reading of the decision is an hour on."""
    with tg.Limiter("2/minute", storage=server.uri(PATIENT), algorithm="fixed-window") as limiter:
        request_limiter = RequestLimiter(limiter, address=peer, headers=("x-ratelimit",))
        ahead_ns = limiter._now_ns() + 3600 * 10**9
        limiter._now_ns = lambda: ahead_ns  # type: ignore[method-assign]
        request = {"client": ("192.0.2.1", 1)}

        async def checked() -> Any:
            outcome = request_limiter.check(request)
            return await outcome if asyncio.iscoroutine(outcome) else outcome

        for outcome in (request_limiter.check(request, BLOCKING), asyncio.run(checked())):
            assert outcome is not None
            reset = int(dict(outcome.fields())[b"x-ratelimit-reset"])
            assert 0 <= reset - ahead_ns / 1e9 <= 61


def test_an_overridden_hit_async_is_called(server: RedisServer) -> None:
    class Counting(tg.Limiter):
        calls = 0

        async def hit_async(self, key: str | bytes, cost: int = 1) -> tg.Decision:
            self.calls += 1
            return await super().hit_async(key, cost)

    async def remaining_after(limiter: Counting) -> Any:
        request_limiter = RequestLimiter(limiter, address=peer, headers=())
        outcome: Any = request_limiter.check({"client": ("192.0.2.1", 1)})
        return (await outcome).decision.remaining

    with Counting("5/hour", storage=server.uri(PATIENT)) as limiter:
        assert asyncio.run(remaining_after(limiter)) == 4
        assert limiter.calls == 1


def test_a_plan_waits_for_requests_and_places_of_redis(server: RedisServer) -> None:
    requests = tg.Limiter("5/hour", storage=server.uri())
    places = tg.Limiter("1 at once", storage=requests.storage)
    plan = tg.Plan([requests, places])

    async def main() -> None:
        async with plan.slot(["u", "m"]) as held:
            assert held.decision.allowed
            forecast = await plan.peek_async(["u", "m"], outcomes=True)
            assert [each.allowed for each in forecast.outcomes] == [True, False]
            later = asyncio.ensure_future(plan.acquire_async(["u", "m"], timeout=60))
            await eventually_async(lambda: bool(requests._room.lines))
        decision = await later
        assert decision.allowed
        await plan.refund_async(["u", "m"], decision=decision)
        refused = await plan.acquire_async(["u", "m"], costs=[5, 1], timeout=1)
        assert (refused.allowed, plan.binding(refused)) == (False, 0)

    asyncio.run(main())
    assert requests.peek("u").remaining == 4
    assert places.peek("m").allowed


def test_middleware_settles_in_redis_what_rules_charged(server: RedisServer) -> None:
    rules = {
        "rules": [
            {"id": "tokens", "by": "ip", "limit": "100/hour"},
            {"id": "requests", "by": "ip", "limit": "10/hour", "counts": "requests"},
        ],
        "costs": [{"endpoint": "/**", "cost": {"estimate": 30, "usage": {"output": 5}}}],
    }

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    middleware = asgi.RateLimitMiddleware(
        application,
        rules=tg.RuleSet(rules),
        storage=server.uri(PATIENT),
        cost_after=lambda scope, answer: {"output": 14},
    )

    def remaining() -> dict[str | None, int]:
        found = middleware.limiter.peek(ip="192.0.2.1", endpoint="/x")
        return {each.rule: each.remaining for each in found.outcomes}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/x",
        "headers": [],
        "client": ("192.0.2.1", 1),
    }

    async def ask() -> None:
        async def ignore(message: Any) -> None:
            pass

        await middleware(scope, ignore, ignore)

    asyncio.run(ask())
    assert remaining() == {"tokens": 30, "requests": 9}
    with middleware.limiter:
        pass


ASKING = """
from starlette.testclient import TestClient

with TestClient(app) as client:
    assert [client.get("/health").status_code for _ in range(101)] == [200] * 101
    answers = [client.get("/tides") for _ in range(110)]
assert {answer.status_code for answer in answers[:100]} == {200}
refusal = next(answer for answer in answers if answer.status_code == 429)
assert refusal.json()["error"] == "too many requests"
assert refusal.headers["x-ratelimit-limit"] == "100"
"""


def test_a_service_on_redis_with_an_answer_of_its_own_needs_fourteen_lines(
    server: RedisServer,
) -> None:
    pytest.importorskip("fastapi")
    program = (EXAMPLES / "fastapi_redis.py").read_text()
    body = program.partition('"""\n\n')[2]
    assert len([line for line in body.splitlines() if line]) <= 14
    before = server.calls().get("evalsha", 0)
    # In a process of its own, since it configures all limits of a process.
    program = program.replace("redis://localhost", server.uri()) + ASKING
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert server.calls()["evalsha"] - before >= 100
