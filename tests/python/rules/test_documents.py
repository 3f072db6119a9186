"""Mistakes in documents of rules: a message names each with its place, and nothing else."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate.rules import RulesError, RuleSet

RULE = "{id: a, by: user, limit: 1/s}"


def problems_of(text: str, format: str = "yaml") -> list[str]:
    with pytest.raises(RulesError) as caught:
        RuleSet.parse(text, format, source=f"r.{format}")
    return [str(problem) for problem in caught.value.problems]


MISTAKES = {
    "overlap": (
        f"rules:\n- {RULE}\n- id: b\n  by: user\n  limit: 2/s\n",
        "r.yaml:3: rules[1]: meets the same requests as the rule 'a' and is no more specific; "
        "expected conditions that tell them apart",
    ),
    "costs that overlap": (
        "costs:\n- {method: GET, cost: 1}\n- {method: [POST, GET], cost: 2}\n",
        "r.yaml:3: costs[1]: meets the same requests as costs[0] and is no more specific; "
        "expected conditions that tell them apart",
    ),
    "unknown tier of limits": (
        "tiers: [free]\nrules:\n- id: a\n  by: user\n  limits:\n    free: 1/s\n    gold: 2/s\n",
        "r.yaml:7: rules[0].limits.gold: there is no tier 'gold'; expected one of free",
    ),
    "unknown default tier": (
        "rules:\n- {id: a, by: user, limits: {free: 1/s}}\ndefault_tier: gold\n",
        "r.yaml:3: default_tier: there is no tier 'gold'; expected one of free",
    ),
    "tier that no rule is for": (
        "tiers: [free, gold]\nrules:\n- {id: a, by: user, limits: {free: 1/s}}\n",
        "r.yaml:1: tiers[1]: no rule is for the tier 'gold'; expected limits for it, or a rule "
        "for every tier",
    ),
    "replaces in a circle": (
        "rules:\n- {id: a, by: user, limit: 1/s, replaces: b}\n"
        "- {id: b, by: ip, limit: 1/s, replaces: a}\n",
        "r.yaml:2: rules[0].replaces: rules replace each other in a circle: 'a' replaces 'b' "
        "replaces 'a'",
    ),
    "replaces itself": (
        "rules:\n- {id: a, by: user, limit: 1/s, replaces: [a]}\n",
        "r.yaml:2: rules[0].replaces[0]: a rule replaces itself; expected the id of another rule",
    ),
    "replaces no rule": (
        "rules:\n- id: a\n  by: user\n  limit: 1/s\n  replaces: z\n",
        "r.yaml:5: rules[0].replaces: there is no rule 'z'; expected the id of one",
    ),
    "pattern with ** inside": (
        "rules:\n- id: a\n  by: user\n  limit: 1/s\n  endpoint: /a/**/b\n",
        "r.yaml:5: rules[0].endpoint: the endpoint '/a/**/b' has '**' before its end; expected it "
        "as the last part",
    ),
    "pattern within a part": (
        "rules:\n- id: a\n  by: user\n  limit: 1/s\n  endpoints:\n  - /a\n  - /a*b\n",
        "r.yaml:7: rules[0].endpoints[1]: the endpoint '/a*b' has the part 'a*b'; expected '*' or "
        "'{name}' for a whole part",
    ),
    "pattern that no path meets": (
        "rules:\n- {id: a, by: user, limit: 1/s, endpoint: /a/../b}\n",
        "r.yaml:2: rules[0].endpoint: the endpoint '/a/../b' has a part '.' or '..', which matches "
        "no path that a service serves",
    ),
    "network": (
        "rules: []\nallow:\n- id: office\n  ip: 10.0.0.0/33\n",
        "r.yaml:4: allow[0].ip: the network is '10.0.0.0/33'; expected a prefix from 0 to 32 "
        "after the '/'",
    ),
    "limit out of range": (
        "rules:\n- id: a\n  by: user\n  limit: 99999999999999999999/s\n",
        "r.yaml:4: rules[0].limit: cannot read the limit '99999999999999999999/s': its count is "
        "beyond 9007199254740991; expected 1 to 9007199254740991",
    ),
    "limit that is a number": (
        "rules:\n- id: a\n  by: user\n  limit: 100\n",
        "r.yaml:4: rules[0].limit: is 100; expected a limit such as 100/minute, a list of limits, "
        "'unlimited', or a mapping of tiers to these",
    ),
    "fields of a limit instead of tiers": (
        "rules:\n- id: a\n  by: user\n  limit:\n    limit: 3/minute\n"
        "    algorithm: sliding-log\n    id: b\n",
        "r.yaml:4: rules[0].limit: has limit, algorithm and id, which are no tiers, and a mapping "
        "gives limits by tier; expected a limit such as '100/minute' or '10/second burst 40', and "
        "algorithm and id beside it in the rule",
    ),
    "fields of a limit whose values are no limits": (
        "tiers: [free, limit]\nrules:\n- id: a\n  by: user\n"
        "  limits: {free: 1/s, limit: 2/s, burst: 5}\n",
        "r.yaml:5: rules[0].limits: has burst, which is no tier, and a mapping gives limits by "
        "tier; expected a limit such as '100/minute' or '10/second burst 40'",
    ),
    "fields of a limit of the default": (
        "default:\n  by: ip\n  limit: {limit: 3/minute}\n",
        "r.yaml:3: default.limit: has limit, which is no tier, and a mapping gives limits by "
        "tier; expected a limit such as '100/minute' or '10/second burst 40'",
    ),
    "two limits of one period": (
        "rules:\n- {id: a, by: user, limits: [1/s, 2/s]}\n",
        "r.yaml:2: rules[0]: has the limits 1/second and 2/second, of one period and one "
        "algorithm; expected one of them",
    ),
    "id given twice": (
        "rules:\n- {id: old, by: user, limit: 1/s, enabled: false}\n"
        f"- {RULE}\n- {{id: a, by: ip, limit: 1/s}}\n",
        "r.yaml:4: rules[2].id: the id 'a' is the id of rules[1] too; expected a different id for "
        "each rule",
    ),
    "field given twice": (
        "rules:\n- id: a\n  by: user\n  by: ip\n",
        "r.yaml:4: the field 'by' is given twice",
    ),
    "field in both numbers": (
        "rules:\n- id: a\n  by: user\n  limit: 1/s\n  limits: 1/s\n",
        "r.yaml:4: rules[0].limit: is given with limits; expected one of them",
    ),
    "field that is missing": (
        "rules:\n- id: a\n  by: user\n",
        "r.yaml:2: rules[0].limits: is missing",
    ),
    "cost of nothing": (
        "costs:\n- method: GET\n  cost: 0\n",
        "r.yaml:3: costs[0].cost: is 0; expected 1 or more",
    ),
    "entry of a list for everyone": (
        "rules: []\nblock:\n- id: all\n",
        "r.yaml:3: block[0]: matches every request; expected a condition, such as a user",
    ),
    "field of rules in a list": (
        "rules: []\nallow:\n- {user: ann, limit: 1/s}\n",
        "r.yaml:3: allow[0].limit: is a field of rules; expected an attribute",
    ),
    "conditions of rules in a list": (
        "rules: []\nblock:\n- user: ann\n  when: gold\n",
        "r.yaml:4: block[0].when: is a field of rules; expected an attribute",
    ),
    "override of no rule": (
        f"rules:\n- {RULE}\noverrides:\n- {{rule: z, key: {{user: '1'}}, limit: 1/s}}\n",
        "r.yaml:4: overrides[0].rule: there is no rule 'z'; expected the id of one",
    ),
    "override of other attributes": (
        f"rules:\n- {RULE}\noverrides:\n- {{rule: a, key: {{ip: '::1'}}, limit: 1/s}}\n",
        "r.yaml:4: overrides[0].key: has ip; expected user",
    ),
    "override until a naive time": (
        f"rules:\n- {RULE}\noverrides:\n- rule: a\n  key: 1\n  limit: 2/s\n"
        "  until: 2030-01-01T00:00:00\n",
        "r.yaml:7: overrides[0].until: is 2030-01-01T00:00:00; expected a time with its zone, "
        "such as 2030-01-01T00:00:00Z",
    ),
    "override until no time": (
        f"rules:\n- {RULE}\noverrides:\n- rule: a\n  key: 1\n  limit: 2/s\n  until: 5\n",
        "r.yaml:7: overrides[0].until: is 5; expected a time such as 2030-01-31T12:00:00Z, or a "
        "day such as 2030-01-31",
    ),
    "day that there is not": (
        f"rules:\n- {RULE}\noverrides:\n- rule: a\n  key: 1\n  limit: 2/s\n  until: 2030-13-01\n",
        "r.yaml:7: the value '2030-13-01' is not accepted: month must be in 1..12",
    ),
    "wrong type of rules": ("rules: 3\n", "r.yaml:1: rules: is 3; expected a list"),
    "wrong type of a rule": ("rules:\n- 3\n", "r.yaml:2: rules[0]: is 3; expected a mapping"),
    "wrong type of the document": (
        "- a\n",
        "r.yaml:1: the document is ['a']; expected fields such as rules and tiers",
    ),
    "unknown algorithm": (
        "algorithm: bucket\n",
        "r.yaml:1: algorithm: is 'bucket'; expected 'token-bucket', 'gcra', 'leaky-bucket', "
        "'fixed-window', 'sliding-window', 'sliding-log', 'concurrency' or 'quota'",
    ),
    "truth value in words": (
        "rules:\n- {id: a, by: user, limit: 1/s, shadow: 'yes'}\n",
        "r.yaml:2: rules[0].shadow: is 'yes'; expected true or false",
    ),
    "condition of an attribute that has its own": (
        "rules:\n- id: a\n  by: user\n  limit: 1/s\n  when:\n    ip: '::1'\n",
        "r.yaml:6: rules[0].when.ip: 'ip' has a condition of its own; expected it in networks",
    ),
    "no rules at all": ("# nothing yet\n", "r.yaml: the document is empty; expected rules"),
    "tag of Python": (
        "rules: !!python/object/apply:os.system ['id']\n",
        "r.yaml:1: the tag '!!python/object/apply:os.system' is not accepted; expected plain data",
    ),
    "tag of its own": (
        "rules:\n- id: !mine a\n",
        "r.yaml:2: the tag '!mine' is not accepted; expected plain data",
    ),
    "alias of itself": (
        "rules: &a [*a]\n",
        "r.yaml:1: the alias 'a' has no anchor before it; expected one that has",
    ),
    "two documents": (
        "rules: []\n---\nrules: []\n",
        "r.yaml:2: the text has another document; expected one",
    ),
    "field name that is a list": (
        "[a]: 1\n",
        "r.yaml:1: the field name is ['a']; expected a text",
    ),
    "control character": ("rules: []\nx: \0\n", "r.yaml:2: the text has a control character"),
    "half of a character": (
        "rules:\n- \ud800\n",
        "r.yaml:2: the text has half of a surrogate pair; expected Unicode",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_place(name: str) -> None:
    text, message = MISTAKES[name]
    assert problems_of(text) == [message]


@pytest.mark.parametrize(
    "text",
    [
        "tiers: [limit, id]\nrules:\n- {id: a, by: user, limit: {limit: 1/s, id: 2/s}}\n",
        "default_tier: limit\nrules:\n- {id: a, by: user, limit: {limit: 1/s}}\n",
        "rules:\n- {id: a, by: user, tier: limit, limit: {limit: 1/s}}\n",
        "rules:\n- {id: a, by: user, limit: {free: 1/s, shadow: 2/s, name: [3/s]}}\n",
    ],
)
def test_tiers_may_have_the_names_of_fields(text: str) -> None:
    assert [rule.id for rule in RuleSet.parse(text).rules] == ["a"]


def test_all_mistakes_are_named_at_once() -> None:
    found = problems_of("rules:\n- {id: a b, by: 7, limit: 1/s}\n- {id: 5, by: ip, shdow: true}\n")
    assert [line.partition(";")[0] for line in found] == [
        "r.yaml:2: rules[0].by: is 7",
        "r.yaml:2: rules[0].id: the id is 'a b'",
        "r.yaml:3: rules[1].limits: is missing",
        "r.yaml:3: rules[1].id: is 5",
        "r.yaml:3: rules[1].shdow: is not a field",
    ]
    assert "did you mean 'shadow'? expected algorithm, also, by," in found[-1]


JSON = '{"rules": [\n {"id": "a",\n  "by": "user",\n  "limit": "1/s"},\n'
TOML = '[[rules]]\nid = "a"\nby = "user"\nlimits.free = "1/s"\n\n[[rules]]\nid = "b"\nby = "ip"\n'


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        ("json", JSON + ' {"id": "b", "by": "ip",\n  "limit": "x"}]}', "r.json:6: rules[1].limit:"),
        ("json", JSON + ' {"id": "b", "id": "ip"}]}', "r.json:5: the field 'id' is given twice"),
        ("json", JSON + ' {"id": "b"\n "by": "ip"}]}', "r.json:6: the text is not JSON"),
        ("json", '{"rules":\n [{"id": "\\ud83d\\ude00"}]}', "r.json:2: rules[0].limits"),
        ("json", '{"rules":\n [{"id": "\\ud83d"}]}', "r.json:2: rules[0].id: is '\\ud83d', with"),
        ("json", '{"rules": ' + "1" * 5000 + "}", "r.json: a value of the text is not accepted"),
        ("toml", TOML + "[rules.limits]\nfree = 'x'\n", "r.toml:10: rules[1].limits.free: cannot"),
        ("toml", TOML.replace('"1/s"', "5"), "r.toml:4: rules[0].limits.free: is 5; expected"),
        ("toml", TOML + "id = 'c'\n", "r.toml:9: the text is not TOML"),
        ("toml", TOML + "[[rules]]\nid = 'c'\n[rule]\n", "r.toml:11: rule: is not a field"),
    ],
)
def test_problems_in_json_and_toml_have_lines_too(format: str, text: str, message: str) -> None:
    assert any(problem.startswith(message) for problem in problems_of(text, format)), problems_of(
        text, format
    )


def test_yaml_merges_the_fields_of_an_anchor() -> None:
    rules = RuleSet.parse(
        "rules:\n- &base {id: a, by: user, limit: 1/s}\n- {<<: *base, id: b, by: ip}\n"
    )
    assert [(rule.id, rule.by) for rule in rules.rules] == [("a", ["user"]), ("b", ["ip"])]


def _bombs() -> dict[str, str]:
    def of(value: str) -> str:
        pairs = zip("abcdefghij", "bcdefghijk")
        lines = [f"{c}: &{c} {value.replace('X', f'*{p}')}" for p, c in pairs]
        return "a: &a [x, x, x]\n" + "\n".join(lines)

    merges = "".join(f"- &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}\n" for i in range(1, 12))
    return {
        "lists": of("[X, X, X, X, X, X, X, X, X]"),
        "mappings": of("{p: X, q: X, r: X, s: X, t: X, u: X, v: X, w: X}"),
        "merges": "- &m0 {a: 1}\n" + merges,
        "depth of lists": "rules: " + "[" * 1_000_000,
        "depth of mappings": "{a: " * 1_000_000,
        "depth of blocks": "- " * 1_000_000,
        "depth of names": "? " * 1_000_000,
    }


BOMBS = _bombs()


@pytest.mark.parametrize("name", BOMBS)
def test_a_yaml_bomb_is_refused_at_once_with_little_memory(name: str) -> None:
    tracemalloc.start()
    begin = time.process_time()
    try:
        (problem,) = problems_of(BOMBS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "aliases stand for more than" in problem or "nested deeper than 50" in problem
    assert time.process_time() - begin < 5
    assert peak < 32 * 2**20


@pytest.mark.parametrize("format", ["json", "toml"])
def test_a_document_that_is_nested_too_deep_is_refused(format: str) -> None:
    text = '{"rules": ' if format == "json" else "rules = "
    assert problems_of(text + "[" * 200_000, format) == [
        f"r.{format}: the document is nested too deep"
    ]


def test_ten_megabytes_of_rules_are_read() -> None:
    count = 10_000
    overrides = [
        {"rule": "a", "key": f"user-{i}", "limit": f"{i % 90 + 2}/minute", "reason": f"{'r' * 970}"}
        for i in range(count)
    ]
    document = {"rules": [{"id": "a", "by": "user", "limit": "1/s"}], "overrides": overrides}
    text = json.dumps(document)
    assert len(text) > 10_000_000
    assert RuleSet.parse(text, "json").overrides == count
    overrides[-1]["limit"] = "x"
    (problem,) = problems_of(json.dumps(document, indent=0), "json")
    assert problem.startswith(f"r.json:{count * 6 + 7}: overrides[{count - 1}].limit: ")


def test_files_are_refused_by_size_encoding_and_ending(tmp_path: Path) -> None:
    def problem(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(RulesError) as caught:
            RuleSet.load(path)
        return str(caught.value).removeprefix(str(tmp_path))

    assert problem("a.yaml", b"rules: []\n# \xff\n") == (
        "/a.yaml:2: byte 12 is not UTF-8; expected UTF-8"
    )
    assert problem("big.json", b" " * (32 * 2**20 + 1)).startswith("/big.json: the file has more")
    assert problem("rules.ini", b"") == (
        "/rules.ini: the file ends in '.ini'; expected .yaml, .yml, .toml or .json"
    )
    assert problem("empty.yaml", b"") == "/empty.yaml: the document is empty; expected rules"
    with pytest.raises(FileNotFoundError):
        RuleSet.load(tmp_path / "none.yaml")


def test_data_that_no_document_can_have_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for rules in (endless, deep, [10**5000], [{1: 2}], [{"id": "a", ("x",): 1}], [b"x"], [None]):
        with pytest.raises(RulesError) as caught:
            RuleSet({"rules": rules})
        assert len(str(caught.value)) < 1000


def refusal(read: Callable[[], RuleSet]) -> RulesError | None:
    try:
        read()
    except RulesError as error:
        return error
    return None


def _names() -> Any:
    fields = "rules id by limit limits endpoint endpoints method tiers tier when replaces cost"
    more = "overrides key until default allow block costs networks ip user default_tier version"
    return st.sampled_from([*fields.split(), *more.split()])


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["1/s", "5/minute", "user", "user+ip", "/a/*", "GET", "free", "unlimited"]),
    st.binary(max_size=3),
    st.datetimes(),
)
DATA = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names(), inner, max_size=4),
    max_leaves=12,
)
SOME_RULES = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from(["a", "b", "c d"]), "by": DATA | st.just("user")},
        optional={"limit": DATA | st.just("1/s"), "endpoints": DATA, "when": DATA, "tier": DATA},
    ),
    max_size=2,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(_names(), DATA, max_size=4)
    | st.fixed_dictionaries({"rules": SOME_RULES}, optional={"overrides": DATA, "block": DATA})
)
def test_any_data_is_accepted_or_refused_with_problems(data: dict[str, Any]) -> None:
    found = refusal(lambda: RuleSet(data))
    assert found is None or (found.problems and all(p.message for p in found.problems))


TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="rules:[]{}-&*<!|>?'\"#=, \n\tab1/", max_size=60),
    DATA.map(lambda data: json.dumps(data, default=str)),
)


@settings(deadline=None)
@given(TEXTS, st.sampled_from(["yaml", "toml", "json"]))
def test_any_text_is_accepted_or_refused_with_problems(text: str, format: str) -> None:
    found = refusal(lambda: RuleSet.parse(text, format))
    assert found is None or found.problems
