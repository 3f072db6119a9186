"""Calls of a plan whose keys lie in several hash slots of a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tidegate as tg
from redis_server import PATIENT, RedisServer
from tidegate.rules import RuleSet

RULES = """
rules:
  - {id: u, by: user, limit: 5/hour}
  - {id: ip, by: ip, limit: 9/hour}
"""
PLACES = """
rules:
  - {id: u, by: user, limit: 1/10 seconds, algorithm: concurrency}
  - {id: ip, by: ip, limit: 2/10 seconds, algorithm: concurrency}
"""
NOW = 1_700_000_000 * 10**9
WHO = {"user": "ada", "ip": "192.0.2.7"}


def uri_of(node: RedisServer) -> str:
    return f"redis+cluster://127.0.0.1:{node.port}?{PATIENT}"


def made(node: RedisServer, rules: str = RULES, **options: Any) -> tg.RuleLimiter:
    return tg.Limiter(rules=RuleSet.parse(rules), storage=uri_of(node), **options)


def left(limiter: tg.RuleLimiter) -> list[int]:
    """What each rule has left, by one call."""
    seen = limiter.peek(**WHO)
    assert not seen.degraded
    assert limiter.stats().script_errors == 0
    return [outcome.remaining for outcome in seen.outcomes]


def test_a_peek_shows_the_state_of_each_limit(shared_node: RedisServer) -> None:
    limiter = made(shared_node)
    for _ in range(5):
        assert limiter.check(**WHO)
    assert not limiter.check(**WHO)
    assert left(limiter) == [0, 4]
    assert not limiter.peek(**WHO)
    assert not asyncio.run(limiter.peek_async(**WHO))
    assert limiter.peek(cost=4, user="other", ip=WHO["ip"]).remaining == 4
    assert not limiter.peek(cost=5, user="other", ip=WHO["ip"])
    assert limiter.stats().script_errors == 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("knows_decision", [False, True])
def test_a_refund_gives_units_of_each_limit_back(
    shared_node: RedisServer, knows_decision: bool, is_async: bool
) -> None:
    limiter = made(shared_node)
    decision = limiter.check(cost=3, **WHO)
    assert left(limiter) == [2, 6]
    options = {"decision": decision} if knows_decision else {}
    if is_async:
        asyncio.run(limiter.refund_async(cost=2, **options, **WHO))
    else:
        limiter.refund(cost=2, **options, **WHO)
    assert left(limiter) == [4, 8]


def test_places_are_extended_and_given_back_in_each_slot(shared_node: RedisServer) -> None:
    clock = tg.ManualClock(NOW)
    rules = RuleSet.parse(PLACES)
    limiter = tg.Limiter(rules=rules, storage=f"{uri_of(shared_node)}&clock=client", clock=clock)
    held: Any = limiter.check(**WHO)
    assert left(limiter) == [0, 1]
    for _ in range(3):
        clock.advance(6)
        held = limiter._extend(WHO, held)
        # A place that was extended is not taken a second time.
        assert left(limiter) == [0, 1]
    limiter.release(held, **WHO)
    assert left(limiter) == [1, 2]
    asyncio.run(limiter.release_async(limiter.check(**WHO), **WHO))
    assert left(limiter) == [1, 2]


@pytest.mark.parametrize("on_error", ["closed", "fallback"])
def test_a_plan_that_waits_looks_at_each_slot(shared_node: RedisServer, on_error: str) -> None:
    uri = uri_of(shared_node) + f"&on_error={on_error}"
    first = tg.Limiter("2 at once", storage=uri, prefix="first")
    second = tg.Limiter("100/hour", storage=first.storage, prefix="second")
    plan = tg.Plan([first, second])
    assert plan.peek(["a", "b"]).remaining == 2
    with plan.slot(["a", "b"], timeout=0):
        assert plan.peek(["a", "b"]).remaining == 1
        assert plan.acquire(["a", "b"], timeout=0)
        assert not plan.acquire(["a", "b"], timeout=0)
    assert second.peek("b").remaining == 98
    assert first.stats().script_errors == 0
    assert first.stats().degraded == 0


@pytest.mark.parametrize(
    ("on_error", "allowed"), [("fallback", True), ("open", True), ("closed", False)]
)
def test_without_an_answer_the_policy_decides(
    node: RedisServer, on_error: str, allowed: bool
) -> None:
    uri = f"{uri_of(node)}&on_error={on_error}"
    limiter = tg.Limiter(rules=RuleSet.parse(RULES), storage=uri)
    first = limiter.check(**WHO)
    assert not first.degraded
    node.kill()
    for seen in (limiter.peek(**WHO), asyncio.run(limiter.peek_async(**WHO))):
        assert seen.degraded
        assert bool(seen) == allowed
        assert [outcome.degraded for outcome in seen.outcomes] == [True, True]
    # These give nothing back, and raise nothing.
    limiter.refund(decision=first, **WHO)
    limiter.refund(**WHO)
