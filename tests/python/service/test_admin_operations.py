"""Explaining, resetting and invalidating, and reading the audit log."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
import tidegate as tg
from admin_client import AdminService, Clock, add_api_rule
from polling import eventually
from tidegate.server.admin.app import create_admin
from tidegate.server.admin.audit_routes import neutral_cell

ATTRIBUTES = {"user": "42", "tier": "free", "endpoint": "/api/posts"}


def test_a_request_is_explained_without_being_charged(service: AdminService) -> None:
    add_api_rule(service)
    service.limiter.check(**ATTRIBUTES)
    for _ in range(2):
        answer = service.ask(
            "POST", "/ratelimit/explain", {"attributes": ATTRIBUTES, "cost": 3}, role="viewer"
        )
        body = answer.json()
        assert (body["allowed"], body["rule"], body["cost"]) == (True, "api", 3)
        (rule,) = body["rules"]
        assert (rule["applies"], rule["key"]) == (True, "42")
        assert rule["limits"][0]["limit"] == "10/minute"
        assert rule["limits"][0]["remaining"] == 9
    never = service.ask("POST", "/ratelimit/explain", {"attributes": ATTRIBUTES, "cost": 11})
    assert (never.json()["allowed"], never.json()["retry_after"]) == (False, None)


def test_what_a_key_owes_is_explained(service: AdminService) -> None:
    add_api_rule(service)
    service.limiter.charge(cost=1000, **ATTRIBUTES)  # of which 100 can be owed
    answer = service.ask("POST", "/ratelimit/explain", {"attributes": ATTRIBUTES})
    (limit,) = answer.json()["rules"][0]["limits"]
    assert (limit["allowed"], limit["remaining"], limit["debt"]) == (False, 0, 100)


def test_a_reset_unlocks_a_key_and_is_in_the_audit_log(any_service: AdminService) -> None:
    add_api_rule(any_service)
    assert any_service.limiter.check(cost=10, **ATTRIBUTES)
    assert not any_service.limiter.check(**ATTRIBUTES)
    body = {"attributes": ATTRIBUTES}
    assert any_service.ask("POST", "/ratelimit/reset", body, role="viewer").status_code == 403
    answer = any_service.ask("POST", "/ratelimit/reset", body, role="operator")
    assert answer.json() == {"reset": [{"rule": "api", "key": "42"}], "quotas": {}}
    assert any_service.limiter.peek(**ATTRIBUTES).remaining == 10
    entry = any_service.audit()[-1]
    assert (entry["action"], entry["after"]) == ("counts.reset", [{"rule": "api", "key": "42"}])
    assert entry["before"] == {"attributes": ATTRIBUTES, "everything": False, "quotas": {}}


def test_a_reset_says_that_the_storage_does_not_answer(service: AdminService) -> None:
    add_api_rule(service)
    limiter = tg.Limiter(
        rules=service.rules,
        storage="redis://127.0.0.1:1?timeout=0.05&on_error=fallback&clock=client",
        clock=tg.ManualClock(10**18),
    )
    assert limiter.check(cost=5, **ATTRIBUTES).degraded
    before = limiter.peek(**ATTRIBUTES).remaining
    app = create_admin(service.url, rules=service.rules, limiter=limiter, now=service.clock)
    service.app = app
    answer = service.ask("POST", "/ratelimit/reset", {"attributes": ATTRIBUTES}, role="operator")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "what it has counted stays" in answer.json()["detail"]
    assert limiter.peek(**ATTRIBUTES).remaining > before
    assert service.audit()[-1]["action"] == "counts.reset"
    limiter.close()


def test_a_reset_keeps_what_is_shared_with_others_unless_it_is_named(service: AdminService) -> None:
    rules = [
        {"id": "user", "by": "user", "limits": "10/hour"},
        {"id": "ceiling", "by": "global", "limits": "10/hour"},
    ]
    answer = service.ask("PUT", "/ratelimit/document", {"rules": rules}, headers={"If-Match": "*"})
    assert answer.status_code == 200, answer.text

    def left() -> list[int]:
        return [outcome.remaining for outcome in service.limiter.peek(user="42").outcomes]

    assert service.limiter.check(user="42")
    body: dict[str, Any] = {"attributes": {"user": "42"}}
    answer = service.ask("POST", "/ratelimit/reset", body, role="operator")
    assert answer.json()["reset"] == [{"rule": "user", "key": "42"}]
    assert left() == [10, 9]
    body["rules"] = ["ceiling"]
    answer = service.ask("POST", "/ratelimit/reset", body, role="operator")
    assert [each["rule"] for each in answer.json()["reset"]] == ["ceiling"]
    assert left() == [10, 10]
    body["rules"] = ["gone"]
    answer = service.ask("POST", "/ratelimit/reset", body, role="operator")
    assert (answer.status_code, "there is no rule 'gone'" in answer.text) == (422, True)


@pytest.mark.parametrize("path", ["/ratelimit/explain", "/ratelimit/reset"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"attributes": {}},
        {"attributes": {"user": 1}},
        {"attributes": {"user": None}},
        {"attributes": {"cost": "1"}},
        {"attributes": {"decision": "1"}},
        {"attributes": {"self": "1"}},
        {"attributes": {"a b": "1"}},
        {"attributes": {"../x": "1"}},
        {"attributes": {"user": "1"}, "colour": 1},
    ],
)
def test_bad_attributes_are_refused(service: AdminService, path: str, body: object) -> None:
    answer = service.ask("POST", path, body)
    assert answer.status_code == 422, answer.text
    assert "expected" in answer.text or "missing" in answer.text


def test_tiers_are_looked_up_again(service: AdminService) -> None:
    add_api_rule(service)
    service.ask("PUT", "/users/42", {"tier": "free"})
    asked = {"user": "42", "endpoint": "/api/x"}
    eventually(lambda: service.limiter.peek(**asked).limit == 10)
    service.run("UPDATE user_tiers SET tier = 'premium'")
    assert service.limiter.peek(**asked).limit == 10
    answer = service.ask("POST", "/ratelimit/invalidate", {"what": "tiers", "user": "42"})
    assert answer.status_code == 204
    eventually(lambda: service.limiter.peek(**asked).limit == 100)
    assert service.audit()[-1]["action"] == "tiers.invalidate"


def test_rules_tiers_and_refusals_can_be_looked_up_again(service: AdminService) -> None:
    for what in ("rules", "tiers", "refusals"):
        assert service.ask("POST", "/ratelimit/invalidate", {"what": what}).status_code == 204
    assert service.changes == [("rules", None), ("tiers", None)]
    wrong = service.ask("POST", "/ratelimit/invalidate", {"what": "rules", "user": "42"})
    assert wrong.status_code == 422
    assert service.ask("POST", "/ratelimit/invalidate", {"what": "all"}).status_code == 422


def test_the_audit_log_is_filtered_and_read_in_pages(
    any_service: AdminService, clock: Clock
) -> None:
    add_api_rule(any_service)
    times = []
    for user in ("a", "b", "c"):
        clock.advance(hours=1)
        times.append(clock().isoformat())
        any_service.ask("PUT", f"/users/{user}", {"tier": "free"}, role="operator")

    def targets(**wanted: str) -> list[str]:
        answer = any_service.ask("GET", "/audit", role="operator", params=wanted)
        assert answer.status_code == 200, answer.text
        return [entry["target"] for entry in answer.json()["entries"]]

    assert targets() == ["user:c", "user:b", "user:a", "rule:api"]
    assert targets(action="rule.create") == ["rule:api"]
    assert targets(target="user:b") == ["user:b"]
    assert targets(since=times[1]) == ["user:c", "user:b"]
    assert targets(until=times[1]) == ["user:a", "rule:api"]
    first = any_service.ask("GET", "/audit", params={"limit": "3"}).json()
    assert targets(before=str(first["next"])) == ["rule:api"]
    assert targets(actor="nobody") == []
    assert any_service.ask("GET", "/audit", params={"since": "2026-01-01T00:00"}).status_code == 422


def test_the_audit_log_as_csv_holds_no_formulas(any_service: AdminService) -> None:
    add_api_rule(any_service)
    for user in ("=1+1", "plain"):
        assert any_service.ask("PUT", f"/users/{user}", {"tier": "free"}).status_code == 200
    any_service.run(
        "INSERT INTO audit_log (time, actor, role, action, target, remote) VALUES "
        "('2026-01-30 12:00:00+00:00', '=HYPERLINK(\"http://x\")', '+1', '-1', '@SUM(A1)', 'x')"
    )
    answer = any_service.ask("GET", "/audit.csv", role="operator")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 4
    last = rows[0]
    assert last["actor"] == '\'=HYPERLINK("http://x")'
    assert (last["role"], last["action"], last["target"]) == ("'+1", "'-1", "'@SUM(A1)")
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
    only = any_service.ask("GET", "/audit.csv", params={"target": "user:plain"})
    assert len(only.text.splitlines()) == 2


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_a_cell_that_begins_like_a_formula_gets_an_apostrophe(begin: str) -> None:
    assert neutral_cell(f"{begin}1") == f"'{begin}1"
    assert neutral_cell(f"1{begin}") == f"1{begin}"


def test_without_a_limiter_the_rest_of_the_api_works(service: AdminService) -> None:
    service.app = create_admin(service.url, now=service.clock)
    add_api_rule(service)
    assert service.ask("PUT", "/users/42", {"tier": "free"}).status_code == 200
    answer = service.ask("POST", "/ratelimit/explain", {"attributes": {"user": "1"}})
    assert answer.status_code == 503
