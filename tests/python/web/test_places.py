"""Places of concurrency limits in rules: middleware gives them back at the end of a response."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import tidegate as tg
from place_rules import RULES
from tidegate.asgi import RateLimitMiddleware
from tidegate.rules import RuleSet, Tiers
from tidegate.wsgi import RateLimitMiddleware as WSGIMiddleware


def of_rules(rules: Any = RULES, **options: Any) -> Any:
    return tg.Limiter(rules=rules, clock=tg.ManualClock(10**18), **options)


def left(limiter: Any, **attributes: str) -> dict[str, int]:
    attributes = attributes or {"ip": "192.0.2.1"}
    return {each.rule: each.remaining for each in limiter.peek(**attributes).outcomes}


def test_a_release_gives_back_places_and_no_units() -> None:
    limiter = of_rules()
    decision = limiter.check(ip="192.0.2.1")
    assert left(limiter) == {"calls": 99, "places": 1}
    limiter.release(decision, ip="192.0.2.1")
    assert left(limiter) == {"calls": 99, "places": 2}


def test_a_release_without_places_gives_nothing_back() -> None:
    rules = RuleSet(
        {"rules": [{"id": "log", "by": "ip", "limit": "5/minute", "algorithm": "sliding-log"}]}
    )
    limiter = of_rules(rules)
    limiter.release(limiter.check(ip="192.0.2.1"), ip="192.0.2.1")
    assert left(limiter) == {"log": 4}


def test_a_release_awaits_nothing_with_memory() -> None:
    limiter = of_rules()

    async def call() -> None:
        await limiter.release_async(await limiter.check_async(ip="192.0.2.1"), ip="192.0.2.1")

    asyncio.run(call())
    assert left(limiter) == {"calls": 99, "places": 2}


def test_a_release_is_possible_after_the_limiter_was_closed() -> None:
    limiter = of_rules()
    same = tg.Limiter(rules=RULES, storage=limiter.storage, clock=tg.ManualClock(10**18))
    decision = limiter.check(ip="192.0.2.1")
    limiter.close()
    limiter.release(decision, ip="192.0.2.1")
    assert left(same)["places"] == 2


def test_a_release_needs_a_decision() -> None:
    with pytest.raises(tg.ConfigurationError, match="the decision"):
        of_rules().release(None, ip="192.0.2.1")


def test_a_place_is_given_back_by_the_rules_that_took_it() -> None:
    limiter = of_rules()
    decision = limiter.check(ip="192.0.2.1")
    limiter.use(RuleSet({"rules": [{"id": "calls", "by": "ip", "limit": "100/hour"}]}))
    limiter.release(decision, ip="192.0.2.1")
    limiter.use(RULES)
    assert left(limiter)["places"] == 2


SCOPE = {"type": "http", "method": "GET", "path": "/", "client": ("192.0.2.1", 1), "headers": []}


async def nothing() -> Any:
    return {"type": "http.request"}


class Service:
    """An ASGI application that answers when it is told to, and what clients got."""

    def __init__(self, limiter: Any, **options: Any) -> None:
        self.go = asyncio.Event()
        self.sent: list[Any] = []
        self.fails = False
        self.app = RateLimitMiddleware(self._answer, limiter=limiter, **options)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        kind = "websocket.accept" if scope["type"] == "websocket" else "http.response.start"
        await send({"type": kind, "status": 200, "headers": []})
        await self.go.wait()
        if self.fails:
            raise LookupError("broken")
        if scope["type"] == "http":
            await send({"type": "http.response.body", "body": b""})

    def begin(self, **scope: Any) -> asyncio.Task[None]:
        async def send(message: Any) -> None:
            if "status" in message:
                self.sent.append(message["status"])

        return asyncio.ensure_future(self.app({**SCOPE, **scope}, nothing, send))  # type: ignore[arg-type]


async def started() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


WEBSOCKET = {"type": "websocket", "extensions": {"websocket.http.response": {}}}


@pytest.mark.parametrize("scope", [{}, WEBSOCKET], ids=["http", "websocket"])
@pytest.mark.parametrize("end", ["answers", "raises", "is cancelled"])
def test_asgi_gives_a_place_back_when_the_response_ends(scope: Any, end: str) -> None:
    async def run() -> None:
        limiter = of_rules()
        service = Service(limiter)
        service.fails = end == "raises"
        calls = [service.begin(**scope) for _ in range(2)]
        await started()
        assert left(limiter)["places"] == 0
        await service.begin(**scope)
        assert service.sent[-1] == 429
        if end == "is cancelled":
            for call in calls:
                call.cancel()
        service.go.set()
        await asyncio.gather(*calls, return_exceptions=True)
        await started()
        assert left(limiter) == {"calls": 98, "places": 2}

    asyncio.run(run())


def test_a_long_response_keeps_its_place_beyond_the_lease() -> None:
    async def run() -> None:
        limiter = of_rules()
        clock = tg.ManualClock(10**18)
        limiter = tg.Limiter(rules=RULES, clock=clock)
        service = Service(limiter)
        call = service.begin()
        await started()
        for _ in range(5):
            clock.advance(31)
            assert left(limiter)["places"] == 1
        service.go.set()
        await call
        assert left(limiter)["places"] == 2

    asyncio.run(run())


def test_a_place_goes_back_where_it_was_taken_though_the_tier_has_changed() -> None:
    tier = ["free"]
    rules = RuleSet(
        {
            "tiers": ["free", "paid"],
            "rules": [
                {
                    "id": "places",
                    "by": "ip",
                    "limits": {"free": "2/minute", "paid": "unlimited"},
                    "algorithm": "concurrency",
                }
            ],
        }
    )

    async def run() -> None:
        limiter = of_rules(rules, tiers=Tiers(lambda ip: tier[0], by="ip", ttl=0))
        service = Service(limiter)
        call = service.begin()
        await started()
        tier[0] = "paid"
        service.go.set()
        await call
        tier[0] = "free"
        assert left(limiter)["places"] == 2

    asyncio.run(run())


def environ() -> dict[str, Any]:
    return {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1"}


def ignoring(*args: Any) -> None:
    pass


@pytest.mark.parametrize("end", ["reads it to its end", "closes it", "drops it"])
def test_wsgi_gives_a_place_back_when_the_server_ends_the_answer(end: str) -> None:
    limiter = of_rules()

    def service(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        return iter([b"1", b"2"])

    app = WSGIMiddleware(service, limiter=limiter)
    body: Any = app(environ(), ignoring)
    parts = iter(body)
    assert next(parts) == b"1"
    assert left(limiter)["places"] == 1
    if end == "reads it to its end":
        assert list(parts) == [b"2"]
    elif end == "closes it":
        body.close()
    else:
        del parts
    assert left(limiter) == {"calls": 99, "places": 2}
    body.close()
    assert left(limiter)["places"] == 2


@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_wsgi_gives_a_place_back_when_the_application_raises(error: Any) -> None:
    limiter = of_rules()

    def service(environ: Any, start_response: Any) -> Any:
        assert left(limiter)["places"] == 1
        raise error("broken")

    app = WSGIMiddleware(service, limiter=limiter)
    with pytest.raises(error):
        app(environ(), ignoring)
    assert left(limiter)["places"] == 2


def test_asgi_holds_no_place_for_the_background_tasks_of_a_response() -> None:
    limiter = of_rules()
    during: list[int] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        during.append(left(limiter)["places"])
        await send({"type": "http.response.body", "body": b"2"})
        during.append(left(limiter)["places"])

    async def send(message: Any) -> None:
        pass

    app = RateLimitMiddleware(application, limiter=limiter)
    asyncio.run(app(dict(SCOPE), nothing, send))
    assert during == [1, 2]
    assert left(limiter)["places"] == 2
