"""Rules over the admin API: lists, changes, refusals, history and rollback."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from admin_client import API_RULE, AdminService, add_api_rule
from polling import run_threads
from tidegate.rules import rule_set
from tidegate.rules.sql import SqlRules, stored_rules
from tidegate.rules.sql import read as read_module
from tidegate.server.admin import database, rule_edits

RULES = "/ratelimit/rules"
DOCUMENT = "/ratelimit/document"


def _rule(service: AdminService, id: str) -> dict[str, Any]:
    answer = service.ask("GET", RULES, params={"id": id})
    (rule,) = answer.json()["rules"]
    assert isinstance(rule, dict)
    return rule


def test_the_short_form_sets_the_limit_of_a_tier_at_an_endpoint(any_service: AdminService) -> None:
    body = {"tier": "premium", "rules": [{"endpoint": "/api/*", "limit": 1000, "window": 60}]}
    answer = any_service.ask("POST", RULES, body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["created"] == ["endpoint:/api/*"]
    decision = any_service.limiter.check(user="1", tier="premium", endpoint="/api/posts")
    assert (decision.limit, decision.remaining) == (1000, 999)
    free = {"tier": "free", "rules": [{"endpoint": "/api/*", "limit": 10, "window": 60}]}
    assert any_service.ask("POST", RULES, free).json()["updated"] == ["endpoint:/api/*"]
    assert any_service.limiter.check(user="1", tier="free", endpoint="/api/posts").limit == 10
    assert any_service.limiter.check(user="1", tier="premium", endpoint="/api/posts").limit == 1000
    listed = any_service.ask("GET", f"{RULES}/free").json()["rules"]
    assert [(rule["id"], rule["limits"]) for rule in listed] == [
        ("endpoint:/api/*", ["10/60 seconds"])
    ]
    gone = any_service.ask("DELETE", f"{RULES}/endpoint:%2Fapi%2F*")
    assert (gone.status_code, gone.json()["deleted"]) == (200, ["endpoint:/api/*"])
    assert any_service.limiter.check(user="1", endpoint="/api/posts").rule is None


def test_a_rule_is_returned_as_it_was_given(any_service: AdminService) -> None:
    full = {
        "id": "all",
        "by": "user+endpoint",
        "endpoints": ["/a/*", "/b"],
        "methods": ["GET", "POST"],
        "tiers": ["free", "premium"],
        "networks": ["10.0.0.0/8"],
        "when": {"region": "eu"},
        "limits": {"free": ["10/minute", "100/hour"], "*": "unlimited"},
        "algorithm": "sliding-window",
        "shadow": True,
        "counts": "requests",
        "counter": "shared",
        "headers": False,
        "carry_over": "reset",
        "replaces": ["api"],
        "enabled": False,
        "description": "for a test",
    }
    add_api_rule(any_service)
    assert any_service.ask("POST", RULES, {"rules": [full]}).status_code == 201
    found = _rule(any_service, "all")
    del found["etag"]
    limits = {"free": ["10/minute", "100/hour"], "*": ["unlimited"]}
    assert found == {**full, "limits": limits}
    # Sending back what was read changes nothing.
    etag = _rule(any_service, "all")["etag"]
    answer = any_service.ask("PUT", f"{RULES}/all", found, headers={"If-Match": f'"{etag}"'})
    assert (answer.status_code, answer.json()["changes"]) == (200, [])


def test_a_reserve_is_returned_as_it_was_given(service: AdminService) -> None:
    add_api_rule(service, reserve={"normal": "10%", "background": "30%"})
    assert _rule(service, "api")["reserve"] == {"normal": "10%", "background": "30%"}


def test_an_administrator_does_not_overwrite_the_change_of_another(
    any_service: AdminService,
) -> None:
    add_api_rule(any_service)
    seen = _rule(any_service, "api")["etag"]
    raised = {**API_RULE, "limits": {"free": "20/minute"}}
    first = any_service.ask("PUT", f"{RULES}/api", raised, headers={"If-Match": f'"{seen}"'})
    assert first.status_code == 200
    second = any_service.ask("PUT", f"{RULES}/api", API_RULE, headers={"If-Match": f'"{seen}"'})
    assert second.status_code == 412
    assert second.headers["ETag"] == first.headers["ETag"] != f'"{seen}"'
    assert any_service.ask("PUT", f"{RULES}/api", API_RULE).status_code == 428
    assert _rule(any_service, "api")["limits"] == {"free": ["20/minute"]}
    late = any_service.ask("DELETE", f"{RULES}/api", headers={"If-Match": f'"{seen}"'})
    assert late.status_code == 412
    again = {"If-Match": _rule(any_service, "api")["etag"]}  # as the JSON has it, not quoted
    assert any_service.ask("PUT", f"{RULES}/api", API_RULE, headers=again).status_code == 200


def test_one_of_two_concurrent_changes_is_refused(any_service: AdminService) -> None:
    add_api_rule(any_service)
    seen = {"If-Match": f'"{_rule(any_service, "api")["etag"]}"'}
    statuses = []

    def change(count: int) -> None:
        body = {**API_RULE, "limits": f"{count}/minute"}
        answer = any_service.ask("PUT", f"{RULES}/api", body, headers=seen)
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=change, args=(20 + i,)) for i in range(4)]
    run_threads(threads)
    assert sorted(statuses) == [200, 412, 412, 412]


def test_a_change_that_another_overtakes_is_proposed_again(
    any_service: AdminService, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_api_rule(any_service)
    other = {"rules": [{"id": "other", "by": "ip", "limits": "1/minute"}]}
    assert any_service.ask("POST", RULES, other).is_success
    overtaken: list[str] = []
    begin = database.begin_change

    def begin_later(connection: Any, *, of_rules: bool) -> None:
        if of_rules and overtaken:
            any_service.run(overtaken.pop())
        begin(connection, of_rules=of_rules)

    monkeypatch.setattr(database, "begin_change", begin_later)
    seen = {"If-Match": f'"{_rule(any_service, "api")["etag"]}"'}
    overtaken.append("UPDATE rate_limit_rules SET limits = '5/minute' WHERE rule_id = 'other'")
    done = any_service.ask("PUT", f"{RULES}/api", {**API_RULE, "limits": "9/minute"}, headers=seen)
    assert (done.status_code, overtaken) == (200, [])
    assert _rule(any_service, "other")["limits"] == ["5/minute"]
    assert any_service.limiter.peek(ip="192.0.2.1").limit == 5
    assert any_service.ask("GET", RULES).json()["etag"] == done.json()["etag"]
    seen = {"If-Match": f'"{_rule(any_service, "api")["etag"]}"'}
    overtaken.append("UPDATE rate_limit_rules SET limits = '8/minute' WHERE rule_id = 'api'")
    late = any_service.ask("PUT", f"{RULES}/api", {**API_RULE, "limits": "7/minute"}, headers=seen)
    assert (late.status_code, overtaken) == (412, [])
    assert _rule(any_service, "api")["limits"] == ["8/minute"]


def test_a_rule_keeps_its_place_when_it_changes(service: AdminService) -> None:
    add_api_rule(service)
    add_api_rule(service, id="b", endpoints=["/b"])
    three = {"free": ["1/second", "10/minute"], "premium": "100/minute"}
    answer = service.ask(
        "PUT", f"{RULES}/api", {**API_RULE, "limits": three}, headers={"If-Match": "*"}
    )
    assert answer.status_code == 200
    listed = service.ask("GET", RULES).json()["rules"]
    assert [rule["id"] for rule in listed] == ["api", "b"]


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        ({"limits": "ten"}, "rules[0].limits", "expected"),
        ({"limits": {"free": "10/fortnight"}}, "rules[0].limits.free", "expected"),
        ({"colour": "red"}, "rules[0].colour", "is not a field"),
        ({"by": 5}, "rules[0].by", "expected"),
        ({"networks": ["10.0.0.0/99"]}, "rules[0].networks", ""),
        ({"replaces": ["nobody"]}, "rules[0].replaces", ""),
        ({"limits": {"x" * 51: "1/minute"}}, "tier", "at most 50"),
        ({"endpoints": ["/a/**/b"]}, "rules[0].endpoints", ""),
    ],
)
def test_a_rule_that_is_not_accepted_is_named_and_changes_nothing(
    service: AdminService, change: dict[str, Any], where: str, message: str
) -> None:
    before = service.rules.current.digest
    answer = service.ask("POST", RULES, {"rules": [{**API_RULE, **change}]})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    (problem, *_) = answer.json()["problems"]
    assert problem["where"].startswith(where)
    assert message in problem["message"]
    assert service.ask("GET", RULES).json()["rules"] == []
    assert service.rows("SELECT count(*) FROM rule_versions") == [(0,)]
    assert service.audit() == []
    service.rules.refresh()
    assert service.rules.current.digest == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"rules": [{"endpoint": "/a", "limit": 1}]}, 422),
        ({"rules": [{"endpoint": "/a", "limit": "1", "window": 60}]}, 422),
        ({"rules": [{"endpoint": "/a", "limit": -1, "window": 60}]}, 422),
        ({"rules": [{"endpoint": "/a", "limit": 2**31, "window": 60}]}, 422),
        ({"rules": [{"endpoint": "/a", "limit": 1, "window": 0}]}, 422),
        ({"rules": [{"endpoint": "/a", "limit": 1, "window": 60, "colour": 1}]}, 422),
        ({"rules": [{"id": "../../etc/passwd", "limits": "1/minute"}]}, 422),
        ({"rules": [{"id": ["a"], "limits": "1/minute"}]}, 422),
        ({"rules": [{"limits": "1/minute"}]}, 422),
        ({"rules": []}, 422),
        ({"rules": [], "colour": 1}, 422),
        ({"tier": "", "rules": [{"id": "a", "limits": "1/minute"}]}, 422),
        ({"tier": "a", "rules": [{"id": "a", "limits": {"free": "1/minute"}}]}, 422),
        ({"rules": [{"id": "a", "limits": "1/s"}, {"id": "a", "limits": "1/s"}]}, 409),
        ({"rules": "all"}, 422),
        ([], 422),
        ("text", 422),
    ],
)
def test_bad_new_rules_are_refused_with_a_reason(
    service: AdminService, body: Any, status: int
) -> None:
    answer = service.ask("POST", RULES, body)
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]
    assert service.rows("SELECT count(*) FROM rate_limit_rules") == [(0,)]


def test_a_rule_is_not_added_twice_nor_changed_before_it_exists(service: AdminService) -> None:
    add_api_rule(service)
    assert service.ask("POST", RULES, {"rules": [API_RULE]}).status_code == 409
    missing = service.ask("PUT", f"{RULES}/other", API_RULE, headers={"If-Match": "*"})
    assert missing.status_code == 422, "the id in the body is another"
    body = {key: value for key, value in API_RULE.items() if key != "id"}
    assert service.ask("PUT", f"{RULES}/other", body, headers={"If-Match": "*"}).status_code == 404
    assert service.ask("DELETE", f"{RULES}/other").status_code == 404
    assert service.ask("GET", f"{RULES}/gold").status_code == 404


def test_a_rule_that_overrides_need_is_not_deleted(service: AdminService) -> None:
    add_api_rule(service)
    body = {"rule": "api", "key": "7", "limits": "5/minute"}
    assert service.ask("POST", "/ratelimit/overrides", body).status_code == 201
    answer = service.ask("DELETE", f"{RULES}/api")
    assert answer.status_code == 422
    assert "rate_limit_overrides row 1" in answer.text


def test_a_document_is_checked_without_being_saved(service: AdminService) -> None:
    text = "rules:\n  - id: api\n    by: user\n    limits: ten\n"
    answer = service.ask(
        "POST",
        f"{DOCUMENT}/validate",
        role="viewer",
        content=text,
        headers={"Content-Type": "application/yaml"},
    )
    body = answer.json()
    assert (answer.status_code, body["valid"]) == (200, False)
    (problem,) = body["problems"]
    assert (problem["line"], problem["where"]) == (4, "rules[0].limits")
    assert "expected" in problem["message"]
    right = {"rules": [API_RULE], "default_tier": "free"}
    good = service.ask("POST", f"{DOCUMENT}/validate", right, role="viewer")
    assert good.json() == {"valid": True, "rules": 1, "problems": [], "advice": []}
    slip = {**right, "block": [{"usr": "mallory"}]}
    (likely,) = service.ask("POST", f"{DOCUMENT}/validate", slip, role="viewer").json()["advice"]
    assert likely["where"] == "block[0].usr"
    assert "did you mean 'user'?" in likely["message"]
    assert service.rows("SELECT count(*) FROM rate_limit_rules") == [(0,)]


def test_a_whole_document_is_compared_replaced_and_rolled_back(any_service: AdminService) -> None:
    add_api_rule(any_service)
    override = {"rule": "api", "key": "7", "limits": "5/minute"}
    assert any_service.ask("POST", "/ratelimit/overrides", override).status_code == 201
    new = {
        "tiers": ["free", "premium"],
        "default_tier": "free",
        "algorithm": "sliding-window",
        "rules": [{**API_RULE, "limits": {"free": "20/minute", "premium": "100/minute"}}],
        "default": {"limits": "1000/minute", "by": "ip", "reserve": "20%"},
        "costs": [{"endpoints": ["/api/search"], "methods": ["GET"], "cost": 5}],
        "allow": [{"user": "root", "reason": "ours"}],
        "block": [{"ip": "203.0.113.0/24", "id": "noisy"}],
    }
    compared = any_service.ask("POST", f"{DOCUMENT}/diff", new, role="viewer").json()
    assert "~ default_tier: none -> free" in compared["changes"]
    assert "    limits.free: 10/minute -> 20/minute" in compared["changes"]
    # The override stays; its usage starts anew with the algorithm.
    overrides = [line for line in compared["changes"] if "override" in line]
    assert overrides == ["~ override of api for 7"]
    anew = [*overrides, "    usage starts anew: 5/minute"]
    assert anew[1] in compared["changes"]
    before = any_service.ask("GET", DOCUMENT)
    answer = any_service.ask("PUT", DOCUMENT, new, headers={"If-Match": before.headers["ETag"]})
    assert answer.status_code == 200, answer.text
    # A change does not read the overrides that stay, so its answer does not name them.
    made = answer.json()["changes"]
    assert made == [line for line in compared["changes"] if line not in anew]
    limiter = any_service.limiter
    assert limiter.peek(user="1", endpoint="/api/x").limit == 20
    assert limiter.peek(user="7", endpoint="/api/x").limit == 5, "overrides stay"
    assert limiter.peek(user="root", endpoint="/api/x").outcomes == ()
    assert not limiter.peek(user="1", ip="203.0.113.9").allowed
    read = any_service.ask("GET", DOCUMENT).json()
    assert any_service.ask("POST", f"{DOCUMENT}/diff", read).json()["same"] is True
    stale = any_service.ask("PUT", DOCUMENT, new, headers={"If-Match": before.headers["ETag"]})
    assert stale.status_code == 412
    assert any_service.ask("PUT", DOCUMENT, new).status_code == 428

    versions = any_service.ask("GET", "/ratelimit/versions").json()
    assert [version["in_force"] for version in versions] == [True, False, False]
    first = versions[1]["id"]
    shown = any_service.ask("GET", f"/ratelimit/versions/{first}/diff").json()["changes"]
    back = any_service.ask("POST", f"/ratelimit/versions/{first}/rollback")
    assert back.status_code == 200, back.text
    assert back.json()["changes"] == [line for line in shown if line not in anew]
    assert any_service.ask("GET", DOCUMENT).json() == before.json()
    assert limiter.peek(user="1", tier="free", endpoint="/api/x").limit == 10
    assert limiter.peek(user="7", tier="free", endpoint="/api/x").limit == 5
    newest = any_service.ask("GET", "/ratelimit/versions", params={"limit": 1}).json()
    assert newest[0]["comment"] == f"rollback to version {first}"
    assert any_service.ask("POST", "/ratelimit/versions/999/rollback").status_code == 404


def test_a_document_with_overrides_replaces_them(service: AdminService) -> None:
    document = {
        "rules": [API_RULE],
        "overrides": [{"rule": "api", "key": "7", "limits": ["5/minute", "50/hour"]}],
    }
    answer = service.ask("PUT", DOCUMENT, document, headers={"If-Match": "*"})
    assert answer.status_code == 200, answer.text
    assert [o["limits"] for o in service.ask("GET", "/ratelimit/overrides").json()] == [
        "5/minute; 50/hour"
    ]
    assert service.limiter.peek(user="7", tier="free", endpoint="/api/x").limit == 5


def test_changes_made_by_sql_become_their_own_version(any_service: AdminService) -> None:
    add_api_rule(any_service)
    any_service.run("UPDATE rate_limit_rules SET limits = '11/minute' WHERE tier = 'free'")
    add_api_rule(any_service, id="b", endpoints=["/b"])
    versions = any_service.ask("GET", "/ratelimit/versions").json()
    assert [version["actor"] for version in versions][1] == "outside of the service"
    found = any_service.ask("GET", f"/ratelimit/versions/{versions[1]['id']}").json()
    assert found["document"]["rules"][0]["limits"]["free"] == ["11/minute"]


def test_broken_tables_are_named_and_can_be_replaced(service: AdminService) -> None:
    add_api_rule(service)
    service.run("UPDATE rate_limit_rules SET limits = 'ten'")
    answer = service.ask("GET", RULES)
    assert answer.status_code == 422
    assert "rate_limit_rules row 1" in answer.text
    assert service.ask("POST", RULES, {"rules": [{**API_RULE, "id": "b"}]}).status_code == 422
    user = service.ask("PUT", "/users/42", {"tier": "premium"})
    assert user.status_code == 200, "a user can be helped meanwhile"
    document = {"rules": [API_RULE]}
    assert service.ask("PUT", DOCUMENT, document, headers={"If-Match": "*"}).status_code == 200
    assert service.ask("GET", RULES).status_code == 200


def test_the_audit_log_has_each_change_with_the_state_before(any_service: AdminService) -> None:
    add_api_rule(any_service)
    changed = {**API_RULE, "limits": "5/minute"}
    headers = {"If-Match": "*"}
    any_service.ask("PUT", f"{RULES}/api", changed, headers=headers, params={"comment": "less"})
    any_service.ask("DELETE", f"{RULES}/api")
    created, updated, deleted = any_service.audit()
    assert [entry["action"] for entry in (created, updated, deleted)] == [
        "rule.create",
        "rule.update",
        "rule.delete",
    ]
    assert created["before"] is None
    assert updated["before"] == created["after"]
    assert updated["after"]["limits"] == ["5/minute"]
    assert deleted["before"] == updated["after"]
    assert deleted["after"] is None
    assert {entry["target"] for entry in (created, updated, deleted)} == {"rule:api"}
    assert created["remote"] == "127.0.0.1"
    assert created["actor"].endswith("admin of the tests")
    assert created["role"] == "admin"
    comments = [v["comment"] for v in any_service.ask("GET", "/ratelimit/versions").json()]
    assert comments[1] == "less"


def test_a_change_that_cannot_be_written_to_the_audit_log_is_not_made(
    service: AdminService,
) -> None:
    add_api_rule(service)
    service.run(
        "CREATE TRIGGER full BEFORE INSERT ON audit_log BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    answer = service.ask("DELETE", f"{RULES}/api")
    assert answer.status_code in (409, 503)
    service.run("DROP TRIGGER full")
    assert _rule(service, "api")


def test_the_process_of_the_api_sees_changes_at_once(service: AdminService) -> None:
    add_api_rule(service)
    assert service.changes == [("rules", None)]
    assert service.limiter.peek(user="1", tier="free", endpoint="/api/x").limit == 10


def test_a_change_is_read_validated_and_compiled_once(
    service: AdminService, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_api_rule(service)
    rule = {"by": "user", "limits": "100/minute"}
    assert service.ask("POST", "/ratelimit/rules", {"rules": [{"id": "all", **rule}]}).is_success
    given = {"rule": "all", "key": "vip", "limits": "7/minute"}
    assert service.ask("POST", "/ratelimit/overrides", given).is_success
    # The first change validates what a refresh has read.
    first = service.ask("PUT", "/ratelimit/rules/all", rule, headers={"If-Match": "*"})
    assert first.is_success, first.text
    calls: list[str] = []

    def count(name: str, module: Any) -> None:
        original = getattr(module, name)

        def counted(document: Any, *rest: Any) -> Any:
            # The rule that is written is read back alone.
            if name != "validate" or len(document.data["rules"]) == 2:
                calls.append(name)
            return original(document, *rest)

        monkeypatch.setattr(module, name, counted)

    for module in (rule_edits, rule_set, stored_rules):
        count("validate", module)
        count("compile_rules", module)
    read = read_module.read_document

    def counted_read(connection: Any, source: str, of: Any = read_module.EVERYBODY) -> Any:
        calls.append("all" if of is read_module.EVERYBODY else "read")
        return read(connection, source, of)

    monkeypatch.setattr(read_module, "read_document", counted_read)
    for limits in ("200/minute", "300/minute"):
        calls.clear()
        answer = service.ask(
            "PUT", "/ratelimit/rules/all", {**rule, "limits": limits}, headers={"If-Match": "*"}
        )
        assert answer.is_success, answer.text
        assert sorted(calls) == ["compile_rules", "read", "validate"]
    assert service.limiter.peek(user="vip").limit == 7
    assert service.limiter.peek(user="other").limit == 300
    etag = answer.headers["ETag"].strip('"')
    assert _rule(service, "all")["etag"] == etag
    digest = service.rules.current.digest
    assert SqlRules(service.url).current.digest == digest, "other processes read the same"


def test_a_changed_rule_keeps_overrides_that_begin_or_end(service: AdminService) -> None:
    add_api_rule(service)
    rule = {"by": "user", "limits": "100/minute"}
    assert service.ask("POST", RULES, {"rules": [{"id": "all", **rule}]}).is_success
    given = {"rule": "all", "key": "vip"}
    # By the clock of the limiter it is 2001-09-09.
    for times in (
        {"limits": "7/minute"},
        {"limits": "9/minute", "from": "2001-09-01", "until": "2099-01-01"},
        {"limits": "8/minute", "from": "2098-01-01", "until": "2098-02-01"},
    ):
        added = service.ask("POST", "/ratelimit/overrides", {**given, **times})
        assert added.is_success, added.text
    for limits in ("200/minute", "300/minute"):
        answer = service.ask(
            "PUT", f"{RULES}/all", {**rule, "limits": limits}, headers={"If-Match": "*"}
        )
        assert answer.is_success, answer.text
        assert service.limiter.peek(user="vip").limit == 9
    assert service.limiter.peek(user="other").limit == 300
