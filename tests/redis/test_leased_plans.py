"""Leases of several limits at once: all or none, with each other and with strict ones."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
import tidegate as tg
from lease_calls import check_cold_keys_take_one_command, scripts, warm
from polling import eventually
from redis_server import PATIENT, RedisServer
from tidegate.rules import RuleSet

LEASED = f"{PATIENT}&mode=leased&deny_cache_max=0&lease=10"
# A unit a second and two, so that a test's own time brings few back.
SMALL, LARGE = "60/minute burst 600", "120/minute burst 900"
# Strict by itself: its burst is too small to lease, but its period ends within no test.
STRICT = tg.Limit("19/hour")


def node(server: RedisServer, *limits: object, name: str = "a") -> tg.Limiter:
    uri = server.uri(f"{LEASED}&client_name={name}")
    return tg.Limiter(list(limits), storage=uri)  # type: ignore[arg-type]


def strict(server: RedisServer, *limits: object) -> tg.Limiter:
    uri = server.uri(f"{PATIENT}&deny_cache_max=0")
    return tg.Limiter(list(limits), storage=uri)  # type: ignore[arg-type]


def test_a_plan_whose_limits_are_warm_asks_nothing(server: RedisServer) -> None:
    limiter = node(server, SMALL, LARGE)
    begin = time.monotonic()
    spent = warm(limiter)
    before, questions = scripts(server), limiter.stats().lease_questions
    decisions = [limiter.hit("k") for _ in range(20)]
    assert all(decision and decision.leased for decision in decisions)
    # Only for later units.
    assert scripts(server) - before <= limiter.stats().lease_questions - questions
    assert decisions[-1].rule == SMALL
    left = 600 - spent - 20
    assert left <= decisions[-1].remaining <= left + (time.monotonic() - begin) + 1
    assert limiter.peek("k").leased
    assert limiter.stats().script_errors == 0


def test_strict_plans_of_all_algorithms_see_the_units_that_are_out(server: RedisServer) -> None:
    """Their replies have the units, whatever other limits are beside that of the units."""
    leased = node(server, SMALL)
    begin = time.monotonic()
    spent = warm(leased)
    held = leased.stats().held_units
    assert held > 0
    limiter = strict(
        server,
        tg.Limit("5001/30 days", algorithm="fixed-window"),
        tg.Limit("5002/30 days", algorithm="sliding-window"),
        SMALL,
        tg.Limit("5003/30 days", algorithm="sliding-log"),
        tg.Limit("quota 5004/month"),
        tg.Limit("5005/30 days", id="rule"),
    )
    assert limiter.hit("k").rule == SMALL
    with limiter.reserve("k", 4) as reservation:
        reservation.commit(2)
    assert limiter.charge("k", 2).charged == 2
    left = limiter.peek("k")
    assert left.rule == SMALL
    assert left.remaining <= 600 - spent - held - 5 + (time.monotonic() - begin) + 1
    assert limiter.stats().script_errors == 0
    assert limiter.stats().degraded == 0


def test_a_plan_is_leased_by_all_kinds_of_calls(server: RedisServer) -> None:
    limiter = node(server, SMALL, LARGE)
    warm(limiter)

    async def hits() -> list[tg.Decision]:
        return [await limiter.hit_async("k") for _ in range(3)]

    assert all(decision.leased for decision in asyncio.run(hits()))
    assert limiter.allow("k")
    assert limiter.hit_many(["k", "k"]) == [True, True]


def test_a_cold_plan_costs_what_it_costs_without_leases(server: RedisServer) -> None:
    check_cold_keys_take_one_command(server, node(server, SMALL, LARGE), 100)


def test_a_plan_with_a_strict_limit_asks_once_for_each_call(server: RedisServer) -> None:
    limiter = node(server, SMALL, STRICT)
    limiter.hit("k")
    before = scripts(server)
    decisions = [limiter.hit("k") for _ in range(30)]
    assert scripts(server) - before == 30
    assert not any(decision.leased for decision in decisions)
    assert sum(map(bool, decisions)) == 18
    # What the strict limit refused, the other was not charged for.
    assert strict(server, SMALL).peek("k").remaining >= 600 - 19


def test_a_refused_plan_charges_none_of_its_limits(server: RedisServer) -> None:
    limiter = node(server, SMALL, LARGE)
    begin = time.monotonic()
    admitted = sum(limiter.allow("k") for _ in range(1500))
    passed = time.monotonic() - begin
    assert 400 < admitted <= 600 + passed
    refused = limiter.hit("k")
    assert not refused
    assert refused.rule == SMALL
    assert limiter.stats().script_errors == 0
    limiter.close()
    left = strict(server, LARGE).peek("k").remaining
    # Units that are out keep the bucket full for a while: no more is missing than those.
    assert left <= 900 - admitted + 2 * passed + 3


def test_a_refund_of_a_plan_goes_into_its_leases(server: RedisServer) -> None:
    limiter = node(server, SMALL, LARGE)
    warm(limiter)
    decision = limiter.hit("k")
    assert decision.leased
    before, held = scripts(server), limiter.stats().held_units
    limiter.refund("k", decision=decision)
    assert scripts(server) == before
    assert limiter.stats().held_units == held + 2


@pytest.mark.parametrize("seed", [1, 2])
def test_no_limit_of_any_plan_admits_more_than_alone(server: RedisServer, seed: int) -> None:
    """Leased and strict nodes with plans that share limits."""
    begin = time.monotonic()
    plans = [(SMALL, LARGE), (SMALL,), (LARGE,), (SMALL, LARGE, "180/minute burst 5000")]
    nodes = [(node(server, *plan, name=f"n{i}"), plan) for i, plan in enumerate(plans * 2)]
    nodes.append((strict(server, SMALL, LARGE), (SMALL, LARGE)))
    nodes.append((node(server, SMALL, tg.Limit("19/hour"), name="mixed"), (SMALL,)))
    chance = random.Random(seed)
    admitted = {SMALL: 0, LARGE: 0}
    leased = 0
    for _ in range(5000):
        limiter, plan = chance.choice(nodes)
        cost = chance.choice((1, 1, 1, 3))
        decision = limiter.hit("k", cost)
        leased += decision.leased
        returns = decision and chance.random() < 0.1
        if returns:
            limiter.refund("k", cost, decision=decision)
        for limit in set(plan) & admitted.keys():
            admitted[limit] += cost * (decision.allowed and not returns)
    passed = time.monotonic() - begin
    assert leased > 100
    assert 400 < admitted[SMALL] <= 600 + passed
    assert 600 < admitted[LARGE] <= 900 + 2 * passed
    for limiter, _ in nodes:
        stats = limiter.stats()
        assert (stats.degraded, stats.errors, stats.script_errors) == (0, 0, 0)


def test_rules_are_leased(server: RedisServer) -> None:
    rules = RuleSet(
        {
            "rules": [
                {"id": "user", "by": "user", "limit": SMALL},
                {"id": "all", "by": "global", "limit": LARGE},
            ]
        }
    )
    limiter = tg.Limiter(rules=rules, storage=server.uri(LEASED))
    eventually(lambda: limiter.check(user="1", endpoint="/x", method="GET").leased)
    assert limiter.stats().leased > 0
    assert limiter.stats().script_errors == 0
