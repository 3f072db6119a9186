"""The core's matching of rules, held to that of the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rules_oracle import Oracle
from tidegate.rules import RulesError, RuleSet

PARTS = ["a", "b", "c"]
PATHS = st.lists(st.sampled_from([*PARTS, "d"]), max_size=3).map(lambda p: "/" + "/".join(p))
PATTERNS = st.one_of(
    st.just("**"),
    st.just("name"),
    st.tuples(
        st.lists(st.sampled_from([*PARTS, "*", "{x}"]), max_size=3), st.sampled_from(["", "/**"])
    ).map(lambda p: ("/" + "/".join(p[0]) + p[1]).replace("//", "/")),
)
NETWORKS = st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "2001:db8::/32", "::/0"])
TIERS = ["free", "gold"]
LIMITS = st.sampled_from(
    ["1/minute", {"free": "1/minute"}, {"free": "1/minute", "*": "2/minute"}, {"gold": "3/minute"}]
)
RULE = st.fixed_dictionaries(
    {
        "by": st.sampled_from(["user", "ip", "global", "user+endpoint", "endpoint+user"]),
        "limits": LIMITS,
    },
    optional={
        "endpoints": st.lists(PATTERNS, min_size=1, max_size=2),
        "methods": st.lists(st.sampled_from(["GET", "post"]), min_size=1, max_size=2),
        "networks": st.lists(NETWORKS, min_size=1, max_size=2),
        "when": st.dictionaries(st.sampled_from(["region", "app"]), st.sampled_from(["x", "y"])),
        "counts": st.sampled_from(["cost", "requests"]),
        "replaces": st.lists(st.sampled_from(["r0", "r1"]), max_size=1),
    },
)
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "endpoint": st.one_of(PATHS, st.sampled_from(["name", "//a//b/", "/", "other"])),
        "method": st.sampled_from(["GET", "POST", "post", "PUT"]),
        "tier": st.sampled_from([*TIERS, "unknown"]),
        "user": st.sampled_from(["1", "2"]),
        "ip": st.sampled_from(["10.1.2.3", "10.1.9.9", "192.0.2.1", "2001:db8::1", "no address"]),
        "region": st.sampled_from(["x", "y"]),
        "app": st.sampled_from(["x", "y"]),
    },
)


def _limiter(rules: list[dict[str, Any]]) -> tuple[Any, dict[str, Any]] | None:
    """A limiter of as many of the rules as go together, and their document."""
    kept: list[dict[str, Any]] = []
    best = None
    for i, rule in enumerate(rules):
        document = {
            "tiers": TIERS,
            "default_tier": "free",
            "rules": [*kept, {"id": f"r{i}", **rule}],
            "default": {"limits": "1000/minute"},
        }
        try:
            rule_set = RuleSet(document)
        except RulesError:
            continue
        kept = document["rules"]  # type: ignore[assignment]
        best = rule_set, document
    if best is None:
        return None
    return tg.Limiter(rules=best[0], clock=tg.ManualClock(0)), best[1]


@settings(max_examples=300, deadline=None)
@given(st.lists(RULE, max_size=6), st.lists(REQUEST, min_size=1, max_size=6))
@example([{"by": "user", "limits": "1/minute", "endpoints": ["/**"]}], [{"user": "1"}])
def test_the_core_agrees_with_the_oracle(
    rules: list[dict[str, Any]], requests: list[dict[str, str]]
) -> None:
    made = _limiter(rules)
    if made is None:
        return
    limiter, document = made
    oracle = Oracle(document)
    for request in requests:
        listed, found, cost, _ = limiter._match(request)
        assert (listed, cost) == (None, 1)
        expected = {rule["id"] for rule in oracle.applying(request)}
        assert {rule for rule, _ in found} == expected
        explained = {rule.rule for rule in limiter.explain(**request) if rule.applies}
        assert explained == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=4), min_size=2, max_size=2).map(tuple), st.data())
def test_different_lists_of_values_make_different_keys(
    values: tuple[str, str], data: st.DataObject
) -> None:
    other = data.draw(st.lists(st.text(max_size=4), min_size=2, max_size=2).map(tuple))
    limiter = tg.Limiter(rules=RuleSet({"rules": [{"id": "r", "by": "a+b", "limit": "1/s"}]}))

    def key(pair: tuple[str, str]) -> bytes:
        try:
            return limiter._match({"a": pair[0], "b": pair[1]})[1][0][1]
        except UnicodeEncodeError:
            pytest.skip("no text")

    assert (key(values) == key(other)) == (values == other)
