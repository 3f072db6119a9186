"""What reset(), forget() and refund() of a limiter with rules leave as it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tidegate as tg
from tidegate.rules import RuleSet
from tidegate.rules.callers import rules_of_caller

RULES: dict[str, Any] = {
    "algorithm": "fixed-window",
    "rules": [
        {"id": "user", "by": "user", "limit": "10/hour"},
        {"id": "pair", "by": "user+endpoint", "limit": "10/hour"},
        {"id": "address", "by": "ip", "limit": "10/hour"},
        {"id": "endpoint", "by": "endpoint", "limit": "10/hour"},
        {"id": "ceiling", "by": "global", "limit": "10/hour"},
    ],
}
REQUEST = {"user": "1", "ip": "203.0.113.9", "endpoint": "/a"}


def left(limiter: tg.RuleLimiter, **request: str) -> dict[str | None, int]:
    return {outcome.rule: outcome.remaining for outcome in limiter.peek(**request).outcomes}


def used_limiter(**options: Any) -> tg.RuleLimiter:
    limiter = tg.Limiter(rules=RuleSet(RULES), clock=tg.ManualClock(), **options)
    for _ in range(4):
        assert limiter.check(**REQUEST)
    return limiter


def test_a_reset_keeps_counts_that_the_caller_shares_with_others() -> None:
    limiter = used_limiter()
    limiter.reset(**REQUEST)
    assert left(limiter, **REQUEST) == {
        "user": 10,
        "pair": 10,
        "address": 6,
        "endpoint": 6,
        "ceiling": 6,
    }


def test_a_user_to_whom_no_rule_by_user_applies_resets_no_address() -> None:
    rules = {**RULES, "rules": [{**RULES["rules"][0], "endpoint": "/b"}, RULES["rules"][2]]}
    limiter = tg.Limiter(rules=RuleSet(rules), clock=tg.ManualClock())
    assert limiter.check(**REQUEST)
    limiter.reset(**REQUEST)
    assert left(limiter, **REQUEST) == {"address": 9}


@pytest.mark.parametrize(
    ("attributes", "reset"),
    [
        ({"ip": "203.0.113.9"}, {"address"}),
        ({"ip": "203.0.113.9", "endpoint": "/a"}, {"address"}),
        ({"endpoint": "/a"}, {"endpoint"}),
        ({"tier": "free"}, {"ceiling"}),
        ({}, {"ceiling"}),
    ],
)
def test_what_is_reset_is_what_says_most_of_the_caller(
    attributes: dict[str, str], reset: set[str]
) -> None:
    limiter = used_limiter()
    assert reset <= set(rules_of_caller(limiter.rules, attributes)), "the rest does not apply"
    limiter.reset(**attributes)
    found = left(limiter, **REQUEST)
    assert {rule for rule, units in found.items() if units == 10} == reset
    assert {rule for rule, units in found.items() if units == 6} == set(found) - reset


@pytest.mark.parametrize("name", ["reset", "forget"])
def test_rules_that_are_named_are_reset_and_no_others(name: str) -> None:
    limiter = used_limiter()
    getattr(limiter, name)(rules=["ceiling", "user"], **REQUEST)
    found = left(limiter, **REQUEST)
    assert {rule for rule, units in found.items() if units == 10} == {"ceiling", "user"}
    getattr(limiter, name)(rules=[], **REQUEST)
    assert left(limiter, **REQUEST) == found


def test_a_rule_that_there_is_not_is_named() -> None:
    limiter = used_limiter()
    with pytest.raises(tg.ConfigurationError, match="there is no rule 'usr'; expected one of user"):
        limiter.reset(rules=["usr"], user="1")
    with pytest.raises(tg.ConfigurationError, match="the rules are 'user'; expected a list of ids"):
        limiter.reset(rules="user", user="1")


@pytest.mark.parametrize("name", ["reset_async", "forget_async"])
def test_asynchronous_resets_do_the_same(name: str) -> None:
    limiter = used_limiter()
    reset = getattr(limiter, name)
    asyncio.run(reset(**REQUEST))
    assert left(limiter, **REQUEST)["user"] == 10
    assert left(limiter, **REQUEST)["ceiling"] == 6
    asyncio.run(reset(rules=["ceiling"], **REQUEST))
    assert left(limiter, **REQUEST)["ceiling"] == 10


def tokens_and_requests() -> tg.RuleLimiter:
    rules = [
        {"id": "tokens", "by": "user", "limit": "1000/hour"},
        {"id": "requests", "by": "user", "limit": "5/hour", "counts": "requests"},
    ]
    document = {**RULES, "rules": rules, "costs": [{"endpoint": "/large", "cost": 2}]}
    return tg.Limiter(rules=RuleSet(document), clock=tg.ManualClock())


def test_a_part_of_the_cost_is_given_back_without_the_request() -> None:
    limiter = tokens_and_requests()
    for count in range(1, 6):
        assert limiter.check(user="1", cost=300)
        limiter.refund(user="1", cost=290, keep_request=True)
        assert left(limiter, user="1") == {"tokens": 1000 - 10 * count, "requests": 5 - count}
    assert not limiter.check(user="1", cost=10), "the limit of requests binds"


def test_a_refund_and_a_charge_settle_to_the_same() -> None:
    limiter = tokens_and_requests()
    limiter.check(user="1", cost=30, endpoint="/large")
    limiter.charge(user="1", cost=20, endpoint="/large")
    assert left(limiter, user="1") == {"tokens": 900, "requests": 4}
    asyncio.run(limiter.refund_async(user="1", cost=20, endpoint="/large", keep_request=True))
    assert left(limiter, user="1") == {"tokens": 940, "requests": 4}


def test_a_whole_refund_gives_the_request_back_too() -> None:
    limiter = tokens_and_requests()
    limiter.check(user="1", cost=30)
    limiter.refund(user="1", cost=30)
    assert left(limiter, user="1") == {"tokens": 1000, "requests": 5}


def test_a_part_of_a_decision_is_not_given_back() -> None:
    limiter = tokens_and_requests()
    decision = limiter.check(user="1", cost=30)
    with pytest.raises(tg.ConfigurationError, match="keep_request is given beside a decision"):
        limiter.refund(user="1", cost=20, decision=decision, keep_request=True)
    with pytest.raises(tg.ConfigurationError, match="keep_request is 1; expected True or False"):
        limiter.refund(user="1", keep_request=1)  # type: ignore[arg-type]
