"""charge() in Redis: as in memory, in one round trip, and by the fallback."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest
import tidegate as tg
from debt_model import (
    CLOCK_STEPS,
    LIMITS,
    OVERSIZE,
    START,
    check_a_clock_that_steps_back,
    check_against_the_model,
)
from redis_server import PATIENT, RedisServer

GIVEN_TIME = f"{PATIENT}&clock=client&ttl_margin=6000000"
ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


@pytest.mark.parametrize(
    "limit", [*LIMITS, *OVERSIZE], ids=lambda limit: f"{limit.algorithm} {limit} {limit.oversize}"
)
def test_a_key_stands_as_in_the_model(server: RedisServer, limit: tg.Limit) -> None:
    for seed in range(4):
        check_against_the_model(limit, server.uri(GIVEN_TIME), seed)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.algorithm} {limit}")
def test_decisions_are_those_of_memory(server: RedisServer, limit: tg.Limit) -> None:
    clock = tg.ManualClock(START + 12345678901)
    uri = server.uri(GIVEN_TIME)
    limiters = [
        tg.Limiter(limit, storage=storage, clock=clock, prefix=f"same-{limit}")
        for storage in (uri, "memory://")
    ]
    for number in range(60):
        clock.advance_ns(number % 4 * limit.period_ns // 3)
        for cost in (1 + number % 3, 2 * limit.capacity + number):
            answers = [limiter.charge("k", cost) for limiter in limiters]
            assert answers[0] == answers[1], number
            assert answers[0].reset_after == answers[1].reset_after
        answers = [limiter.hit("k") for limiter in limiters]
        assert answers[0] == answers[1], number
        if number % 7 == 3:
            for limiter in limiters:
                limiter.refund("k", 3 + limit.capacity // 2)
        answers = [limiter.peek("k") for limiter in limiters]
        assert answers[0] == answers[1], number
        assert answers[0].debt == answers[1].debt


@pytest.mark.parametrize("limit", OVERSIZE, ids=lambda limit: f"{limit.algorithm} {limit}")
def test_a_large_cost_is_decided_as_in_memory(server: RedisServer, limit: tg.Limit) -> None:
    clock = tg.ManualClock(START + 12345678901)
    other = tg.Limit("1000000/minute", id="beside")
    plans, firsts = [], []
    for storage in (server.uri(GIVEN_TIME), "memory://"):
        first = tg.Limiter(limit, storage=storage, clock=clock, prefix=f"large-{limit}")
        second = tg.Limiter(other, storage=first.storage, clock=clock, prefix=f"large-{limit}")
        plans.append(tg.Plan([first, second]))
        firsts.append(first)
    keys = ["k", "k"]
    passed = 0
    for number in range(40):
        clock.advance_ns(number % 9 * limit.period_ns)
        cost = limit.capacity * (number % 4) + 1
        answers = [plan.hit(keys, [cost, cost]) for plan in plans]
        assert answers[0] == answers[1], number
        assert answers[0].reset_after == answers[1].reset_after, number
        passed += bool(answers[0]) and cost > limit.capacity
        held = [plan.reserve(keys, [cost + 1, cost + 1]) for plan in plans]
        assert held[0].decision == held[1].decision, number
        for reservation in held:
            if reservation:
                reservation.commit([number, number])
        answers = [first.peek("k", cost) for first in firsts]
        assert answers[0] == answers[1], number
    assert passed >= 2


@pytest.mark.parametrize("owed", [0, 0.5, 3, 9.5])
@pytest.mark.parametrize("limit", CLOCK_STEPS, ids=lambda limit: f"{limit.algorithm} {limit}")
def test_a_stepped_clock_and_a_debt_are_told_apart(
    server: RedisServer, limit: tg.Limit, owed: float
) -> None:
    check_a_clock_that_steps_back(limit, server.uri(GIVEN_TIME), owed)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "quota"])
def test_it_is_one_round_trip_by_the_servers_clock(server: RedisServer, algorithm: str) -> None:
    limits = (
        ["quota 100/day", "quota 150/month"] if algorithm == "quota" else ["100/hour", "150/day"]
    )
    kind = {} if algorithm == "quota" else {"algorithm": algorithm}
    with tg.Limiter(limits, storage=server.uri(PATIENT), **kind) as limiter:
        assert limiter.hit("k", 30).remaining == 70
        assert limiter.charge("warm", 1).charged == 1  # the script is known now
        server.command("CONFIG", "RESETSTAT")
        decision = limiter.charge("k", 500)
        assert (decision.charged, decision.remaining, decision.degraded) == (500, 0, False)
        assert "cmdstat_evalsha:calls=1," in str(server.command("INFO", "commandstats"))
        assert not limiter.hit("k")
        assert limiter.peek("k").debt >= 430 - 50


def test_a_key_without_debt_keeps_its_bytes(server: RedisServer) -> None:
    with tg.Limiter("600/minute", storage=server.uri(PATIENT)) as limiter:
        limiter.charge("k", 7)
        key = server.command("KEYS", "*").split(b"\r\n")[2]
        assert server.command("GET", key).split(b"\r\n")[1].isdigit()
        limiter.charge("k", 700)
        assert len(server.command("GET", key).split(b"\r\n", 1)[1].rstrip(b"\r\n")) >= 16
        limiter.refund("k", 200)
        assert server.command("GET", key).split(b"\r\n")[1].isdigit()


def test_async(server: RedisServer) -> None:
    async def charge() -> None:
        limit = tg.Limit("100/hour", max_debt=math.inf)
        async with tg.Limiter(limit, storage=server.uri(PATIENT)) as limiter:
            decisions = await asyncio.gather(*(limiter.charge_async("k", 7) for _ in range(20)))
            assert [each.charged for each in decisions] == [7] * 20
            assert (await limiter.peek_async("k")).debt == 40
            with pytest.raises(tg.ConfigurationError, match="expected"):
                await limiter.charge_async("k", 0)

    asyncio.run(charge())


def test_a_plan_is_one_round_trip(server: RedisServer) -> None:
    async def charge() -> None:
        async with tg.Limiter("100/hour", storage=server.uri(PATIENT)) as requests:
            tokens = tg.Limiter("1000/hour", storage=requests.storage, prefix="tokens")
            plan = tg.Plan([requests, tokens])
            plan.charge(["k", "k"], [1, 1])  # the script is known now
            server.command("CONFIG", "RESETSTAT")
            decision = await plan.charge_async(["k", "k"], [1, 4990])
            assert (decision.charged, decision.debt, plan.binding(decision)) == (1, 3991, 1)
            assert "cmdstat_evalsha:calls=1," in str(server.command("INFO", "commandstats"))

    asyncio.run(charge())


def test_rules_charge_without_blocking(server: RedisServer) -> None:
    async def charge() -> None:
        rules = tg.RuleSet({"rules": [{"id": "r", "by": "user", "limit": "10/hour"}]})
        async with tg.Limiter(rules=rules, storage=server.uri(PATIENT)) as limiter:
            assert (await limiter.charge_async(cost=25, user="u")).debt == 15
            assert limiter.charge(cost=200, user="u").charged == 85
            assert (await limiter.charge_async(cost=3, user="u")).charged == 0
            assert limiter.stats().written_off == 118
            assert not await limiter.check_async(user="u")

    asyncio.run(charge())


def test_a_refusal_that_is_remembered_does_not_outlive_a_charge(server: RedisServer) -> None:
    with tg.Limiter("10/hour", storage=server.uri(PATIENT)) as limiter:
        assert limiter.charge("k", 30).debt == 20
        for _ in range(5):
            refused = limiter.hit("k")
            assert refused.debt == 20
        assert limiter.stats().denied_locally > 0
        assert limiter.charge("k", 30).debt == 50
        assert limiter.hit("k").debt == 50
        limiter.refund("k", 55)
        assert limiter.hit("k", 5)


@pytest.mark.parametrize(("on_error", "charged"), [("fallback", 55), ("open", 0), ("closed", 0)])
def test_without_redis_the_fallback_owes_or_nothing(on_error: str, charged: int) -> None:
    uri = f"redis://127.0.0.1:1?on_error={on_error}&fallback_share=0.5&timeout=0.2"
    with tg.Limiter("10/hour", storage=uri) as limiter:
        decision = limiter.charge("k", 99)
        assert (decision.charged, decision.degraded, decision.allowed) == (charged, True, True)
        assert limiter.stats().written_off == (44 if charged else 0)
        assert decision.debt == (50 if charged else 0)
        if charged:
            assert not limiter.hit("k")
            limiter.refund("k", charged, decision=decision)
            assert limiter.hit("k", 5)


@pytest.mark.parametrize("charge", [tg.Limiter.charge, tg.Limiter.charge_up_to])
def test_a_foreign_value_is_not_charged(
    server: RedisServer, charge: Callable[[tg.Limiter, str, int], tg.Decision]
) -> None:
    with tg.Limiter("10/hour", storage=server.uri(PATIENT + "&on_error=open")) as limiter:
        limiter.hit("k")
        key = server.command("KEYS", "*").split(b"\r\n")[2]
        server.command("SET", key, "somebody's")
        decision = charge(limiter, "k", 3)
        assert (decision.degraded, decision.charged) == (True, 0)
        assert limiter.stats().script_errors == 1


def test_many_keys_are_charged_by_one_call(server: RedisServer) -> None:
    limiter = tg.Limiter("10/30 days", storage=server.uri(PATIENT), prefix="many")
    keys = [f"k{number % 7}" for number in range(100)]
    costs = [number % 5 + 1 for number in range(100)]
    decisions = limiter.charge_many(keys, costs)
    decisions += asyncio.run(limiter.charge_many_async(iter(keys), iter(costs)))
    assert [each.charged for each in decisions] == 2 * costs
    for key in keys[:7]:
        used = sum(2 * cost for each, cost in zip(keys, costs) if each == key)
        assert limiter.peek(key).debt == used - 10
    assert limiter.charge_many([], []) == []
    assert limiter.stats().degraded == 0


def test_without_redis_many_are_charged_in_the_fallback(own_server: RedisServer) -> None:
    uri = own_server.uri("timeout=0.5")
    limiter = tg.Limiter("10/30 days", storage=uri)
    own_server.kill()
    decisions = limiter.charge_many(["a", "b", "a"], [12, 3, 4])
    assert all(each.degraded for each in decisions)
    assert [limiter.peek(key).debt for key in "ab"] == [6, 0]


@pytest.mark.parametrize(
    ("limit", "size"),
    [
        (tg.Limit("60/minute"), 16),  # microseconds in decimal
        (tg.Limit("7/second"), 18),
        (tg.Limit("60/minute", id="kept"), 26),
        (tg.Limit("10/minute", algorithm="fixed-window"), 18),
        (tg.Limit("10/minute", algorithm="sliding-window"), 19),
        (tg.Limit("10/minute", algorithm="sliding-log"), 6 + 9),
    ],
    ids=lambda each: f"{each!r}",
)
def test_a_debt_takes_no_room_from_keys_without_one(
    server: RedisServer, limit: tg.Limit, size: int
) -> None:
    """The sizes are those of values before there were debts."""
    clock = tg.ManualClock(START)
    with tg.Limiter(limit, storage=server.uri(GIVEN_TIME), clock=clock) as limiter:
        limiter.hit("plain")
        (plain,) = _keys(server)
        assert server.command("STRLEN", plain) == b":%d\r\n" % size
        limiter.charge("owes", limit.capacity + 3)
        (owes,) = _keys(server) - {plain}
        clock.advance(2 * limit.period_ns / 1e9)
        limiter.hit("owes")
        assert server.command("STRLEN", owes) == b":%d\r\n" % size, "the debt is paid"


def _keys(server: RedisServer) -> set[str]:
    return {line.decode() for line in server.command("KEYS", "*").split(b"\r\n")[2::2] if line}
