"""The service answers like limiter.check()."""

from __future__ import annotations

import math
import random
from typing import Any

import check_wire as wire
import pytest
import tidegate as tg
from check_service import OK, Service, api_rule, rules_of_tiers
from tidegate.rules import RuleSet

RULES = rules_of_tiers(
    api_rule(free=["3/10 seconds", "20/minute"], premium="unlimited"),
    {"id": "posts", "by": ["user", "endpoint"], "endpoint": "/api/{id}/posts", "limit": "2/s"},
    {
        "id": "leaky",
        "by": "ip",
        "methods": ["POST"],
        "limit": "5/second burst 8",
        "algorithm": "leaky-bucket",
    },
    {"id": "window", "by": "tenant", "limit": "7/minute", "algorithm": "sliding-window"},
    {"id": "log", "by": ["tenant", "user"], "limit": "4/minute", "algorithm": "sliding-log"},
    {"id": "trial", "by": "ip", "limit": "1/minute", "shadow": True, "endpoint": "/trial"},
    overrides=[{"rule": "api", "key": "vip", "limit": "9/second"}],
    costs=[{"endpoint": "/api/heavy", "cost": 2}],
    block=[{"id": "abuse", "user": "evil"}],
    allow=[{"id": "health", "endpoint": "/health"}],
)

VALUES = {
    "user": ["1", "2", "vip", "evil", "\u20ac"],
    "endpoint": ["/api/x", "/api/7/posts", "/api/heavy", "/trial", "/health", "/other"],
    "tier": ["free", "premium", "unknown"],
    "method": ["GET", "POST", "post"],
    "ip": ["192.0.2.1", "2001:db8::1", "no address"],
    "tenant": ["a", "b"],
    "unknown": ["x"],
}


def requests_of(seed: int, count: int) -> list[tuple[dict[str, str], int]]:
    draw = random.Random(seed)
    return [
        (
            {name: draw.choice(values) for name, values in VALUES.items() if draw.random() < 0.7},
            draw.choice([1, 1, 1, 2, 5]),
        )
        for _ in range(count)
    ]


def told(decision: Any) -> tuple[Any, ...]:
    unlimited = decision.allowed and decision.limit == 2**53 - 1
    never = decision.retry_after == math.inf
    return (
        decision.allowed,
        None if unlimited else decision.limit,
        None if unlimited else decision.remaining,
        None if never or decision.allowed else math.ceil(decision.retry_after),
        decision.rule,
        decision.degraded,
    )


def test_the_random_requests_meet_refusals_and_all_rules() -> None:
    limiter: Any = tg.Limiter(rules=RuleSet(RULES), clock=tg.ManualClock(0))
    decisions = [limiter.check(cost=cost, **asked) for asked, cost in requests_of(1, 400)]
    assert {True, False} == {d.allowed for d in decisions}
    assert {None, "api", "posts", "leaky", "window", "log", "abuse", "health"} <= {
        d.rule for d in decisions
    }


@pytest.mark.parametrize("seed", range(8))
def test_rest_answers_as_check_does(seed: int) -> None:
    service = Service(RULES)
    limiter: Any = tg.Limiter(rules=RuleSet(RULES), clock=service.clock)
    named = {"user": "userId", "api_key": "apiKey"}
    draw = random.Random(seed)
    for asked, cost in requests_of(seed, 300):
        service.clock.advance(draw.choice([0, 0.001, 0.3, 2]))
        rest: dict[str, Any] = {"cost": cost, "attributes": {}}
        for name, value in asked.items():
            if name in ("tenant", "unknown"):
                rest["attributes"][name] = value
            else:
                rest[named.get(name, name)] = value
        _, _, answer = service.check(rest)
        decision = limiter.check(cost=cost, **asked)
        assert told(decision) == (
            answer["allowed"],
            answer["limit"],
            answer["remaining"],
            answer["retryAfter"],
            answer["rule"],
            answer["degraded"],
        ), asked


@pytest.mark.parametrize("seed", range(8, 16))
def test_grpc_answers_as_check_does_to_the_nanosecond(seed: int) -> None:
    service = Service(RULES)
    limiter: Any = tg.Limiter(rules=RuleSet(RULES), clock=service.clock)
    draw = random.Random(seed)
    for asked, cost in requests_of(seed, 300):
        service.clock.advance(draw.choice([0, 0.001, 0.3, 2]))
        method = draw.choice(["Check", "Check", "Peek"])
        answer = service.ask(method, attributes=asked, cost=cost, with_outcomes=True)
        ask = limiter.check if method == "Check" else limiter.peek
        decision = ask(cost=cost, **asked)
        retry_after = None if answer.retry_after_ns is None else answer.retry_after_ns / 1e9
        unlimited = answer.limit is None
        assert (
            answer.allowed,
            2**53 - 1 if unlimited else answer.limit,
            2**53 - 1 if unlimited else answer.remaining,
            answer.rule or None,
            answer.delay_ns / 1e9,
        ) == (
            decision.allowed,
            decision.limit,
            decision.remaining,
            decision.rule,
            decision.delay,
        ), asked
        if not decision.allowed:
            assert (math.inf if retry_after is None else retry_after) == decision.retry_after
        if not unlimited:
            assert (answer.reset_after_ns or 0) / 1e9 == decision.reset_after
        assert [(o.rule, o.allowed, o.limit, o.remaining, o.shadow) for o in answer.outcomes] == [
            (o.rule, o.allowed, o.limit, o.remaining, bool(o.rule == "trial"))
            for o in decision.outcomes
        ]


def test_grpc_and_check_count_together_in_one_store() -> None:
    service = Service(RULES)
    ask = {"user": "1", "endpoint": "/api/x"}
    assert service.limiter.check(**ask).remaining == 2
    assert service.ask(attributes=ask).remaining == 1
    assert service.limiter.check(**ask).remaining == 0
    assert not service.ask(attributes=ask).allowed
    assert service.grpc("Reset", wire.request(ask))[0] == OK
    assert service.limiter.check(**ask).remaining == 2


def test_new_rules_apply_from_the_next_call_on() -> None:
    service = Service(RULES)
    ask = {"user": "1", "endpoint": "/api/x"}
    assert service.ask(attributes=ask).limit == 3
    service.use({"rules": [{"id": "new", "by": "who", "limit": "8/minute"}]})
    assert service.ask(attributes={"who": "1"}).limit == 8
    assert service.ask(attributes=ask).limit is None
