"""`tidegate rules import`: Envoy's descriptors as rules that decide alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from envoy_examples import MESSAGING
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate.cli.main import main
from tidegate.rules import RuleSet

MESSAGES = f"""\
{MESSAGING}
  - key: to_number
    value: "911"
    rate_limit: {{unlimited: true}}
"""


@pytest.fixture
def imported(tmp_path: Path, capsys: Any) -> Any:
    """Imports a text; what came of it as a rule set, and the notes without their file."""

    def import_(text: str, *options: str, code: int = 0) -> tuple[RuleSet, list[str]]:
        path, out = tmp_path / "envoy.yaml", tmp_path / "rules.yaml"
        path.write_text(text)
        assert main(["rules", "import", str(path), "-o", str(out), *options]) == code
        notes = capsys.readouterr().err.replace(str(path), "").splitlines()
        return RuleSet.load(out), notes

    return import_


def ids(decision: tg.Decision) -> list[str | None]:
    return [outcome.rule for outcome in decision.outcomes]


def test_descriptors_become_rules_that_decide_alike(imported: Any) -> None:
    rules, notes = imported(MESSAGES)
    assert notes == [
        ":1: domain: the domain is 'messaging'; where several share a storage, give each limiter "
        "its own prefix=",
        ":2: descriptors: the service has to give message_type, to_number",
    ]
    clock = tg.ManualClock(0)
    limiter = tg.Limiter(rules=rules, clock=clock)
    for _ in range(5):
        assert limiter.check(message_type="marketing", to_number="1")
    refused = limiter.check(message_type="marketing", to_number="1")
    assert (refused.allowed, refused.rule) == (False, "message_type=marketing/to_number")
    assert refused.retry_after == 86_400, "windows are aligned, as Envoy's are"
    assert limiter.check(message_type="marketing", to_number="2")
    assert limiter.check(message_type="other", to_number="1").remaining == 94, "both count"
    assert ids(limiter.check(to_number="911")) == []


def test_nested_levels_values_shadow_and_units(imported: Any) -> None:
    rules, notes = imported(
        "domain: d\ndescriptors:\n"
        "- key: user\n"
        "  rate_limit: {unit: SECOND, requests_per_unit: 9}\n"
        "  descriptors:\n"
        "  - key: plan\n"
        "    value: gold\n"
        "    shadow_mode: true\n"
        "    rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 50}\n"
        "  - key: plan\n"
        "    rate_limit: {unit: month, requests_per_unit: 7}\n"
        "- key: banned\n"
        "  value: yes\n"
        "  rate_limit: {unit: week, requests_per_unit: 0}\n"
        "- {key: plan, value: staff}\n"
    )
    found = [(rule.id, rule.by, rule.when, rule.limits, rule.shadow) for rule in rules.rules]
    assert found == [
        ("user", ["user"], {}, "9/second", False),
        ("user/plan=gold", ["user", "plan"], {"plan": "gold"}, "50/5 minutes", True),
        ("user/plan", ["user", "plan"], {}, "7/30 days", False),
        ("banned=yes", ["banned"], {"banned": "yes"}, "0/7 days", False),
        ("plan=staff", ["plan"], {"plan": "staff"}, "unlimited", False),
    ]
    limiter = tg.Limiter(rules=rules)
    assert not limiter.check(banned="yes")
    # A shadow rule replaces no rule that is enforced, which the import says.
    assert sum("in Envoy the limit of any 'plan' does not count" in each for each in notes) == 1
    assert set(ids(limiter.check(user="1", plan="gold"))) == {
        "user", "user/plan", "user/plan=gold",
    }  # fmt: skip


def test_a_limit_replaces_others_by_name(imported: Any) -> None:
    rules, notes = imported(
        "domain: d\ndescriptors:\n"
        "- key: kind\n"
        "  value: read\n"
        "  rate_limit: {name: reads, unit: hour, requests_per_unit: 10}\n"
        "- key: path\n"
        "  value: /export\n"
        "  rate_limit:\n"
        "    unit: hour\n"
        "    requests_per_unit: 2\n"
        "    replaces: [{name: reads}, {name: none}]\n"
    )
    assert ":11: descriptors[1].rate_limit.replaces: no limit is named 'none'; left out" in notes
    limiter = tg.Limiter(rules=rules)
    assert ids(limiter.check(kind="read", path="/export")) == ["path=/export"]
    assert ids(limiter.check(kind="read", path="/other")) == ["reads"]


def test_addresses_and_mapped_keys_have_conditions_of_their_own(imported: Any) -> None:
    rules, notes = imported(
        "domain: d\ndescriptors:\n"
        "- key: remote_address\n"
        "  rate_limit: {unit: second, requests_per_unit: 3}\n"
        "- key: remote_address\n"
        "  value: 192.0.2.7\n"
        "  rate_limit: {unit: second, requests_per_unit: 0}\n"
        "- key: path\n"
        "  value: /api/*\n"
        "  rate_limit: {unit: second, requests_per_unit: 5}\n"
        "- key: x-user-id\n"
        "  rate_limit: {unit: second, requests_per_unit: 8}\n",
        "--map",
        "path=endpoint",
    )
    assert "the key 'remote_address' is the attribute 'ip' here" in notes[0]
    assert ":11: descriptors[3]: the key 'x-user-id' is the attribute 'x_user_id' here" in notes
    limiter = tg.Limiter(rules=rules)
    assert not limiter.check(ip="192.0.2.7")
    assert limiter.check(ip="192.0.2.8").remaining == 2
    assert limiter.check(endpoint="/api/a/b").remaining == 4
    assert limiter.check(endpoint="/api/c").remaining == 4, "each path counts for itself"
    assert limiter.check(endpoint="/other").rule is None
    assert limiter.check(x_user_id="1").limit == 8


def test_what_does_not_carry_over_is_listed(imported: Any) -> None:
    rules, notes = imported(
        "domain: d\ndescriptors:\n"
        "- key: a\n"
        "  value: foo*\n"
        "  rate_limit: {unit: second, requests_per_unit: 1}\n"
        "- key: a\n"
        "  value: b\n"
        "  detailed_metric: true\n"
        "  descriptors:\n"
        "  - {key: c, value: d, rate_limit: {unit: second, requests_per_unit: 1}}\n"
        "- key: a\n"
        "  descriptors:\n"
        "  - {key: c, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 2}}\n"
        "- key: c\n"
        "  descriptors:\n"
        "  - {key: a, share_threshold: true}\n"
    )
    assert [rule.id for rule in rules.rules] == ["a=b/c=d", "a/c", "c/a"]
    assert notes[:-2] == [
        ":3: descriptors[0]: each '*' of the value 'foo*' stands for any text, and no condition "
        "does so; left out, with all that is nested in it",
        ":3: descriptors[0]: requests with a=foo* that meet none of its descriptors have no limit "
        "in Envoy; here those below 'a' apply to them",
        ":8: descriptors[1].detailed_metric: is left out: metrics are by rule",
        ":6: descriptors[1]: requests with a=b that meet none of its descriptors have no limit in "
        "Envoy; here those below 'a' apply to them",
        ":13: descriptors[2].descriptors[0].quota_mode: is left out: the rule refuses, unless in "
        "shadow",
        ":16: descriptors[3].descriptors[0].share_threshold: all values of a count together, apart "
        "from the rules by a",
        ":16: descriptors[3].descriptors[0]: has the keys of the rule 'a=b/c=d' in another order: "
        "in Envoy both may count a request, here the more specific one",
    ]


def test_rules_that_are_not_accepted_are_written_and_refused(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(
        "domain: d\ndescriptors:\n"
        "- {key: a, value: 1, descriptors: [{key: b, rate_limit: {unit: day,"
        " requests_per_unit: 1}}]}\n"
        "- {key: a, descriptors: [{key: b, value: 2, rate_limit: {unit: day,"
        " requests_per_unit: 1}}]}\n"
    )
    assert main(["rules", "import", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("# Made of envoy.yaml by `tidegate rules import`.\nalgorithm:")
    assert f"the rules are not accepted: {path}: rules[1]: meets the same" in captured.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: []\n", "has no domain; expected a domain and descriptors"),
        ("domain: d\ndescriptor: []\n", ":2: descriptor: is not a field; expected descriptors"),
        ("domain: d\ndescriptors: 3\n", ":2: descriptors: is '3'; expected a list"),
        ("domain: d\ndescriptors:\n- 3\n", ":3: descriptors[0]: is '3'; expected a mapping with a"),
        ("domain: d\ndescriptors:\n- {key: a, ky: b}\n", "descriptors[0].ky: is not a field"),
        ("domain: d\ndescriptors:\n- key: ''\n", "descriptors[0]: is {'key': ''}; expected a"),
        ("domain: d\ndescriptors:\n- {key: a, value: [1]}\n", "].value: is no text; expected one"),
        ("domain: d\ndescriptors:\n- key: a\n- key: a\n", ":4: descriptors[1]: has the key and"),
        (
            "domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    unit: year2\n",
            ":5: descriptors[0].rate_limit.unit: is 'year2'; expected second, minute",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: -1}\n",
            "requests_per_unit: is '-1'; expected a whole number from 0 up",
        ),
        (
            "domain: d\ndescriptors:\n- key: a-b\n- key: a_b\n",
            "the keys 'a-b' and 'a_b' are both the attribute 'a_b'; expected --map a_b=ANOTHER",
        ),
    ],
)
def test_files_that_are_none_of_envoys(
    text: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(text)
    assert main(["rules", "import", str(path)]) == 2
    assert message in capsys.readouterr().err


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
LIMIT = st.fixed_dictionaries(
    {"unit": st.sampled_from(["second", "day"]) | ANY, "requests_per_unit": st.just(5) | ANY},
    optional={"name": st.sampled_from(["a", "b"]) | ANY, "unlimited": ANY, "replaces": ANY}
    | {"unit_multiplier": ANY},
)


def _descriptor(inner: Any) -> Any:
    return st.fixed_dictionaries(
        {"key": st.sampled_from(["a", "b", "remote_address", "x-y"]) | ANY},
        optional={"value": st.sampled_from(["1", "f*"]) | ANY, "rate_limit": LIMIT | ANY}
        | {"shadow_mode": ANY, "share_threshold": ANY, "descriptors": st.lists(inner, max_size=2)},
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_descriptor(_descriptor(ANY)) | ANY, max_size=3) | ANY)
def test_any_descriptors_are_imported_or_refused(tmp_path: Path, descriptors: Any) -> None:
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps({"domain": "d", "descriptors": descriptors}))
    assert main(["rules", "import", str(path)]) in (0, 1, 2)


@pytest.mark.parametrize("kind", ["same", "another way to it", "a link"])
def test_import_does_not_overwrite_what_it_reads(tmp_path: Path, capsys: Any, kind: str) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(MESSAGES)
    out = path
    if kind == "another way to it":
        out = tmp_path / ".." / tmp_path.name / "envoy.yaml"
    elif kind == "a link":
        out = tmp_path / "rules.yaml"
        out.symlink_to(path)
    assert main(["rules", "import", str(path), "-o", str(out)]) == 2
    assert capsys.readouterr().err == (
        f"tidegate: the output {str(out)!r} is the file to import; expected another file\n"
    )
    assert path.read_text() == MESSAGES


def test_a_name_for_a_key_that_no_descriptor_has_is_said(imported: Any) -> None:
    _, notes = imported(MESSAGES, "--map", "tonumber=phone", "--map", "to_number=phone")
    assert [note for note in notes if "--map" in note] == [
        "--map tonumber=phone: no descriptor has the key 'tonumber'"
    ]


def test_what_changes_for_nested_limits_wildcards_and_addresses_is_said(imported: Any) -> None:
    rules, notes = imported(
        "domain: d\ndescriptors:\n"
        "- key: user\n"
        "  rate_limit: {unit: second, requests_per_unit: 5}\n"
        "  descriptors:\n"
        "  - {key: plan, value: gold, rate_limit: {unit: second, requests_per_unit: 50}}\n"
        "- {key: path, value: /a*, rate_limit: {unit: second, requests_per_unit: 1}}\n"
        "- {key: path, value: /b/*, rate_limit: {unit: second, requests_per_unit: 2}}\n"
        "- {key: path, value: /c/*/d, rate_limit: {unit: second, requests_per_unit: 3}}\n"
        "- {key: remote_address, rate_limit: {unit: second, requests_per_unit: 4}}\n",
        "--map",
        "path=endpoint",
    )
    assert [rule.id for rule in rules.rules] == [
        "user",
        "user/plan=gold",
        "path=/b/*",
        "remote_address",
    ]
    said = "\n".join(notes)
    assert (
        ":4: descriptors[0].rate_limit: is in Envoy for requests with user alone; here it counts "
        "those of its descriptors too, so the smaller of both limits holds for them" in said
    )
    for line, value in ((7, "/a*"), (9, "/c/*/d")):
        assert (
            f":{line}: descriptors[{line - 6}]: each '*' of the value '{value}' stands for any"
            in said
        )
    assert "/b/*" not in said
    assert "the addresses of IPv6 count by networks of 64 bits, and in Envoy one by one" in said
    # As the note says: the user's limit holds for what is nested in it.
    limiter = tg.Limiter(rules=rules, clock=tg.ManualClock(0))
    allowed = [bool(limiter.check(user="1", plan="gold")) for _ in range(7)]
    assert allowed == [True] * 5 + [False] * 2
    assert limiter.check(endpoint="/b/x/y").limit == 2
