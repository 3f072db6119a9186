"""A refund by the web layer goes where the request was charged."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
import tidegate as tg
from outages import Direct, Line
from proxy import Proxy
from redis_server import RedisServer
from tidegate.web.combined import CombinedLimiter
from tidegate.web.execution import AWAITING, BLOCKING
from tidegate.web.request_limiter import RequestDecision, RequestLimiter

START = 1_700_000_000 * 10**9
REQUEST = object()
ALGORITHMS = ("token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log")


def limiter_of(limiter: tg.Limiter, **options: Any) -> RequestLimiter:
    return RequestLimiter(
        limiter, address=lambda request: None, key=lambda request: "k", headers=(), **options
    )


class Service:
    """A request limiter, or several, of limits in one Redis, and what is counted for them."""

    def __init__(
        self, kind: str, algorithm: str, server: RedisServer, line: Line, clock: tg.ManualClock
    ) -> None:
        self.name = f"{kind} of {algorithm}"
        limits = [tg.Limit(f"{n}/hour", algorithm=algorithm) for n in (20, 30)]
        one, other = (
            {"prefix": f"{self.name} {n}", "storage": line.storage, "clock": clock} for n in "12"
        )
        after = {"cost_after": lambda request, response: response}
        self.checker: RequestLimiter | CombinedLimiter
        if kind == "plain":
            self.checker = limiter_of(tg.Limiter(limits, **one), cost=4)
        elif kind == "settled":
            self.checker = limiter_of(tg.Limiter(limits, **one), cost=4, **after)
        else:
            self.checker = CombinedLimiter(
                [
                    limiter_of(tg.Limiter(limits, **one), cost=4, **after),
                    limiter_of(tg.Limiter(limits, **other), cost=4, **after),
                ]
            )
        prefixes = [one["prefix"], other["prefix"]] if kind == "stack" else [one["prefix"]]
        self.direct = [
            Direct(server, line, clock, limit=limit, prefix=prefix)
            for limit, prefix in itertools.product(limits, prefixes)
        ]

    def pass_one(self, is_async: bool) -> RequestDecision:
        async def passed() -> Any:
            outcome = self.checker.check(REQUEST, AWAITING)
            return outcome if isinstance(outcome, RequestDecision) else await outcome  # type: ignore[misc]

        outcome = asyncio.run(passed()) if is_async else self.checker.check(REQUEST, BLOCKING)
        assert outcome is not None
        assert outcome.decision.allowed
        return outcome

    def give_back(self, outcome: RequestDecision, units: int, is_async: bool) -> None:
        execution = AWAITING if is_async else BLOCKING

        async def coroutine() -> None:
            if units == 4:
                await outcome.undo(execution)
            else:
                await outcome.settle(REQUEST, 4 - units, execution)

        asyncio.run(coroutine()) if is_async else BLOCKING.run(coroutine())

    def shared(self) -> set[int]:
        return {direct.used("k") for direct in self.direct}

    def local(self) -> set[int]:
        return {
            direct.used_of_share("k", direct.local.limits[0].capacity) for direct in self.direct
        }


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("kind", "units"), [("plain", 4), *itertools.product(["settled", "stack"], [3, 4])]
)
def test_of_a_request_that_redis_did_not_charge(
    server: RedisServer, proxy: Proxy, clock: tg.ManualClock, kind: str, units: int, is_async: bool
) -> None:
    line = Line(proxy, clock)
    services = [Service(kind, algorithm, server, line, clock) for algorithm in ALGORITHMS]
    shared = [service.pass_one(is_async) for service in services]
    line.cut()
    local = [service.pass_one(is_async) for service in services]
    for service, outcome in zip(services, local):
        assert (service.shared(), service.local()) == ({4}, {4}), service.name
        assert outcome.decision.degraded
    line.mend()
    for service, outcome in zip(services, local):
        service.give_back(outcome, units, is_async)
        assert service.shared() == {4}, service.name
    for service, outcome in zip(services, shared):
        service.give_back(outcome, units, is_async)
        assert service.shared() == {4 - units}, service.name
    line.cut()
    for service, outcome in zip(services, shared):
        assert service.local() == {4 - units}, service.name
        # Redis charged it, and is not there to give anything back.
        service.give_back(outcome, units, is_async)
        assert service.local() == {4 - units}, service.name


@pytest.mark.parametrize("is_cut", [False, True])
def test_expired_units_of_the_fallbacks_share_are_not_given_back(
    server: RedisServer, proxy: Proxy, clock: tg.ManualClock, is_cut: bool
) -> None:
    line = Line(proxy, clock, "&fallback_share=0.1")
    limiter = tg.Limiter("100/minute", storage=line.storage, clock=clock)
    direct = Direct(server, line, clock, limit="100/minute")
    request_limiter = limiter_of(limiter, cost=5, cost_after=lambda request, response: 0)
    line.cut()
    outcome = request_limiter.check(REQUEST, BLOCKING)
    assert outcome is not None
    assert limiter.hit("k", 4).degraded
    # The share is 10 a minute: 2 of 9 have run out.
    clock.advance(12)
    if not is_cut:
        line.mend()
    BLOCKING.run(outcome.settle(REQUEST, None, BLOCKING))
    if not is_cut:
        line.cut()
    assert direct.used_of_share("k", 10) == 4
