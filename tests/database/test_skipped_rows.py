"""Tests that an invalid override is skipped and named, and that the other rules are in force."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from tidegate.rules import RulesError
from tidegate.rules.sql import SqlRules

if TYPE_CHECKING:
    from rule_database import RuleDatabase


@pytest.mark.parametrize("limits", ['{"gone": "9/minute"}', "[]", '{"api": "soon"}'])
def test_custom_limits_that_are_not_accepted_are_skipped(
    database: RuleDatabase, limits: Any, caplog: pytest.LogCaptureFixture
) -> None:
    database.add_rule("api", "10/minute")
    database.add("user_tiers", user_id="7", tier="free", custom_limits=limits)
    database.add("user_tiers", user_id="8", tier="free", custom_limits='{"api": "20/minute"}')
    with caplog.at_level(logging.WARNING, "tidegate"), SqlRules(database.url) as source:
        rules = source.current
        assert rules.overrides == 1
        assert ["user_tiers row '7'" in str(problem) for problem in rules.skipped] == [True]
        assert "1 overrides were left out" in caplog.text


def test_a_second_override_of_one_key_is_skipped(database: RuleDatabase) -> None:
    database.add_rule("api", "10/minute")
    for limits in ("20/minute", "30/minute"):
        database.add_override(limits)
    with SqlRules(database.url) as source:
        assert [problem.where for problem in source.current.skipped] == [""]
        assert source.current.overrides == 1


def test_a_version_that_differs_by_skipped_rows_alone_lists_them(database: RuleDatabase) -> None:
    database.add_rule("api", "10/minute")
    with SqlRules(database.url) as source:
        database.add("user_tiers", user_id="7", tier="free", custom_limits="[]")
        assert not source.refresh()
        assert ["user_tiers row '7'" in str(each) for each in source.current.skipped] == [True]
        database.run("DELETE FROM user_tiers")
        assert not source.refresh()
        assert source.current.skipped == ()


def test_a_rule_that_is_not_accepted_is_not_skipped(database: RuleDatabase) -> None:
    database.add_rule("api", "soon")
    with pytest.raises(RulesError):
        SqlRules(database.url)


def test_a_text_in_a_column_of_texts_is_one_of_them(database: RuleDatabase) -> None:
    database.add_rule("api", "10/minute", endpoint_pattern="/y", endpoints='"/x"', methods='"PUT"')
    database.add("operation_costs", method="PUT", methods='"GET"', cost=2)
    with SqlRules(database.url) as source:
        (rule,) = source.current.rules
        assert (rule.endpoints, rule.methods) == (["/y", "/x"], ["PUT"])
        assert source.current.model.costs[0].methods == ["PUT", "GET"]


def test_tables_of_a_later_version_are_said_at_the_start(
    database: RuleDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    database.add_rule("api", "10/minute")
    SqlRules(database.url).close()
    assert "have the version" not in caplog.text
    database.run("UPDATE tidegate_version SET version_num = '9999'")
    with SqlRules(database.url) as source:
        assert source.current.in_force == 1
    assert "its tables have the version 9999, which this version of tidegate" in caplog.text
