"""A rule by method counts a method in upper case, however a client spells it."""

from __future__ import annotations

import pytest
import tidegate as tg
from tidegate.rules import RuleSet


@pytest.mark.parametrize("by", ["method", "method+user", "user+method"])
def test_the_case_of_a_method_makes_no_count_of_its_own(by: str) -> None:
    limiter = tg.Limiter(rules=RuleSet({"rules": [{"id": "a", "by": by, "limits": "2/hour"}]}))
    given = ["get", "GET", "gEt", "Get"]
    passed = [limiter.check(method=method, user="u").allowed for method in given]
    assert passed == [True, True, False, False]
    assert limiter.peek(method="post", user="u").remaining == 2


@pytest.mark.parametrize("key", ["get", "GET"])
def test_an_override_of_a_method_holds_in_any_case(key: str) -> None:
    rules = {
        "rules": [{"id": "a", "by": "method", "limits": "2/hour"}],
        "overrides": [{"rule": "a", "key": key, "limits": "7/hour"}],
    }
    limiter = tg.Limiter(rules=RuleSet(rules))
    assert [limiter.peek(method=method).limit for method in ("get", "GET", "put")] == [7, 7, 2]


def test_two_overrides_of_one_method_are_refused() -> None:
    rules = {
        "rules": [{"id": "a", "by": "method", "limits": "2/hour"}],
        "overrides": [{"rule": "a", "key": key, "limits": "7/hour"} for key in ("get", "GET")],
    }
    with pytest.raises(tg.ConfigurationError, match="has another override of the key"):
        RuleSet(rules)
