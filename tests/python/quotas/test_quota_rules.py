"""Quotas in rules: by tier, in one plan with other limits, kept when a caller's tier changes."""

from __future__ import annotations

import pytest
import tidegate as tg

NOW = 1_700_092_800 * 10**9  # 16 November 2023: half of the month is left
RULES = """
rules:
  - id: monthly
    by: user
    limits:
      free: quota 100/month rollover 50
      premium: quota 400/month rollover 50
"""


def limiter_of(text: str = RULES) -> tuple[tg.Limiter, tg.ManualClock]:
    clock = tg.ManualClock(NOW)
    limiter = tg.Limiter(rules=tg.RuleSet.parse(text), clock=clock)
    return limiter, clock


def test_a_quota_of_a_rule_is_one_plan_with_other_limits() -> None:
    limiter, clock = limiter_of(
        RULES.replace("quota 100/month rollover 50", "[quota 100/month rollover 50, 5/second]")
    )
    quota = "monthly:quota 100/month rollover 50"
    assert limiter.check(user="42", tier="free", cost=5)
    assert not limiter.check(user="42", tier="free")
    assert limiter.quota_status(user="42", tier="free")[quota].used == 5
    for _ in range(19):
        clock.advance(1)
        assert limiter.check(user="42", tier="free", cost=5)
    clock.advance(1)
    refused = limiter.check(user="42", tier="free")
    assert not refused
    assert refused.retry_after > 86_400
    assert limiter.quota_status(user="42", tier="free")[quota].used == 100


def test_another_tier_keeps_what_the_caller_has() -> None:
    limiter, clock = limiter_of()
    for _ in range(20):
        clock.advance(1)
        assert limiter.check(user="42", tier="free", cost=5)
    upgraded = limiter.quota_status(user="42", tier="premium")["monthly"]
    assert upgraded.used == 100
    assert 149 <= upgraded.available <= 150
    clock.advance(1)
    assert limiter.check(user="42", tier="premium", cost=5)


def test_top_ups_by_attributes() -> None:
    limiter, _ = limiter_of()
    limiter.top_up({"user": "42", "tier": "free"}, 7, priority=1)
    assert limiter.quota_status(user="42", tier="free")["monthly"].available == 107
    assert limiter.quota_status(user="7", tier="free")["monthly"].available == 100
    limiter.top_up({"user": "42", "tier": "free"}, 3, quota="monthly")
    assert limiter.quota_status(user="42", tier="free")["monthly"].available == 110
    with pytest.raises(tg.ConfigurationError, match="0 quotas of the name 'x' apply"):
        limiter.top_up({"user": "42", "tier": "free"}, 3, quota="x")
    with pytest.raises(tg.ConfigurationError, match="0 quotas apply"):
        limiter.top_up({"user": "42"}, 3)


def test_a_mistake_in_a_quota_is_named_with_its_place() -> None:
    with pytest.raises(tg.ConfigurationError, match=r"(?s)rules\[0\].limits.free.*Europe/Nowhere"):
        limiter_of(RULES.replace("100/month", "100/month in Europe/Nowhere"))
