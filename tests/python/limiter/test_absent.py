"""A method of the other kind of limiter is an error that says what to call."""

from __future__ import annotations

import importlib
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
        ("charge_many", r"expected charge\(\) for each request"),
    ],
)
def test_a_limiter_of_rules_names_its_own(name: str, expected: str) -> None:
    limiter = tg.Limiter(rules=RuleSet({"rules": [{"id": "a", "by": "ip", "limit": "5/minute"}]}))
    with pytest.raises(AttributeError, match=rf"a RuleLimiter has no {name}\(\); {expected}"):
        getattr(limiter, name)
    assert not hasattr(limiter, name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("limit", r"expected @rate_limit\(limit, storage=limiter\.storage\)"),
        ("init_app", r"expected `from tidegate\.flask import RateLimiter`"),
        ("exempt", "expected exempt_when="),
        ("get_remaining", r"expected peek\(key\)\.remaining"),
    ],
)
def test_a_limiter_names_what_other_limiters_have(name: str, expected: str) -> None:
    limiter = tg.Limiter("5/minute")
    with pytest.raises(AttributeError, match=rf"a Limiter has no {name}\(\); {expected}"):
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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("success", "allowed, or the decision itself"),
        ("limited", "`not decision.allowed`"),
        ("reset_at", "reset_after, the seconds"),
        ("wait_time", "retry_after, the seconds"),
        ("tokens", "remaining"),
        ("used", "limit and remaining"),
        ("state", "the decision itself, which has allowed"),
    ],
)
def test_a_decision_says_what_to_read(name: str, expected: str) -> None:
    decision = tg.Limiter("5/minute").hit("a")
    with pytest.raises(AttributeError, match=rf"a Decision has no {name}; expected {expected}"):
        getattr(decision, name)
    assert not hasattr(decision, name)
    assert name not in dir(decision)


@pytest.mark.parametrize("name", ["nothing", "rese", "reset reset_at", "\ud800", ""])
def test_other_names_of_a_decision_are_unknown(name: str) -> None:
    with pytest.raises(AttributeError, match=r"'tidegate\.Decision' object has no attribute"):
        getattr(tg.Limiter("5/minute").hit("a"), name)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("middleware", r"from tidegate\.asgi import RateLimitMiddleware"),
        ("decorators", "from tidegate import rate_limit"),
        ("redis", "storage='redis://localhost'"),
        ("storage", "'memory://'"),
        ("storage.redis", "'memory://'"),
        ("errors", "from tidegate import RateLimitExceeded"),
        ("exceptions", "from tidegate import RateLimitExceeded"),
    ],
)
def test_a_module_that_does_not_exist_says_what_to_import(module: str, expected: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"there is no tidegate\..*{expected}"):
        importlib.import_module(f"tidegate.{module}")


@pytest.mark.parametrize("name", ["middleware", "redis", "RedisStorage", "TokenBucket"])
def test_a_name_that_does_not_exist_says_what_to_write(name: str) -> None:
    with pytest.raises(ImportError, match=rf"^tidegate has no {name}; expected `"):
        exec(f"from tidegate import {name}")


def test_other_modules_are_unknown() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'tidegate\.nothing'"):
        importlib.import_module("tidegate.nothing")
