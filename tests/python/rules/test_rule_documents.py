"""The documentation's examples of rules are accepted, and its cases hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tidegate.cli.main import main
from tidegate.rules import RuleSet

DOCS = Path(__file__).resolve().parents[3] / "docs"


def blocks(name: str) -> list[str]:
    text = (DOCS / name).read_text(encoding="utf-8")
    return re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


RULES = [
    (name, i, block)
    for name in ("rules.md", "rules-tutorial.md")
    for i, block in enumerate(blocks(name))
    if "cases:" not in block
]


@pytest.mark.parametrize(("name", "i", "block"), RULES, ids=[f"{n} {i}" for n, i, _ in RULES])
def test_rules_are_accepted(name: str, i: int, block: str) -> None:
    RuleSet.parse(block, source=f"{name}, block {i}")


def test_the_cases_of_the_tutorial_hold_for_its_last_rules(tmp_path: Path, capsys: object) -> None:
    found = blocks("rules-tutorial.md")
    (cases,) = [block for block in found if "cases:" in block]
    rules = found[found.index(cases) - 1]
    (tmp_path / "rules.yaml").write_text(rules)
    (tmp_path / "cases.yaml").write_text(cases)
    assert main(["rules", "check", "--strict", str(tmp_path / "rules.yaml")]) == 0
    assert main(["rules", "test", *(str(tmp_path / f"{n}.yaml") for n in ("rules", "cases"))]) == 0
