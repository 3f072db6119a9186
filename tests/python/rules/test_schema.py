"""The JSON Schema for editors accepts what the reader accepts."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate.rules import RulesError, RuleSet

jsonschema = pytest.importorskip("jsonschema")

RULE = {"id": "a", "by": "user", "limit": "1/s"}
GOOD: list[dict[str, Any]] = [
    {},
    {"rules": [RULE]},
    {"rules": [{**RULE, "by": "user+endpoint"}, {**RULE, "id": "b", "by": ["ip"]}]},
    {"rules": [{"id": "a", "limits": ["1/s", "9/hour"], "endpoints": "/api/**"}]},
    {"tiers": ["free"], "rules": [{"id": "a", "by": "user", "limit": {"free": "1/s", "*": "2/s"}}]},
    {"rules": [{**RULE, "method": "get", "tier": "free", "network": "::/0", "when": {"x": "1"}}]},
    {"rules": [{**RULE, "when": {"beta": True, "version": 2}}]},
    {"rules": [RULE], "overrides": [{"rule": "a", "key": "1", "limit": "unlimited"}]},
    {"rules": [RULE], "overrides": [{"rule": "a", "key": 42, "limits": ["2/s"]}]},
    {
        "rules": [RULE],
        "overrides": [{"rule": "a", "key": "1", "limit": "2/s", "until": "2030-01-31"}],
    },
    {"default": {"by": "ip", "limit": "1/s"}},
    {"default": "1/s"},
    {"default": ["1/s", "2/hour"]},
    {"costs": [{"method": ["POST", "PUT"], "cost": 5}]},
    {"costs": [{"endpoint": "/pay", "priority": "critical"}]},
    {"costs": [{"cost": {"usage": {"input": 1, "cached": 0.1, "output": 5}}}]},
    {"costs": [{"cost": {"estimate": 500, "usage": {"rows": 2}}}]},
    {"rules": [{**RULE, "limit": "10/s", "reserve": "20%"}]},
    {"rules": [{**RULE, "limit": "10/s", "reserve": {"normal": "20%", "background": "50 %"}}]},
    {"rules": [{**RULE, "carry_over": "reset"}]},
    {"allow": [{"ip": "10.0.0.0/8"}], "block": [{"user": "mallory", "id": "abuse"}]},
    {"block": [{"user": 42}]},
]
BAD: list[dict[str, Any]] = [
    {"rule": []},
    {"rules": {}},
    {"rules": [3]},
    {"rules": [{"by": "user", "limit": "1/s"}]},
    {"rules": [{"id": "a", "by": "user"}]},
    {"rules": [{**RULE, "limit": 1}]},
    {"rules": [{**RULE, "by": {"user": 1}}]},
    {"rules": [{**RULE, "shadow": "yes"}]},
    {"rules": [{**RULE, "endpiont": "/x"}]},
    {"rules": [{**RULE, "algorithm": "bucket"}]},
    {"rules": [{**RULE, "counts": "all"}]},
    {"rules": [{**RULE, "when": {"x": 1.5}}]},
    {"rules": [{**RULE, "id": "a b"}]},
    {"rules": [{**RULE, "by": "user name"}]},
    {"rules": [{**RULE, "method": "GET POST"}]},
    {"rules": [RULE], "overrides": [{"rule": "a", "limit": "1/s"}]},
    {"rules": [RULE], "overrides": [{"rule": "a", "key": "1", "limit": "2/s", "until": 5}]},
    {"default": 5},
    {"costs": [{"method": "GET", "cost": 0}]},
    {"costs": [{"method": "GET", "cost": "5"}]},
    {"costs": [{"endpoint": "/pay"}]},
    {"costs": [{"cost": {"estimate": 500}}]},
    {"costs": [{"cost": {"estimate": 0, "usage": {"rows": 2}}}]},
    {"costs": [{"cost": {"usage": {"rows": -1}}}]},
    {"costs": [{"cost": {"usage": ["rows"]}}]},
    {"costs": [{"cost": {"usage": {"rows": 1}, "estimates": 5}}]},
    {"costs": [{"endpoint": "/pay", "priority": "high"}]},
    {"rules": [{**RULE, "limit": "10/s", "reserve": 20}]},
    {"rules": [{**RULE, "limit": "10/s", "reserve": {"critical": "20%"}}]},
    {"rules": [{**RULE, "carry_over": "none"}]},
    {"version": 2},
    {"tiers": "free"},
    {"block": [{"user": 1.5}]},
]


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = RuleSet.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("document", GOOD, ids=str)
def test_accepted_documents_match_the_schema(validator: Any, document: Any) -> None:
    RuleSet(document)
    assert [error.message for error in validator.iter_errors(document)] == []


@pytest.mark.parametrize("document", BAD, ids=str)
def test_malformed_documents_do_not_match_the_schema(validator: Any, document: Any) -> None:
    with pytest.raises(RulesError):
        RuleSet(document)
    assert not validator.is_valid(document)
