"""Names that YAML takes for numbers or booleans are the texts that were written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tidegate import Limiter
from tidegate.cli.main import main
from tidegate.rules import RulesError, RuleSet

if TYPE_CHECKING:
    from pathlib import Path

# With what YAML takes each for.
NAMES = [
    ("0123", "83"),
    ("1_000", "1000"),
    ("12:30", "750"),
    ("0x1F", "31"),
    ("0b11", "3"),
    ("+5", "5"),
    ("on", "true"),
    ("NO", "false"),
    ("Yes", "true"),
]


@pytest.mark.parametrize(("name", "other"), NAMES)
def test_a_list_holds_for_the_user_as_written(name: str, other: str) -> None:
    limiter = Limiter(rules=RuleSet.parse(f"rules: []\nblock: [{{user: {name}}}]"))
    assert not limiter.check(user=name)
    assert limiter.check(user=other)


@pytest.mark.parametrize(("name", "other"), NAMES)
def test_an_override_holds_for_the_key_as_written(name: str, other: str) -> None:
    rules = f"""
rules: [{{id: api, by: user, limit: 1/hour}}]
overrides: [{{rule: api, key: &who {name}, limit: 5/hour}}]
costs: [{{when: {{user: *who}}, cost: 2}}]
"""
    limiter = Limiter(rules=RuleSet.parse(rules))
    assert (limiter.check(user=name).limit, limiter.peek(user=name).remaining) == (5, 3)
    assert limiter.check(user=other).limit == 1


@pytest.mark.parametrize(("name", "other"), NAMES)
def test_a_condition_holds_for_the_value_as_written(name: str, other: str) -> None:
    rules = f"rules: [{{id: a, by: global, when: {{country: {name}}}, limit: 1/hour}}]"
    limiter = Limiter(rules=RuleSet.parse(rules))
    assert limiter.check(country=name).rule == "a"
    assert limiter.check(country=other).rule is None


@pytest.mark.parametrize("name", ["1.10", "12:30.5", "2031-01-31", ".inf"])
def test_what_cannot_be_a_name_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(RulesError, match="expected it in quotes"):
        RuleSet.parse(f"rules: []\nblock: [{{user: {name}}}]")


def test_numbers_and_booleans_are_these_where_they_are_expected() -> None:
    rules = RuleSet.parse("""
rules: [{id: a, by: global, limit: 100/hour, shadow: on, headers: No}]
costs: [{method: POST, cost: 1_0}]
""")
    (rule,) = rules.rules
    assert rule.shadow is True
    assert rule.headers is False
    assert Limiter(rules=rules).check(method="POST").outcomes[0].remaining == 90


@pytest.mark.parametrize(("text", "taken"), [("010", 8), ("1:30", 90), ("+0_17", 15)])
@pytest.mark.parametrize(
    "cost", ["{}", "{{usage: {{input: {}}}}}", "{{estimate: {}, usage: {{a: 1}}}}"]
)
def test_a_number_that_yaml_reads_as_another_one_is_refused(
    text: str, taken: int, cost: str
) -> None:
    expected = f"is {text!r}, which YAML takes for {taken}; expected a decimal number"
    with pytest.raises(RulesError, match=re.escape(expected)):
        RuleSet.parse(f"rules: []\ncosts: [{{method: POST, cost: {cost.format(text)}}}]")


def test_cases_are_of_users_as_written(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules: []\nblock: [{user: 0123}]")
    (tmp_path / "cases.yaml").write_text(
        "cases: [{requests: [{user: 0123, times: 0x2, expect: refused}]}]"
    )
    assert main(["rules", "test", *(str(tmp_path / f"{n}.yaml") for n in ("rules", "cases"))]) == 0


def test_a_number_of_a_case_that_yaml_reads_as_another_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.yaml").write_text("rules: []\nblock: [{user: a}]")
    (tmp_path / "cases.yaml").write_text(
        "cases: [{requests: [{user: a, times: 010, expect: refused}]}]"
    )
    assert main(["rules", "test", *(str(tmp_path / f"{n}.yaml") for n in ("rules", "cases"))]) != 0
    said = capsys.readouterr()
    assert "times: is '010', which YAML takes for 8; expected" in said.out + said.err


@pytest.mark.parametrize(
    "limits",
    [" unlimited ", ["unlimited\n"], {"free": "\tunlimited", "*": "1/hour"}, {"*": ["unlimited "]}],
)
def test_spaces_around_unlimited_mean_nothing(limits: object) -> None:
    rule = {"id": "a", "by": "user", "limits": limits}
    overrides = [{"rule": "a", "key": "other", "limits": "unlimited "}]
    limiter = Limiter(rules=RuleSet({"rules": [rule], "overrides": overrides}))
    assert limiter.check(user="1", tier="free").outcomes == ()
    assert limiter.check(user="other", tier="gold").outcomes == ()


@pytest.mark.parametrize("limits", ["unlimited; 1/minute", ["unlimited", "1/minute"]])
def test_unlimited_beside_a_limit_is_refused(limits: object) -> None:
    with pytest.raises(RulesError, match="has 'unlimited' beside a limit; expected it alone"):
        RuleSet({"rules": [{"id": "a", "by": "user", "limits": limits}]})
