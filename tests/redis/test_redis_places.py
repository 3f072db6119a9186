"""Places of concurrency limits in rules are given back in Redis at the end of each response."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tidegate as tg
from place_rules import RULES
from polling import eventually
from redis_server import RedisServer
from tidegate.asgi import RateLimitMiddleware
from tidegate.wsgi import RateLimitMiddleware as WSGIMiddleware


def left(limiter: Any) -> dict[str, int]:
    return {each.rule: each.remaining for each in limiter.peek(ip="192.0.2.1").outcomes}


def test_a_release_gives_back_the_place_of_its_decision(server: RedisServer) -> None:
    with tg.Limiter(rules=RULES, storage=server.uri()) as limiter:
        first, second = (limiter.check(ip="192.0.2.1") for _ in range(2))
        assert not limiter.check(ip="192.0.2.1")
        limiter.release(first, ip="192.0.2.1")
        assert left(limiter) == {"calls": 98, "places": 1}
        extended = limiter._extend({"ip": "192.0.2.1", "cost": 1}, second)
        assert extended is not None
        limiter.release(extended, ip="192.0.2.1")
        assert left(limiter) == {"calls": 98, "places": 2}


@pytest.mark.parametrize("by_rules", [True, False])
def test_asgi_gives_places_back_without_blocking(server: RedisServer, by_rules: bool) -> None:
    statuses: list[int] = []

    async def run(limiter: Any) -> None:
        go = asyncio.Event()

        async def service(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await go.wait()

        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            if "status" in message:
                statuses.append(message["status"])

        app = RateLimitMiddleware(service, limiter=limiter)
        scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
        calls = [
            asyncio.ensure_future(app({**scope, "client": ("192.0.2.1", n)}, receive, send))
            for n in range(3)
        ]
        await asyncio.to_thread(eventually, lambda: len(statuses) == 3)
        go.set()
        await asyncio.gather(*calls)

    given: Any = RULES if by_rules else "2 at once"
    with tg.Limiter(given, storage=server.uri()) as limiter:
        asyncio.run(run(limiter))
        assert sorted(statuses) == [200, 200, 429]
        if by_rules:
            assert left(limiter) == {"calls": 98, "places": 2}
        else:
            assert limiter.peek("192.0.2.1").remaining == 2


def test_wsgi_gives_places_back(server: RedisServer) -> None:
    def service(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b""]

    def ask(app: Any) -> Any:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1"}
        return app(environ, lambda *args: None)

    with tg.Limiter(rules=RULES, storage=server.uri()) as limiter:
        app = WSGIMiddleware(service, limiter=limiter)
        for _ in range(5):
            ask(app).close()
        assert left(limiter) == {"calls": 95, "places": 2}
