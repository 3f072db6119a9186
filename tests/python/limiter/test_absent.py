"""A method of the other kind of limiter is an error that says what to call."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from tidegate.rules import RuleSet


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hit", r"expected check\(\), such as check\(user='42', endpoint='/api/posts'\)"),
        ("allow", r"expected check\(\)"),
        ("hit_many", r"expected check\(\)"),
        ("hit_async", r"expected check_async\(\)"),
        ("acquire", r"expected check\(\), and release\(\) of its decision"),
        ("slot", r"expected check\(\), and release\(\) of its decision"),
        ("charge_up_to", r"expected charge\(\) or reserve\(\)"),
    ],
)
def test_a_limiter_of_rules_names_its_own(name: str, expected: str) -> None:
    limiter = tg.Limiter(rules=RuleSet({"rules": [{"id": "a", "by": "ip", "limit": "5/minute"}]}))
    with pytest.raises(AttributeError, match=rf"a RuleLimiter has no {name}\(\); {expected}"):
        getattr(limiter, name)
    assert not hasattr(limiter, name)


@pytest.mark.parametrize("name", ["check", "check_async", "explain", "rule_stats"])
def test_a_limiter_without_rules_names_its_own(name: str) -> None:
    limiter = tg.Limiter("5/minute")
    expected = rf"a Limiter has no {name}\(\); expected hit\(\), .*Limiter\(rules=\.\.\.\)"
    with pytest.raises(AttributeError, match=expected):
        getattr(limiter, name)
    assert not hasattr(limiter, name)


@pytest.mark.parametrize(
    "limiter", [tg.Limiter("1/minute"), tg.Limiter(rules=RuleSet({"rules": []}))]
)
def test_absent_methods_are_not_listed(limiter: Any) -> None:
    names = dir(limiter)
    assert {"peek", "reserve", "storage", "close"} <= {*names}
    assert [name for name in names if not hasattr(limiter, name)] == []
