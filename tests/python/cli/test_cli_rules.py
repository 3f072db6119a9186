"""`tidegate rules check | explain | diff | schema | test`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate.cli.main import main
from tidegate.rules import RuleSet

RULES = """\
default_tier: free
rules:
- {id: api, by: user, endpoint: /api/**, limits: {free: 2/minute, gold: 100/minute}}
- {id: post, by: user, endpoint: /api/**, method: POST, limit: 1/minute, enabled: false}
- {id: address, by: ip, limit: 1000/minute}
costs:
- {method: DELETE, cost: 2}
overrides:
- {rule: api, key: vip, limit: 50/minute}
block:
- {user: mallory, id: abuse}
"""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str, name: str = "rules.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    code = main(["rules", *arguments])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_check_accepts_and_counts(file: Any, capsys: Any) -> None:
    path = file(RULES)
    assert run(capsys, "check", path) == (
        0,
        [
            f"{path}: accepted: 3 rules, 1 override, 1 cost, 1 entry of a list; no warnings",
        ],
        "",
    )


def test_check_prints_all_problems_with_their_places(file: Any, capsys: Any) -> None:
    rules = "".join(f"- {{id: r{i}, by: user, limit: x}}\n" for i in range(30))
    path = file("rules:\n" + rules)
    code, out, _ = run(capsys, "check", path)
    assert code == 1
    assert len(out) == 31
    assert out[0].startswith(f"{path}:2: rules[0].limit: cannot read the limit 'x'")
    assert out[-1] == f"{path}: not accepted: 30 problems"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "rules:\n- {id: a, by: user, limit: 1/s}\n- {id: b, by: user+ip, limit: 9/s}\n",
            "1: rules: warning: nothing counts requests without user, so they are not limited; "
            "expected a rule by ip or global, or a default",
        ),
        (
            "rules:\n- {id: a, by: ip, limit: 1/s, shadow: true}\n",
            "1: rules: warning: nothing counts requests without a rule in force, so they are not "
            "limited; expected a rule by ip or global, or a default",
        ),
        (
            "rules:\n- id: a\n  by: ip\n  limits: {free: 1/s}\n",
            "4: rules[0].limits: warning: the rule 'a' is not for requests without a tier, or "
            "with an unknown one; expected a default_tier, or limits of the tier '*'",
        ),
        (
            "rules:\n- id: a\n  by: ip+endpoint\n  limit: 1/s\n",
            "3: rules[0].by: warning: the rule 'a' counts every path that a client makes up for "
            "itself; expected endpoints, with {name} where parts of a path vary",
        ),
        (
            "rules:\n- {id: a, by: ip, limit: 1/s}\noverrides:\n- rule: a\n  key: '::1'\n"
            "  limit: 2/s\n  until: 2020-01-01\n",
            "7: overrides[0].until: warning: the override ended at 2020-01-01T00:00:00+00:00, so "
            "it changes nothing",
        ),
        ("rules: []\n", "1: warning: no rule is enabled, so nothing is limited"),
    ],
)
def test_check_warns_and_fails_only_if_it_is_strict(
    text: str, warning: str, file: Any, capsys: Any
) -> None:
    path = file(text)
    code, out, _ = run(capsys, "check", path)
    assert (code, out[0]) == (0, f"{path}:{warning}")
    assert out[1].endswith("; 1 warning")
    assert run(capsys, "check", path, "--strict")[0] == 1


def test_what_cannot_be_read_is_said_in_one_line(file: Any, tmp_path: Path, capsys: Any) -> None:
    none = str(tmp_path / "none.yaml")
    for arguments in (
        ["check", none],
        ["explain", none],
        ["diff", file(RULES), none],
        ["test", file(RULES), none],
        ["import", none],
    ):
        assert run(capsys, *arguments) == (2, [], f"tidegate: {none}: No such file or directory\n")


def test_explain_says_why_each_rule_applies_or_not(file: Any, capsys: Any) -> None:
    path = file(RULES)
    arguments = ["--user", "7", "--endpoint", "/api/x", "--ip", "::1", "--attribute", "tier=gold"]
    code, out, _ = run(capsys, "explain", path, *arguments)
    assert code == 0
    assert out == [
        "+ api applies",
        "    counts by user, key '7'",
        "    100/minute (token-bucket)",
        "+ address applies",
        "    counts by ip, key '::/64'",
        "    1000/minute (token-bucket)",
        "",
        "The request passes: 100 of 100 left by 'api', which has the least room.",
        "It costs 1 unit, and its priority is normal.",
        "No --storage was given, so these are the states of a client that never came.",
    ]
    _, out, _ = run(capsys, "explain", path, "--user", "vip", "--endpoint", "/y")
    assert out[:2] == [
        "- api does not apply: the endpoint is '/y', not /api/**",
        "- address does not apply: the rule counts by ip, which is not given",
    ]
    assert out[3] == "The request passes: no rule applies to it."
    _, out, _ = run(capsys, "explain", path, "--user", "mallory")
    assert out[3] == "'abuse' refuses it, whatever has been counted."
    assert out[4] == "It costs nothing, since it is on a list."


def test_explain_says_what_a_request_costs_and_its_priority(file: Any, capsys: Any) -> None:
    rules = RULES + "- {user: eve}\n"
    path = file(rules.replace("cost: 2}", "cost: 2, priority: background}"))
    request = ["--user", "7", "--endpoint", "/api/x", "--method", "DELETE"]
    _, out, _ = run(capsys, "explain", path, *request)
    assert "It costs 2 units, and its priority is background." in out
    _, out, _ = run(capsys, "explain", path, *request, "--cost", "3")
    assert "It costs 6 units (3 x 2), and its priority is background." in out
    _, out, _ = run(capsys, "explain", path, *request, "--attribute", "priority=critical")
    assert "It costs 2 units, and its priority is critical." in out


def test_explain_shows_what_the_service_has_counted(file: Any, tmp_path: Path, capsys: Any) -> None:
    path = file(RULES.replace("minute", "day"))  # none comes back meanwhile
    storage = f"shm://{tmp_path}/counts"
    limiter = tg.Limiter(rules=RuleSet.load(path), storage=storage)
    for _ in range(2):
        limiter.check(user="7", endpoint="/api/x", ip="::1")
    arguments = ["--user", "7", "--endpoint", "/api/x", "--ip", "::1", "--storage", storage]
    code, out, _ = run(capsys, "explain", path, *arguments)
    assert code == 0
    assert out[2].startswith("    2/day (token-bucket): 0 of 2 left, refuses for ")
    assert out[5] == "    1000/day (token-bucket): 998 of 1000 left"
    assert out[7].startswith("The request is refused by 'api' for ")
    assert run(capsys, "explain", path, *arguments)[1][5] == out[5], "it charges nothing"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attribute", "user"], "--attribute is 'user'; expected NAME=VALUE"),
        (["--attribute", "a=1", "--attribute", "a=2"], "--attribute has 'a' twice"),
        (["--user", "1", "--attribute", "user=2"], "--user was given with --attribute user="),
        (["--storage", "memory://"], "no other process can see"),
        (["--storage", "shm://no-such-one"], "there is no shared memory 'no-such-one'"),
        (["--cost", "0"], "cost"),
        (["--attribute", "self=1"], "the attribute is named 'self'; expected a name such as"),
        (["--attribute", "a b=1"], "the attribute is named 'a b'; expected a name such as"),
    ],
)
def test_explain_refuses_what_it_does_not_understand(
    arguments: list[str], message: str, file: Any, capsys: Any
) -> None:
    code, _, err = run(capsys, "explain", file(RULES), *arguments)
    assert code == 2
    assert message in err


def test_diff_names_what_is_added_removed_and_changed(file: Any, capsys: Any) -> None:
    new = (
        RULES.replace("2/minute", "3/minute")
        .replace("by: ip, limit: 1000", "by: ip+method, limit: 1000")
        .replace("id: post", "id: posts")
        .replace("cost: 2", "cost: 3")
        .replace("limit: 50/minute", "limit: 60/minute, reason: contract")
        .replace("- {user: mallory, id: abuse}", "- {user: eve}")
    )
    code, out, _ = run(capsys, "diff", file(RULES), file(new, "new.yaml"))
    assert code == 0
    assert out == [
        "- rule post: 1/minute by user",
        "~ rule api",
        "    limits.free: 2/minute -> 3/minute",
        "+ rule posts: 1/minute by user",
        "~ rule address",
        "    by: ip -> ip+method",
        "    usage starts anew: 1000/minute",
        "- cost: methods DELETE, cost 2",
        "+ cost: methods DELETE, cost 3",
        "~ override of api for vip",
        "    limits: 50/minute -> 60/minute",
        "    reason:  -> contract",
        "- blocked: id abuse, user mallory",
        "+ blocked: user eve",
    ]
    assert run(capsys, "diff", file(RULES), file(RULES, "same.yaml"))[1] == [
        "The rules say the same."
    ]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"limit": "7/minute"}, True),
        ({"limit": "7/minute burst 9"}, True),
        ({"endpoint": "/x"}, True),
        ({"shadow": True}, True),
        ({"limit": "5/hour"}, False),
        ({"algorithm": "fixed-window"}, False),
        ({"by": "ip"}, False),
        ({"counter": "other"}, False),
        ({"id": "renamed", "counter": "a"}, True),
    ],
    ids=str,
)
def test_diff_and_the_limiter_agree_on_whose_usage_starts_anew(
    change: dict[str, Any], kept: bool, file: Any, capsys: Any
) -> None:
    rule = {"id": "a", "by": "user", "limit": "5/minute"}
    old, new = {"rules": [rule]}, {"rules": [{**rule, **change}]}
    limiter = tg.Limiter(rules=RuleSet(old), clock=tg.ManualClock(0))
    request = {"user": "1", "ip": "1", "endpoint": "/x"}
    for _ in range(3):
        limiter.check(**request)
    limiter.use(RuleSet(new))
    decision = limiter.peek(**request)
    assert (decision.remaining < decision.limit) == kept
    paths = file(json.dumps(old), "old.json"), file(json.dumps(new), "new.json")
    out = run(capsys, "diff", *paths)[1]
    if "id" not in change:
        assert any("usage starts anew" in line for line in out) != kept


def test_schema_is_that_of_documents(capsys: Any) -> None:
    code, out, _ = run(capsys, "schema")
    assert code == 0
    assert json.loads("\n".join(out)) == RuleSet.json_schema()


CASES = """\
cases:
- name: two a minute
  requests:
  - {user: 1, endpoint: /api/x, times: 2, expect: allowed, remaining: 0}
  - {user: 1, endpoint: /api/x, expect: refused, rule: api, limit: 2, retry_after: 30}
  - {user: 1, endpoint: /api/x, after: 29.9, expect: refused, retry_after: 0.1}
  - {user: 1, endpoint: /api/x, after: 0.1, expect: allowed}
  - {user: mallory, expect: refused, rule: abuse, retry_after: .inf}
- requests:
  - {user: 1, endpoint: /api/x, method: DELETE, expect: allowed, remaining: 0}
  - {user: 2, endpoint: /api/x, cost: 3, expect: refused}
  - {endpoint: /other, rule: null}
"""


def test_cases_that_hold(file: Any, capsys: Any) -> None:
    arguments = [file(RULES), file(CASES, "cases.yaml")]
    assert run(capsys, "test", *arguments) == (0, ["9 requests of 2 cases: all pass"], "")


def test_cases_with_slips_are_not_run(file: Any, capsys: Any) -> None:
    cases = """\
cases:
- requests:
  - {usr: 1, endpoint: /api/x, expect: allowed}
  - {user: 1, tier: Free, expect: allowed}
  - {user: 1, tier: unheard-of, region: eu, remainig: 1, expect: allowed}
"""
    path = file(cases, "cases.yaml")
    code, out, err = run(capsys, "test", file(RULES), path)
    assert (code, out) == (2, [])
    assert [line.partition("cases[0].")[2] for line in err.splitlines()] == [
        "requests[0].usr: no rule looks at 'usr'; did you mean 'user'?",
        "requests[1].tier: no rule knows 'Free'; did you mean 'free'?",
        "requests[2].remainig: no rule looks at 'remainig'; did you mean 'remaining'?",
    ]


def test_cases_that_do_not_hold_print_what_was_expected_and_what_came(
    file: Any, capsys: Any
) -> None:
    wrong = (
        CASES.replace("times: 2, expect: allowed, remaining: 0", "times: 3, expect: allowed")
        .replace("limit: 2, retry_after: 30", "limit: 5, retry_after: 31")
        .replace("rule: null", "rule: api, expect: refused")
    )
    cases = file(wrong, "cases.yaml")
    code, out, _ = run(capsys, "test", file(RULES), cases)
    assert code == 1
    assert out == [
        f"{cases}:4: cases[0].requests[0]: two a minute, time 3 of 3: expected allowed, got "
        "refused by 'api'",
        f"{cases}:5: cases[0].requests[1]: two a minute: expected limit 5, got 2; expected "
        "retry_after 31, got 30.0",
        f"{cases}:12: cases[1].requests[2]: case 1: expected refused, got allowed, no rule "
        "applies; expected rule 'api', got None",
        "10 requests of 2 cases: 3 not as expected",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the document is None; expected a list of cases"),
        ("cases: []\n", ":1: there is no request; expected cases with requests"),
        ("cases:\n- 3\n", ":2: cases[0]: is 3; expected a mapping with requests"),
        ("case: []\ncases: []\n", ":1: case: is not a field; expected cases"),
        ("cases:\n- requests: []\n  nam: x\n", ":3: cases[0].nam: is not a field; expected name"),
        (
            "cases:\n- requests: []\n  start: 5\n",
            ":3: cases[0].start: is 5; expected a time with its zone",
        ),
        (
            "cases:\n- requests:\n  - {user: 1}\n",
            ":3: cases[0].requests[0]: expects nothing; expected one of expect, rule, limit",
        ),
        (
            "cases:\n- requests:\n  - {expect: denied}\n",
            ":3: cases[0].requests[0].expect: is 'denied'; expected allowed or refused",
        ),
        (
            "cases:\n- requests:\n  - {expect: allowed, times: 0}\n",
            ".times: is 0; expected a whole number from 1 to 1000000",
        ),
        (
            "cases:\n- requests:\n  - {expect: allowed, after: .inf}\n",
            ".after: is inf; expected a number of seconds from 0 up",
        ),
        (
            "cases:\n- requests:\n  - {expect: allowed, user: [1]}\n",
            ".user: is [1]; expected a text",
        ),
        (
            "cases:\n- requests:\n  - {expect: allowed, decision: x}\n",
            ".decision: is no attribute; expected a name such as user",
        ),
    ],
)
def test_cases_that_cannot_be_read(text: str, message: str, file: Any, capsys: Any) -> None:
    code, _, err = run(capsys, "test", file(RULES), file(text, "cases.yaml"))
    assert code == 2
    assert message in err


def test_a_case_begins_at_its_own_time(file: Any, capsys: Any) -> None:
    rules = RULES.replace("limit: 50/minute", "limit: 50/minute, until: 2030-01-02")
    request = "{user: vip, endpoint: /api/x, limit: "
    cases = (
        f"cases:\n- start: 2030-01-01T00:00:00Z\n  requests:\n  - {request}50}}\n"
        f"  - {request}2, after: 86400}}\n"
    )
    assert run(capsys, "test", file(rules), file(cases, "cases.yaml"))[0] == 0


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
REQUEST = st.dictionaries(
    st.sampled_from(
        ["user", "expect", "rule", "limit", "remaining", "times", "cost", "after", "self", "x-y"]
    ),
    ANY | st.sampled_from(["allowed", "refused", 1, 5]),
    max_size=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["name", "start", "requests"]), ANY | st.lists(REQUEST)))
def test_any_cases_are_run_or_refused(tmp_path: Path, case: Any) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "cases.json").write_text(json.dumps({"cases": [case]}))
    arguments = ["test", str(tmp_path / "rules.yaml"), str(tmp_path / "cases.json")]
    assert main(["rules", *arguments]) in (0, 1, 2)
