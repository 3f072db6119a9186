"""What stays of a rule's usage when its number changes."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from storage_laws import check_a_suspended_user_keeps_the_usage
from tidegate.rules import RulesError, RuleSet


def changed(carry_over: str, algorithm: str, old: str, new: str, used: int) -> Any:
    """The units that `new` leaves to a user who has used `used` units of `old`."""

    def rules(limit: str) -> RuleSet:
        rule = {"id": "r", "by": "user", "limit": limit, "carry_over": carry_over}
        return RuleSet({"rules": [{**rule, "algorithm": algorithm}]})

    limiter = tg.Limiter(rules=rules(old), clock=tg.ManualClock(10**18))
    assert limiter.check(user="1", cost=used)
    limiter.use(rules(new))
    return limiter.peek(user="1").remaining


@pytest.mark.parametrize("algorithm", ["token-bucket", "leaky-bucket"])
def test_proportional_usage_stays_half_used_when_the_number_changes(
    algorithm: str,
) -> None:
    assert changed("proportional", algorithm, "100/hour", "200/hour", 50) == 100
    assert changed("proportional", algorithm, "100/hour", "10/hour", 50) == 5
    assert changed("proportional", algorithm, "7/hour", "3/hour", 7) == 0
    assert changed("as-is", algorithm, "100/hour", "200/hour", 50) == 150


@pytest.mark.parametrize(
    "algorithm", ["token-bucket", "fixed-window", "sliding-window", "sliding-log"]
)
def test_usage_starts_at_zero_if_nothing_is_carried_over(algorithm: str) -> None:
    assert changed("reset", algorithm, "100/hour", "200/hour", 50) == 200
    assert changed("reset", algorithm, "100/hour", "100/hour", 50) == 50
    assert changed("as-is", algorithm, "100/hour", "200/hour", 50) == 150


def test_windows_cannot_carry_a_share_over() -> None:
    with pytest.raises(RulesError, match="expected token-bucket or leaky-bucket"):
        changed("proportional", "fixed-window", "100/hour", "200/hour", 50)


def test_a_burst_that_differs_from_the_count_cannot_carry_a_share_over() -> None:
    with pytest.raises(RulesError, match="expected a limit without a burst") as caught:
        changed("proportional", "token-bucket", "10/second burst 40", "20/second", 1)
    assert caught.value.problems[0].where == "rules[0].carry_over"


@pytest.mark.parametrize("carry_over", ["as-is", "proportional"])
@pytest.mark.parametrize("algorithm", ["token-bucket", "leaky-bucket"])
def test_a_suspended_user_keeps_the_usage(carry_over: str, algorithm: str) -> None:
    clock = tg.ManualClock(10**18)
    check_a_suspended_user_keeps_the_usage(carry_over, algorithm, "hour", clock=clock)


def test_a_refusal_by_a_smaller_number_does_not_change_usage() -> None:
    def rules(limit: str) -> RuleSet:
        return RuleSet({"rules": [{"id": "r", "by": "user", "limit": limit}]})

    limiter = tg.Limiter(rules=rules("1/hour burst 24"), clock=tg.ManualClock(10**18))
    assert limiter.check(user="1", cost=15)
    limiter.use(rules("5/hour burst 7"))
    refusals = [limiter.check(user="1") for _ in range(2)]
    assert refusals[0].retry_after == refusals[1].retry_after
    limiter.use(rules("1/hour burst 24"))
    assert limiter.peek(user="1").remaining == 9


def test_tiers_and_overrides_of_a_rule_that_resets_share_one_count() -> None:
    rule = {"id": "r", "by": "user", "carry_over": "reset"}
    limits = {"free": "10/hour", "pro": "20/hour"}
    limiter = tg.Limiter(
        rules=RuleSet({"rules": [{**rule, "limits": limits}]}), clock=tg.ManualClock(10**18)
    )
    assert limiter.check(user="1", tier="free", cost=10)
    assert limiter.peek(user="1", tier="pro").remaining == 10
    override = {"rule": "r", "key": "1", "limit": "15/hour"}
    limiter.use(RuleSet({"rules": [{**rule, "limits": limits}], "overrides": [override]}))
    assert limiter.peek(user="1", tier="free").remaining == 5


def test_rules_of_one_counter_are_compared_with_each_that_counts_by_the_same() -> None:
    rule = {"limit": "10/hour", "counter": "f"}
    with pytest.raises(RulesError, match=r"rules\[2\]\.shadow: the rules 'b' and 'c'"):
        RuleSet(
            {
                "rules": [
                    {**rule, "id": "a", "by": "ip"},
                    {**rule, "id": "b", "by": "user"},
                    {**rule, "id": "c", "by": "user", "endpoint": "/c", "shadow": True},
                ]
            }
        )


def test_rules_of_one_counter_must_have_the_same_carry_over() -> None:
    rule = {"by": "user", "limit": "10/hour", "counter": "f"}
    with pytest.raises(RulesError, match="one carry_over for all rules of a counter"):
        RuleSet(
            {
                "rules": [
                    {**rule, "id": "a", "endpoint": "/a"},
                    {**rule, "id": "b", "endpoint": "/b", "carry_over": "reset"},
                ]
            }
        )
