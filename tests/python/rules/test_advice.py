"""Likely mistakes in rules, which are said and not refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tidegate.cli.rules.check import check
from tidegate.rules import RuleFile, RulesError, RuleSet
from tidegate.rules.document import read_text

ROOT = Path(__file__).resolve().parents[3]
TYPOS = yaml.safe_load((Path(__file__).parent / "typos.yaml").read_text(encoding="utf-8"))
TWO_RULES = [
    {"id": "user", "by": "user", "limit": "10/minute"},
    {"id": "address", "by": "ip", "limit": "10/minute"},
]


def shown(typo: dict[str, Any]) -> str:
    return re.sub(r"[^\w]+", " ", f"{typo['says']} {typo['document']}")[:90]


def document_of(typo: dict[str, Any]) -> dict[str, Any]:
    document = typo["document"]
    return document if "rules" in document else {"rules": TWO_RULES, **document}


def texts_in(text: str) -> list[str]:
    """Documents in a page, a program or a file: fenced blocks, and texts between quotes."""
    fenced = re.findall(r"^ *```(?:yaml|json|toml)\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    return [*fenced, *re.findall(r'"""\\?\n?(.*?)"""', text, re.DOTALL)]


def right_documents() -> list[tuple[str, RuleSet]]:
    """All documents of rules in the pages, the examples and the tests that are accepted."""
    found = []
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    programs = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    data = [
        path
        for folder in ("examples", "tests", "docs")
        for path in (ROOT / folder).rglob("*.yaml")
        if path.name != "typos.yaml"
    ]
    for path in (*pages, *programs, *data):
        text = path.read_text(encoding="utf-8")
        for each in [text] if path in data else texts_in(text):
            try:
                rules = RuleSet._from(read_text(each, "yaml", str(path.relative_to(ROOT))))
            except RulesError:
                continue  # it is another text, or shows what is refused
            found.append((str(path), rules))
    return found


def test_documents_that_are_right_are_found_and_have_no_advice() -> None:
    found = right_documents()
    assert len(found) > 20
    assert {"tiers.yaml", "payments.yaml", "rules.md"} <= {Path(path).name for path, _ in found}
    assert [str(problem) for _, rules in found for problem in rules.advice] == []


@pytest.mark.parametrize("typo", TYPOS, ids=shown)
def test_each_typo_is_named(typo: dict[str, Any], tmp_path: Path, capsys: Any, caplog: Any) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(document_of(typo), default=str))
    assert check(str(path), strict=True) == 1, "a strict check fails"
    printed = capsys.readouterr().out.splitlines()[:-1]
    named = [line for line in printed if typo["says"] in line]
    assert named, printed
    if printed and not all(": warning: " in line for line in printed):
        with pytest.raises(RulesError) as refused:
            RuleSet.load(path)
        assert [str(problem) for problem in refused.value.problems] == printed
    else:
        RuleSet.load(path)
        logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        plain = named[0].replace(": warning: ", ": ")
        assert any(plain.partition(": ")[2] in message for message in logged)


def test_there_are_at_least_a_hundred_typos_and_most_are_not_refused() -> None:
    assert len(TYPOS) >= 100
    accepted = 0
    for typo in TYPOS:
        try:
            RuleSet(document_of(typo))
            accepted += 1
        except RulesError:
            pass
    assert accepted >= 80


def test_names_that_a_service_has_of_its_own_are_no_typos() -> None:
    rules = RuleSet(
        {
            "rules": [
                {"id": f"r{i}", "by": name, "limit": "1/minute"}
                for i, name in enumerate(
                    [
                        "account",
                        "apikey",
                        "app_key",
                        "client",
                        "customer",
                        "device",
                        "key1",
                        "key2",
                        "merchant",
                        "model",
                        "org",
                        "organization",
                        "path",
                        "plan",
                        "project",
                        "region",
                        "session",
                        "team",
                        "token",
                        "user_id",
                        "username",
                        "workspace",
                        "zip",
                        "vip",
                        "org_id",
                        "app_id",
                        "timer",
                    ]
                )
            ],
            "allow": [{"user": "a,b", "note_id": "7"}, {"path": "/a"}, {"team": "x", "form": "y"}],
        }
    )
    assert rules.advice == ()


def test_declared_attributes_are_taken_as_they_are() -> None:
    rules = {"rules": [{"id": "a", "by": "usr+ips", "limit": "1/minute"}]}
    assert len(RuleSet(rules).advice) == 2
    assert RuleSet({**rules, "attributes": ["usr", "ips"]}).advice == ()


def test_a_method_a_path_and_a_tier_that_are_right_are_not_named() -> None:
    rules = RuleSet(
        {
            "default_tier": "free",
            "rules": [
                {
                    "id": "a",
                    "by": "ip",
                    "methods": ["propfind", "PURGE", "QUERY"],
                    "endpoints": ["/a/100%", "/@me", "/a$b", "report", "/c(1)"],
                    "limits": {"free": "1/minute", "pro": "2/minute", "plan1": "3/minute"},
                },
                {"id": "b", "by": "user", "tier": "plan2", "limit": "1/minute"},
            ],
        }
    )
    assert rules.advice == ()


def test_a_cost_that_fits_somewhere_is_no_mistake() -> None:
    def advice(costs: Any, *rules: Any) -> Any:
        return RuleSet({"rules": list(rules), "costs": costs}).advice

    user = {"id": "user", "by": "user", "limit": "10/minute"}
    costly = [{"endpoint": "/reports", "cost": 50}]
    assert advice(costly, user)
    by_tier = {"id": "user", "by": "user", "limits": {"*": "10/minute", "pro": "50/minute"}}
    assert not advice(costly, by_tier)
    assert not advice(costly, {**user, "counts": "requests"})
    assert not advice(costly, {**user, "endpoint": "/api/**"})
    assert not advice([{**costly[0], "method": "POST"}], {**user, "method": "PUT"})
    assert not advice(costly, user, {**user, "id": "r", "endpoint": "/reports", "limit": "60/hour"})
    assert not advice(costly, {**user, "shadow": True})


def test_a_rule_that_applies_somewhere_is_not_called_hidden() -> None:
    def advice(*rules: Any, **more: Any) -> Any:
        return RuleSet({"rules": list(rules), **more}).advice

    everyone = {"id": "all", "by": "user", "limit": "1/minute"}
    free = {"id": "free", "by": "user", "tier": "free", "limit": "9/minute"}
    pro = {"id": "pro", "by": "user", "tier": "pro", "limit": "9/minute"}
    assert advice(everyone, free, pro, default_tier="free")
    assert not advice(everyone, free, pro), "a request without a tier meets the first"
    assert not advice(everyone, free, default_tier="free", tiers=["free", "pro"])
    assert not advice({**everyone, "also": True}, free, pro, default_tier="free")
    assert not advice({**everyone, "endpoint": "/a"}, free, pro, default_tier="free")
    address = {"id": "address", "by": "ip", "limit": "1/minute"}
    known = {"id": "known", "by": "user", "limit": "9/minute", "replaces": "address"}
    assert not advice(address, known)
    ceiling = {"id": "ceiling", "by": "global", "limit": "9/second"}
    default = {"by": "ip", "limit": "1/minute"}
    assert advice(ceiling, default=default)
    assert not advice({**ceiling, "also": True}, default=default)
    assert not advice({**ceiling, "shadow": True}, default=default)


def test_a_rule_for_some_tiers_beside_one_for_the_others_is_no_mistake() -> None:
    def advice(rule: Any, *rules: Any, **more: Any) -> Any:
        return RuleSet({"rules": [rule, *rules], **more}).advice

    paid = {
        "id": "paid",
        "by": "user",
        "tier": "paid",
        "endpoint": "/api/**",
        "method": "GET",
        "when": {"region": "eu"},
        "limit": "9/minute",
    }
    all = {"id": "all", "by": "user", "limit": "1/minute"}
    assert advice(paid)
    assert not advice({**paid, "shadow": True}, all)
    assert not advice(paid, default_tier="paid")
    assert not advice(paid, default={"by": "user", "limit": "1/minute"})
    for field in ({}, {"endpoint": "/**"}, {"method": ["GET", "PUT"]}, {"when": paid["when"]}):
        assert not advice(paid, {**all, **field})
    for field in (
        {"endpoint": "/b"},
        {"method": "PUT"},
        {"when": {"region": "us"}},
        {"by": "ip"},
        {"tier": "free"},
        {"limits": {"free": "1/minute"}},
        {"network": "10.0.0.0/8"},
        {"shadow": True},
        {"enabled": False},
    ):
        other = {**all, **field}
        if "limits" in field:
            del other["limit"]
        assert any("'paid' is not for" in str(each) for each in advice(paid, other)), field
    assert RuleSet({"rules": [], "block": [{"user": "mallory"}]}).advice == ()


def test_check_hints_at_a_rule_that_adds_where_one_takes_the_place_of_another(
    tmp_path: Path, capsys: Any
) -> None:
    def printed(*rules: Any, strict: bool = False) -> str:
        path = tmp_path / "rules.json"
        path.write_text(json.dumps({"rules": [*TWO_RULES, *rules]}))
        assert check(str(path), strict=strict) == 0
        return str(capsys.readouterr().out)

    files = {"id": "files", "by": "user", "endpoint": "/files/**", "limit": "2/minute"}
    partner = {"id": "partner", "by": "user", "network": "198.51.100.0/24", "limit": "9/minute"}
    hint = "rules[0]: hint: 'user' does not count where a more specific rule does: 'files'"
    assert hint in printed(files)
    assert hint + ", 'partner'; `also: true` on that one" in printed(files, partner)
    assert ": hint: " not in printed(files, strict=True)
    for other in ({"also": True}, {"counts": "requests"}, {"shadow": True}, {"by": "tenant"}):
        assert ": hint: " not in printed({**files, **other}), other


def test_the_name_of_a_tier_makes_no_limit_a_quota() -> None:
    every = {"id": "every", "by": "user", "limit": "10/minute"}
    for name in ("paid", "quota"):
        named = {"id": "named", "by": "user", "tier": [name, "free"], "limit": "5/minute"}
        by_tier = {"id": "by-tier", "by": "user", "limits": {"free": "5/minute", name: "9/minute"}}
        for rule in (named, by_tier):
            rules = {"tiers": ["free", name], "default_tier": "free", "rules": [every, rule]}
            assert any("'every' never applies" in str(each) for each in RuleSet(rules).advice)


def test_a_source_says_each_likely_mistake_once(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "rules.yaml"

    def write(limit: str, by: str = "usr") -> None:
        path.write_text(f"rules:\n- {{id: a, by: {by}, limit: {limit}}}\n")

    def said() -> list[str]:
        return [r.getMessage() for r in caplog.records if "did you mean" in r.getMessage()]

    write("1/minute")
    with RuleFile(path) as source:
        assert len(said()) == 1
        assert (
            f"{path}:2: rules[0].by: no request is known to have the attribute 'usr'" in said()[0]
        )
        write("2/minute")
        assert source.refresh()
        assert len(said()) == 1, "a reload does not say again what was said"
        write("2/minute", "usr+ips")
        assert source.refresh()
        assert len(said()) == 2
        assert len(source.current.advice) == 2


def test_rules_that_were_read_in_another_process_have_their_advice(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n- {id: a, by: usr, limit: 1/minute}\n")
    from functools import partial
    from threading import Event

    from tidegate.rules.document import read_file
    from tidegate.rules.reading import read_apart

    version = read_apart(partial(read_file, path), keeps_text=False, stop=Event())
    assert [problem.line for problem in version.rules.advice] == [2]


def test_the_time_for_costs_does_not_grow_with_rules_times_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted(rule: Any, cost: Any) -> bool:
        nonlocal looks
        looks += 1
        return False

    monkeypatch.setattr("tidegate.rules.advice.costs._applies", counted)
    rules = [
        {"id": f"r{i}", "by": "user", "endpoint": f"/{i}", "limit": "1/minute"} for i in range(200)
    ]
    costs = [{"endpoint": f"/{i}", "cost": 2} for i in range(200)]
    ceiling = {"id": "ceiling", "by": "global", "limit": "1/minute"}
    assert RuleSet({"rules": [*rules, ceiling], "costs": costs}).advice == ()
    assert looks == 200, "each cost once, with the one rule that nothing hides"
