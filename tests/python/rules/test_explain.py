"""explain(): why each rule applies to a request or not, and what the request costs."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from tidegate.rules import RuleSet


def limiter_of(document: dict[str, Any]) -> Any:
    return tg.Limiter(rules=RuleSet(document), clock=tg.ManualClock(0))


def test_explain_says_why_each_rule_applies_or_not() -> None:
    limiter = limiter_of(
        {
            "tiers": ["free", "gold"],
            "rules": [
                {"id": "post", "by": "user", "method": "POST", "limit": "5/minute"},
                {"id": "all", "by": "user", "limit": "5/minute"},
                {"id": "gold", "by": "ip", "tier": "gold", "limit": "5/minute"},
                {"id": "region", "by": "ip", "when": {"region": "eu"}, "limit": "5/minute"},
                {"id": "office", "by": "ip", "network": "10.0.0.0/8", "limit": "5/minute"},
                {"id": "tenant", "by": "tenant", "limit": "5/minute"},
                {"id": "path", "by": "user+ip", "endpoint": "/x/*", "limit": "5/minute"},
            ],
        }
    )
    limiter.check(user="1", ip="::1", method="POST", tier="free", endpoint="/y")
    why = {
        each.rule: (each.applies, each.why)
        for each in limiter.explain(user="1", ip="::1", method="POST", tier="free", endpoint="/y")
    }
    assert why == {
        "post": (True, ""),
        "all": (
            False,
            "the rule 'post' is more specific and counts by the same attributes",
        ),
        "gold": (False, "the rule is not for the tier 'free'"),
        "region": (False, "the attribute region is not given, not 'eu'"),
        "office": (False, "the ip is '::1', not in 10.0.0.0/8"),
        "tenant": (False, "the rule counts by tenant, which is not given"),
        "path": (False, "the endpoint is '/y', not /x/*"),
    }
    post = limiter.explain(user="1", method="POST")[0]
    assert (post.key, post.limits[0].count, post.states[0].remaining) == ("1", 5, 4)
    assert limiter.stats().allowed == 1, "explaining charges nothing"


PRIORITIES = {
    "default_tier": "free",
    "rules": [
        {"id": "a", "by": "user", "limits": {"gold": "99/minute", "*": "99/minute"}},
        {"id": "silver", "by": "ip", "tier": "silver", "limit": "9/minute"},
    ],
    "costs": [
        {"method": "POST", "cost": 5},
        {"endpoint": "/pay/**", "priority": "critical"},
        {"endpoint": "/pay/batch", "priority": "background", "cost": 7},
        {"endpoint": "/export", "tier": "free", "priority": "background"},
        {"network": "10.0.0.0/8", "endpoint": "/export", "priority": "critical", "cost": 2},
    ],
    "allow": [{"user": "root"}],
}


@pytest.mark.parametrize(
    ("request_", "cost", "priority"),
    [
        ({}, 1, "normal"),
        ({"method": "POST", "endpoint": "/x"}, 5, "normal"),
        ({"method": "POST", "endpoint": "/pay/7"}, 1, "critical"),
        ({"endpoint": "/pay/batch"}, 7, "background"),
        ({"endpoint": "/pay/batch", "cost": 3}, 21, "background"),
        ({"endpoint": "/pay/batch", "priority": "critical"}, 7, "critical"),
        ({"endpoint": "/pay/batch", "priority": b"normal"}, 7, "normal"),
        ({"endpoint": "/pay/batch", "priority": "urgent"}, 7, "background"),
        ({"endpoint": "/export"}, 1, "background"),
        ({"endpoint": "/export", "tier": "bronze"}, 1, "background"),
        ({"endpoint": "/export", "tier": "gold"}, 1, "normal"),
        ({"endpoint": "/export", "tier": "silver"}, 1, "normal"),
        ({"endpoint": "/export", "ip": "10.1.1.1"}, 2, "critical"),
        ({"user": "root", "endpoint": "/pay/batch"}, 0, "normal"),
    ],
)
def test_explain_shows_the_cost_and_the_priority_of_a_request(
    request_: dict[str, Any], cost: int, priority: str
) -> None:
    limiter = limiter_of(PRIORITIES)
    found = limiter.explain(**{"user": "1", **request_})
    assert (found.cost, found.priority) == (cost, priority)
    if cost:
        decision = limiter.check(**{"user": "1", **request_})
        assert decision.outcomes[0].remaining == 99 - cost, "it is what a check is charged"
    assert repr(found).startswith(f"<cost {cost}, {priority}: [<a ")
