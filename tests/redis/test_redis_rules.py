"""Rules on Redis: one command for all rules of a request, and no more than they allow."""

from __future__ import annotations

import asyncio

import pytest
import tidegate as tg
from redis_server import PATIENT, RedisServer
from storage_laws import check_a_suspended_user_keeps_the_usage
from tidegate.load import LoadShedding
from tidegate.rules import RuleSet

RULES = {
    "tiers": ["free", "gold"],
    "default_tier": "free",
    "rules": [
        {
            "id": "user",
            "by": "user",
            "endpoint": "/api/*",
            "limits": {"free": ["3/hour", "9/day"], "gold": "30/hour"},
        },
        {"id": "address", "by": "ip", "limit": "20/hour"},
        {"id": "trial", "by": "user+ip", "limit": "1/hour", "shadow": True},
        {"id": "all", "by": "global", "limit": "100/hour"},
    ],
}
ASK = {"user": "42", "ip": "203.0.113.9", "endpoint": "/api/posts"}


def uri_of(server: RedisServer) -> str:
    return f"redis://127.0.0.1:{server.port}?{PATIENT}&deny_cache_max=0"


def test_all_rules_of_a_request_are_one_command(server: RedisServer) -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES), storage=uri_of(server), prefix="rules-one")
    limiter.check(user="warm", endpoint="/api/x", ip="::1")
    before = server.calls()
    decisions = [limiter.check(**ASK) for _ in range(4)]
    after = server.calls()
    assert [bool(decision) for decision in decisions] == [True] * 3 + [False]
    assert not any(decision.degraded for decision in decisions)
    assert [outcome.rule for outcome in decisions[0].outcomes] == [
        *("user", "user", "address", "trial", "all")
    ]
    assert decisions[3].rule == "user"
    called = {name: after.get(name, 0) - before.get(name, 0) for name in ("evalsha", "eval", "del")}
    assert called["evalsha"] == 4
    assert called["eval"] == called["del"] == 0
    assert limiter.rule_stats()["trial"].refused_in_shadow == 3
    # What was refused charged none of them.
    assert limiter.peek(**ASK).outcomes[2].remaining == 17


@pytest.mark.parametrize("loops", [1, 2])
def test_tasks_of_several_loops_admit_the_limit(server: RedisServer, loops: int) -> None:
    limiter = tg.Limiter(
        rules=RuleSet(RULES), storage=uri_of(server), prefix=f"rules-async-{loops}"
    )

    async def ask() -> int:
        decisions = await asyncio.gather(
            *(limiter.check_async(tier="gold", **ASK) for _ in range(40))
        )
        assert not any(decision.degraded for decision in decisions)
        return sum(map(bool, decisions))

    assert sum(asyncio.run(ask()) for _ in range(loops)) == 20


def test_a_refund_and_a_reset_reach_every_rule(server: RedisServer) -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES), storage=uri_of(server), prefix="rules-refund")

    async def ask() -> None:
        decision = await limiter.check_async(cost=3, **ASK)
        assert decision
        assert not await limiter.check_async(**ASK)
        await limiter.refund_async(cost=3, decision=decision, **ASK)
        assert [outcome.remaining for outcome in (await limiter.peek_async(**ASK)).outcomes] == [
            *(3, 9, 20, 1, 100)
        ]
        assert await limiter.check_async(cost=3, **ASK)
        await limiter.reset_async(**ASK)
        assert await limiter.check_async(cost=3, **ASK)

    asyncio.run(ask())


def test_usage_in_redis_stays_when_a_number_changes(server: RedisServer) -> None:
    def rules(count: int) -> RuleSet:
        return RuleSet({"rules": [{"id": "r", "by": "user", "limit": f"{count}/hour"}]})

    storage = uri_of(server)
    limiter = tg.Limiter(rules=rules(3), storage=storage, prefix="rules-change")
    other = tg.Limiter(rules=rules(3), storage=limiter.storage, prefix="rules-change")
    for each in (limiter, other, limiter):
        assert each.check(user="1")
    assert not other.check(user="1")
    limiter.use(rules(5))
    assert limiter.check(user="1").remaining == 1
    limiter.use(rules(2))
    assert not limiter.check(user="1")


def test_without_redis_the_fallback_decides_by_the_same_rules(server: RedisServer) -> None:
    limiter = tg.Limiter(
        rules=RuleSet(RULES), storage="redis://127.0.0.1:1?timeout=0.2", prefix="rules-down"
    )
    decisions = [limiter.check(**ASK) for _ in range(4)]
    assert all(decision.degraded for decision in decisions)
    assert [bool(decision) for decision in decisions] == [True] * 3 + [False]
    assert decisions[3].rule == "user"


def test_under_load_a_request_is_still_one_command(server: RedisServer) -> None:
    document = {
        "rules": [
            {"id": "users", "by": "user", "limit": "100/hour"},
            {"id": "all", "by": "global", "limit": "1000/hour", "reserve": "20%"},
        ],
    }
    with LoadShedding(lambda: 0.9, smoothing=0.0, interval=3600.0) as shedding:
        limiter = tg.Limiter(
            rules=RuleSet(document), storage=uri_of(server), prefix="load", load=shedding
        )
        assert shedding.refresh() == 0.5
        limiter.check(user="1")
        before = server.calls()["evalsha"]
        assert sum(1 for _ in range(60) if limiter.check(user="2")) == 50
        assert server.calls()["evalsha"] - before == 60
        assert sum(1 for _ in range(80) if limiter.check(user="3", priority="critical")) == 80
        limiter.close()


def test_a_used_share_is_carried_over_in_redis(server: RedisServer) -> None:
    def rules(limit: str) -> RuleSet:
        rule = {"id": "r", "by": "user", "limit": limit, "carry_over": "proportional"}
        return RuleSet({"rules": [rule]})

    limiter = tg.Limiter(rules=rules("1000/day"), storage=uri_of(server), prefix="share")
    assert limiter.check(user="1", cost=500)
    limiter.use(rules("100/day"))
    assert limiter.peek(user="1").remaining == 50
    limiter.close()


@pytest.mark.parametrize("carry_over", ["as-is", "proportional"])
@pytest.mark.parametrize("algorithm", ["token-bucket", "leaky-bucket"])
def test_a_suspended_user_keeps_the_usage_in_redis(
    server: RedisServer, carry_over: str, algorithm: str
) -> None:
    check_a_suspended_user_keeps_the_usage(carry_over, algorithm, "day", storage=uri_of(server))
