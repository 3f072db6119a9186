"""Costs of rules that are known from what a request has used."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tidegate as tg
from tidegate.rules import RulesError, RuleSet

DOCUMENT = """
rules:
- {id: tokens, by: user, limit: 10000/minute, algorithm: fixed-window}
- {id: requests, by: user, limit: 100/minute, counts: requests, algorithm: fixed-window}
costs:
- {endpoint: /search, cost: 3}
- {endpoint: /chat, cost: {estimate: 500, usage: {input: 1, cached: 0.1, output: 5}}}
- {endpoint: /rows, cost: {usage: {rows: 0.5}}}
"""
USAGE = {"input": 300, "cached": 5, "output": 20}  # costs 400.5


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return RuleSet.parse(DOCUMENT)


@pytest.fixture
def limiter(rules: RuleSet) -> tg.RuleLimiter:
    return tg.Limiter(rules=rules, clock=tg.ManualClock(60))


def left(limiter: tg.RuleLimiter, user: str = "anna") -> list[int]:
    """The units that are left to a user of tokens, and of requests."""
    outcomes = limiter.peek(user=user).outcomes
    return [each.remaining for each in sorted(outcomes, key=lambda each: -each.limit)]


def test_a_check_is_charged_the_estimate(limiter: tg.RuleLimiter) -> None:
    limiter.check(user="anna", endpoint="/chat")
    assert left(limiter) == [9500, 99]
    limiter.check(user="anna", endpoint="/chat", cost=2)
    assert left(limiter) == [8500, 98]
    limiter.check(user="anna", endpoint="/rows")
    assert left(limiter) == [8499, 97]


def test_units_beyond_the_debt_are_written_off_beside_a_rule_that_counts_requests(
    limiter: tg.RuleLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    decision = limiter.reserve(user="anna", endpoint="/chat").commit(usage={"input": 1_000_000})
    assert decision.charged == 110_000  # the limit, and ten times as much owed
    assert limiter.stats().written_off == 890_000
    [record] = caplog.records
    assert "of 1000000 units for the limit tokens, 110000 were charged" in record.getMessage()


def test_a_commit_by_rules_that_count_requests_writes_nothing_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limiter = tg.Limiter(
        rules=RuleSet.parse("rules: [{id: r, by: user, limit: 5/hour, counts: requests}]"),
        clock=tg.ManualClock(60),
    )
    assert limiter.reserve(cost=3, user="anna").commit(70).charged is None
    assert limiter.peek(user="anna").remaining == 4
    assert limiter.stats().written_off == 0
    assert not caplog.records


def test_a_commit_charges_what_the_usage_costs_rounded_up(limiter: tg.RuleLimiter) -> None:
    with limiter.reserve(user="anna", endpoint="/chat") as reservation:
        assert left(limiter) == [9500, 99]
        decision = reservation.commit(usage=USAGE)
    assert decision.charged == 401
    assert left(limiter) == [9599, 99]
    reservation.commit(usage=USAGE)
    assert left(limiter) == [9599, 99]
    with pytest.raises(tg.ReservationError, match="settled before, at 401 units"):
        reservation.commit(usage={"input": 1})


def test_units_of_a_commit_are_not_multiplied_by_the_estimate(limiter: tg.RuleLimiter) -> None:
    with limiter.reserve(user="anna", endpoint="/chat") as reservation:
        assert reservation.extend(200)
        assert left(limiter) == [9300, 99]
        reservation.commit(450)
    assert left(limiter) == [9550, 99]
    limiter.charge(cost=7, user="anna", endpoint="/chat")
    assert left(limiter) == [9543, 99]
    limiter.refund(cost=43, keep_request=True, user="anna", endpoint="/chat")
    assert left(limiter) == [9586, 99]


def test_more_than_there_is_room_for_is_owed(limiter: tg.RuleLimiter) -> None:
    with limiter.reserve(user="anna", endpoint="/chat") as reservation:
        reservation.commit(usage={"output": 5000})
    assert not limiter.check(user="anna", endpoint="/search")
    assert limiter.check(user="bert", endpoint="/search")


def test_a_usage_is_charged_without_a_reservation(limiter: tg.RuleLimiter) -> None:
    limiter.charge(usage=USAGE, user="anna", endpoint="/chat")
    assert left(limiter) == [9599, 100]
    asyncio.run(limiter.charge_async(usage={"rows": 3}, user="anna", endpoint="/rows"))
    assert left(limiter) == [9597, 100]


def test_a_token_is_committed_by_a_usage(limiter: tg.RuleLimiter) -> None:
    token = limiter.reserve(user="anna", endpoint="/chat", on_exit="keep").token
    limiter.commit(token, usage=USAGE)
    assert left(limiter) == [9599, 99]


def test_a_usage_is_committed_without_blocking(limiter: tg.RuleLimiter) -> None:
    async def run() -> None:
        async with limiter.reserve_async(user="anna", endpoint="/chat") as reservation:
            await reservation.commit_async(usage=USAGE)
        other = limiter.reserve(user="anna", endpoint="/chat", on_exit="keep")
        await limiter.commit_async(other.token, usage={"input": 1})

    asyncio.run(run())
    assert left(limiter) == [9598, 98]


def test_a_reservation_is_settled_by_the_weights_that_it_was_made_by(
    limiter: tg.RuleLimiter,
) -> None:
    reservation = limiter.reserve(user="anna", endpoint="/chat")
    limiter.use(RuleSet.parse(DOCUMENT.replace("output: 5", "result: 1")))
    reservation.commit(usage={"output": 100})
    assert left(limiter) == [9500, 99]
    with pytest.raises(tg.ConfigurationError, match="expected input, cached, result"):
        limiter.charge(usage={"output": 1}, user="anna", endpoint="/chat")


def test_wrong_usages_change_nothing(limiter: tg.RuleLimiter) -> None:
    reservation = limiter.reserve(user="anna", endpoint="/chat")
    for usage, message in (
        ({"promt": 5}, "the usage has the field 'promt'; expected input, cached, output"),
        ({"input": -5}, "the usage of 'input' is -5"),
        ({"input": 1.0}, "the usage of 'input' is 1.0 of type float"),
    ):
        with pytest.raises(tg.ConfigurationError, match=message):
            reservation.commit(usage=usage)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="2 arguments were given"):
        reservation.commit(5, usage=USAGE)
    with pytest.raises(tg.ConfigurationError, match="is 5, beside a usage; expected one of them"):
        asyncio.run(reservation.commit_async(5, usage=USAGE))
    assert left(limiter) == [9500, 99]
    reservation.commit(usage=USAGE)
    assert left(limiter) == [9599, 99]


def test_a_usage_where_no_rule_says_what_it_costs(limiter: tg.RuleLimiter) -> None:
    said = "a usage was given for a request whose cost in the rules has no `usage`"
    with pytest.raises(tg.ConfigurationError, match=said):
        limiter.charge(usage=USAGE, user="anna", endpoint="/search")
    with pytest.raises(tg.ConfigurationError, match=said):
        limiter.reserve(user="anna", endpoint="/other").commit(usage=USAGE)
    for options in ({}, {"cost": 1, "usage": USAGE}):
        with pytest.raises(tg.ArgumentTypeError, match="expected a cost, or a usage"):
            limiter.charge(**options, user="anna", endpoint="/chat")  # type: ignore[arg-type]
    plain = tg.Limiter("10/minute").reserve("anna", 5)
    with pytest.raises(tg.ConfigurationError, match="limits without rules"):
        plain.commit(usage=USAGE)


@pytest.mark.parametrize(("usage", "used"), [(401, 500), (900, 900), (10, 500)])
def test_without_redis_the_estimate_is_not_charged_again(
    rules: RuleSet, usage: int, used: int
) -> None:
    limiter = tg.Limiter(
        rules=rules, storage="redis://127.0.0.1:1?clock=client", clock=tg.ManualClock(60)
    )
    limiter.reserve(user="anna", endpoint="/chat").commit(usage={"input": usage})
    assert left(limiter) == [10_000 - used, 99]
    limiter.reserve(user="zoe", endpoint="/chat", cost=3).commit(1_600)
    assert left(limiter, "zoe") == [8_400, 99]


def test_a_usage_on_a_list_costs_nothing() -> None:
    limiter = tg.Limiter(rules=RuleSet.parse(DOCUMENT + "allow: [{user: vip}]"))
    with limiter.reserve(user="vip", endpoint="/chat") as reservation:
        reservation.commit(usage=USAGE)
    limiter.charge(usage=USAGE, user="vip", endpoint="/chat")
    assert limiter.peek(user="vip").outcomes == ()


def test_a_usage_of_nothing_charges_nothing(limiter: tg.RuleLimiter) -> None:
    for usage in ({}, {"input": 0}, {"reasoning": 0}):
        assert limiter.charge(usage=usage, user="anna", endpoint="/chat").allowed
        assert asyncio.run(limiter.charge_async(usage=usage, user="anna", endpoint="/chat"))
    assert left(limiter) == [10_000, 100]


def test_only_what_was_written_off_is_said(
    limiter: tg.RuleLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    with limiter.reserve(user="anna", endpoint="/chat") as reservation:
        reservation.commit(usage=USAGE)
    assert (caplog.messages, limiter.stats().written_off) == ([], 0)
    limiter.charge(cost=10**9, user="anna", endpoint="/chat")
    assert "the rest written off" in caplog.text


def test_the_explanation_has_the_weights(limiter: tg.RuleLimiter) -> None:
    explained = limiter.explain(user="anna", endpoint="/chat")
    assert explained.cost == 500
    weights = {name: str(weight) for name, weight in (explained.usage or {}).items()}
    assert weights == {"input": "1", "cached": "0.1", "output": "5"}
    assert limiter.explain(user="anna", endpoint="/search").usage is None


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ("{usage: {input: -1}}", "cost.usage.input: is -1; expected a number from 0"),
        ("{usage: {input: .nan}}", "cost.usage.input: is nan; expected a number"),
        ("{usage: {input: 1e10}}", "cost.usage.input: is '1e10'; expected a number"),
        ("{usage: {input: many}}", "cost.usage.input: is 'many'; expected a number"),
        ("{usage: {input: 0}}", "cost: has no weight above 0"),
        ("{usage: {}}", "cost: has no weight above 0"),
        ("{usage: [input]}", "cost.usage: is \\['input'\\]; expected a mapping"),
        ("{estimate: 5}", "cost.usage: is missing"),
        ("{estimate: 0, usage: {input: 1}}", "cost.estimate: is 0; expected 1 or more"),
        ("{estimates: 5, usage: {input: 1}}", "estimates: is not a field; did you mean 'estimate'"),
        ("0", "cost: is 0; expected 1 or more"),
        ("many", "cost: is 'many'; expected a whole number"),
    ],
)
def test_other_costs_are_refused_by_place(cost: str, message: str) -> None:
    with pytest.raises(RulesError, match="costs\\[0\\].*" + message):
        RuleSet.parse(f"costs:\n- {{endpoint: /chat, cost: {cost}}}\n")


def test_weights_count_by_their_decimals_however_they_are_written() -> None:
    def digest(weight: Any) -> str:
        return RuleSet({"costs": [{"cost": {"usage": {"rows": weight}}}]}).digest

    assert digest(0.1) == digest("0.10")
    assert digest(2) == digest("2.0")
    assert digest(0.1) != digest(0.2)


def test_an_estimate_beyond_a_limit_is_said() -> None:
    advice = RuleSet(
        {
            "rules": [{"id": "a", "by": "user", "limit": "10/minute"}],
            "costs": [{"endpoint": "/chat", "cost": {"estimate": 50, "usage": {"rows": 1}}}],
        }
    ).advice
    assert "a request that costs 50 never passes the rule 'a'" in str(advice[0])
