"""What the differences of two documents of many rules look at."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate.rules import RuleSet, carried
from tidegate.rules.diff import differences


def test_the_tiers_of_a_document_are_found_once_for_all_its_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def document(limit: str) -> Any:
        rules: list[Any] = [
            {"id": f"r{i}", "by": "user", "endpoint": f"/{i}", "limits": {"*": "9/hour"}}
            for i in range(40)
        ]
        rules[7]["limits"] = {"*": limit, "gold": "9/minute"}
        rules[8]["carry_over"] = "reset"
        return RuleSet({"rules": rules}).model

    looked: list[Any] = []
    named_tiers = carried.named_tiers

    def counted(rules: Any) -> set[str]:
        looked.append(rules)
        return named_tiers(rules)

    monkeypatch.setattr(carried, "named_tiers", counted)
    before, after = document("7/hour"), document("7/minute")
    assert differences(before, after) == [
        "~ rule r7",
        "    limits.*: 7/hour -> 7/minute",
        "    usage starts anew without a tier: 7/minute",
    ]
    assert looked == [before, after]
