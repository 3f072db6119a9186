"""Imported rules, held to the look-up of Envoy's rate limit service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tidegate as tg
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from tidegate.cli.rules.imported import import_file
from tidegate.rules import RuleSet

Entries = list[tuple[str, str]]


def limit_of(descriptors: list[dict[str, Any]], entries: Entries) -> str | None:
    """The limit that Envoy finds for a descriptor of a request, as the id of its rule.

    At each level the descriptor with the value goes before the one without; only a limit at the
    request's own depth counts.
    """
    level: list[dict[str, Any]] = descriptors
    path: list[str] = []
    for depth, (key, value) in enumerate(entries):
        by_value = [d for d in level if d["key"] == key and d.get("value") == value]
        by_key = [d for d in level if d["key"] == key and "value" not in d]
        found = (by_value or by_key or [None])[0]
        if found is None:
            return None
        path.append(f"{key}={value}" if "value" in found else key)
        if depth == len(entries) - 1:
            limit = found.get("rate_limit")
            return None if limit is None or limit.get("unlimited") else "/".join(path)
        level = found.get("descriptors", [])
    return None


DAY = {"unit": "day", "requests_per_unit": 5}
LIMIT = st.sampled_from([DAY, DAY, {"unlimited": True}])
B = [{"key": "b", "rate_limit": DAY}]


def level(key: str, inner: Any = None) -> Any:
    optional = {"value": st.sampled_from(["1", "2"]), "rate_limit": LIMIT}
    if inner is not None:
        optional["descriptors"] = inner
    one = st.fixed_dictionaries({"key": st.just(key)}, optional=optional)
    return st.lists(one, max_size=3, unique_by=lambda d: d.get("value"))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.tuples(level("a", level("b")), level("b")).map(lambda both: both[0] + both[1]),
    st.sampled_from("112"),
    st.sampled_from("112"),
)
@example([{"key": "a", "value": "1", "descriptors": B}, {"key": "a", "rate_limit": DAY}], "1", "1")
@example([{"key": "a", "value": "1", "descriptors": B}, {"key": "a", "rate_limit": DAY}], "2", "1")
@example([{"key": "a", "value": "1"}, {"key": "a", "rate_limit": DAY}], "1", "1")
@example([{"key": "a", "value": "1"}, {"key": "a", "descriptors": B}], "1", "1")
def test_the_same_limits_apply(
    tmp_path: Path, descriptors: list[dict[str, Any]], a: str, b: str
) -> None:
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps({"domain": "d", "descriptors": descriptors}))
    imported = import_file(str(path), {})
    differs = imported.is_refused or any(
        "meet none of its descriptors" in n for n in imported.notes
    )
    event("differs, and says so" if differs else "carries over")
    if differs:
        return
    sent = [[("a", a)], [("b", b)], [("a", a), ("b", b)]]
    expected = {limit_of(descriptors, entries) for entries in sent} - {None}
    decision = tg.Limiter(rules=RuleSet(imported.data)).check(a=a, b=b)
    assert {outcome.rule for outcome in decision.outcomes} == expected
