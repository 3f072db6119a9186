"""Tiers, limits of single users, overrides and requests for other tiers."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from admin_client import AdminService, add_api_rule
from polling import eventually

OVERRIDES = "/ratelimit/overrides"


def _request(service: AdminService, user: str = "42", tier: str = "premium") -> int:
    service.run(
        "INSERT INTO upgrade_requests (user_id, current_tier, requested_tier, reason, created_at) "
        f"VALUES ('{user}', 'free', '{tier}', 'growing', '2026-01-30 12:00:00+00:00')"
    )
    id: int = service.rows("SELECT max(id) FROM upgrade_requests")[0][0]
    return id


def _limit_of(service: AdminService, user: str) -> int:
    return service.limiter.peek(user=user, endpoint="/api/x").limit


def test_a_user_gets_a_tier_and_loses_it_again(any_service: AdminService) -> None:
    add_api_rule(any_service)
    put = any_service.ask("PUT", "/users/42", {"tier": "premium"}, role="operator")
    assert put.status_code == 200, put.text
    eventually(lambda: _limit_of(any_service, "42") == 100)
    assert any_service.ask("GET", "/users/42", role="viewer").json()["tier"] == "premium"
    any_service.ask("PUT", "/users/42", {"tier": "free"})
    eventually(lambda: _limit_of(any_service, "42") == 10)
    assert any_service.changes[1:] == [("tiers", "42")] * 2
    assert any_service.ask("DELETE", "/users/42").status_code == 204
    assert any_service.ask("GET", "/users/42").status_code == 404
    assert any_service.ask("DELETE", "/users/42").status_code == 404
    said = [(entry["action"], entry["before"], entry["after"]) for entry in any_service.audit()]
    premium, free = ({"tier": t, "custom_limits": None} for t in ("premium", "free"))
    assert said[1:] == [
        ("user.set", None, premium),
        ("user.set", premium, free),
        ("user.delete", free, None),
    ]


def test_a_user_gets_limits_of_the_users_own(any_service: AdminService) -> None:
    add_api_rule(any_service)
    own = {"api": {"limits": "500/minute", "until": "2100-01-01T00:00:00Z", "reason": "a trial"}}
    put = any_service.ask("PUT", "/users/42", {"tier": "free", "custom_limits": own})
    assert put.status_code == 200, put.text
    eventually(lambda: _limit_of(any_service, "42") == 500)
    any_service.ask("PUT", "/users/42", {"tier": "premium"})
    assert any_service.ask("GET", "/users/42").json()["custom_limits"] == own, "stay"
    any_service.ask("PUT", "/users/42", {"tier": "premium", "custom_limits": None})
    eventually(lambda: _limit_of(any_service, "42") == 100)


def test_users_are_listed_by_tier_and_in_pages(service: AdminService) -> None:
    add_api_rule(service)
    for user, tier in (("a", "free"), ("b/c", "premium"), ("d", "premium")):
        assert service.ask("PUT", f"/users/{user}", {"tier": tier}).status_code == 200
    listed = service.ask("GET", "/users", params={"tier": "premium"}).json()
    assert [user["user_id"] for user in listed] == ["b/c", "d"]
    page = service.ask("GET", "/users", params={"after": "a", "limit": 1}).json()
    assert [user["user_id"] for user in page] == ["b/c"]
    assert service.ask("GET", "/users/b%2Fc").json()["tier"] == "premium"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tier": "gold"}, "expected free, premium"),
        ({"tier": ""}, "tier"),
        ({"tier": "x" * 51}, "tier"),
        ({"tier": 5}, "tier"),
        ({}, "tier is missing"),
        ({"tier": "free", "colour": "red"}, "colour"),
        ({"tier": "free", "custom_limits": {"api": "ten"}}, "ten"),
        ({"tier": "free", "custom_limits": {"nothing": "1/minute"}}, "nothing"),
        ({"tier": "free", "custom_limits": {"api": {"limits": "1/s", "x": 1}}}, "x"),
        ({"tier": "free", "custom_limits": {"api": {"limits": "1/s", "until": "2030-01-01"}}}, ""),
        ({"tier": "free", "custom_limits": ["api"]}, "custom_limits"),
    ],
)
def test_bad_tiers_and_limits_change_nothing(
    service: AdminService, body: dict[str, Any], said: str
) -> None:
    add_api_rule(service)
    answer = service.ask("PUT", "/users/42", body)
    assert answer.status_code == 422, answer.text
    assert said in answer.text
    assert service.rows("SELECT * FROM user_tiers") == []
    assert len(service.audit()) == 1


def test_an_id_that_is_too_long_is_refused(any_service: AdminService) -> None:
    add_api_rule(any_service)
    answer = any_service.ask("PUT", "/users/" + "x" * 256, {"tier": "free"})
    assert answer.status_code == 422


def test_an_override_is_made_changed_and_ended(any_service: AdminService) -> None:
    add_api_rule(any_service)
    body = {
        "rule": "api",
        "key": "42",
        "limits": ["50/minute", "500/hour"],
        "until": "2100-01-31T12:00:00Z",
        "reason": "a trial",
    }
    made = any_service.ask("POST", OVERRIDES, body, role="operator")
    assert made.status_code == 201, made.text
    assert dt.datetime.fromisoformat(made.json()["until"].replace("Z", "+00:00")).year == 2100
    assert any_service.limiter.peek(user="42", tier="free", endpoint="/api/x").limit == 50
    path = f"{OVERRIDES}/{made.json()['id']}"
    changed = any_service.ask("PUT", path, {**body, "limits": "60/minute"}, role="operator")
    assert (changed.status_code, changed.json()["id"]) == (200, made.json()["id"])
    assert any_service.limiter.peek(user="42", tier="free", endpoint="/api/x").limit == 60
    listed = any_service.ask("GET", OVERRIDES, role="viewer", params={"rule": "api"}).json()
    assert [(o["limits"], o["reason"]) for o in listed] == [("60/minute", "a trial")]
    assert any_service.ask("DELETE", path, role="operator").status_code == 204
    assert any_service.limiter.peek(user="42", tier="free", endpoint="/api/x").limit == 10
    assert any_service.ask("DELETE", path).status_code == 404
    assert any_service.ask("PUT", path, body).status_code == 404
    actions = [entry["action"] for entry in any_service.audit()][1:]
    assert actions == ["override.create", "override.update", "override.delete"]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"rule": "nothing"}, "rule"),
        ({"limits": "ten"}, "limits"),
        ({"limits": []}, "limits"),
        ({"until": "2020-01-01T00:00:00Z"}, "until"),
        ({"until": "2100-01-01T00:00:00"}, "until"),
        ({"until": "soon"}, "until"),
        ({"key": {"tenant": "1"}}, "key"),
        ({"key": 1.5}, "key"),
        ({"algorithm": "magic"}, "algorithm"),
        ({"colour": "red"}, "colour"),
        ({"limits": "; ".join(["1/minute"] * 200)}, "limits"),
    ],
)
def test_bad_overrides_are_named_and_change_nothing(
    service: AdminService, change: dict[str, Any], where: str
) -> None:
    add_api_rule(service)
    answer = service.ask("POST", OVERRIDES, {"rule": "api", "key": "1", "limits": "1/s", **change})
    assert answer.status_code == 422, answer.text
    assert where in answer.text
    assert service.rows("SELECT * FROM rate_limit_overrides") == []


def test_an_override_for_all_of_a_tier_needs_an_admin(service: AdminService) -> None:
    rules = [
        {"id": "tiers", "by": "tier", "limit": "9/hour"},
        {"id": "users", "by": ["user", "tier"], "limit": "9/hour"},
    ]
    assert service.ask("POST", "/ratelimit/rules", {"rules": rules}).status_code == 201
    body = {"rule": "tiers", "key": "free", "limits": "unlimited"}
    refused = service.ask("POST", OVERRIDES, body, role="operator")
    assert refused.status_code == 403
    assert "the rule 'tiers' counts everybody together; expected" in refused.json()["detail"]
    made = service.ask("POST", OVERRIDES, body)
    assert made.status_code == 201, made.text
    path = f"{OVERRIDES}/{made.json()['id']}"
    assert service.ask("PUT", path, body, role="operator").status_code == 403
    one = {"rule": "users", "key": {"user": "1", "tier": "free"}, "limits": "unlimited"}
    assert service.ask("PUT", path, one, role="operator").status_code == 200


def test_one_key_has_one_override_of_a_rule(any_service: AdminService) -> None:
    add_api_rule(any_service)
    body = {"rule": "api", "key": "42", "limits": "5/minute"}
    assert any_service.ask("POST", OVERRIDES, body).status_code == 201
    again = any_service.ask("POST", OVERRIDES, body)
    assert again.status_code == 422, again.text
    own = {"tier": "free", "custom_limits": {"api": "6/minute"}}
    assert any_service.ask("PUT", "/users/42", own).status_code == 422
    assert any_service.ask("POST", OVERRIDES, {**body, "key": "43"}).status_code == 201
    any_service.rules.refresh()
    assert any_service.rules.last_error is None
    any_service.run("UPDATE rate_limit_overrides SET key = '42' WHERE id = 1")  # a number
    assert any_service.ask("POST", OVERRIDES, body).status_code == 422


def test_an_approved_request_changes_the_tier(any_service: AdminService) -> None:
    add_api_rule(any_service)
    own = {"tier": "free", "custom_limits": {"api": "7/minute"}}
    any_service.ask("PUT", "/users/42", own)
    id = _request(any_service)
    (listed,) = any_service.ask("GET", "/upgrade-requests", params={"status": "PENDING"}).json()
    assert (listed["id"], listed["user_id"], listed["reason"]) == (id, "42", "growing")
    path = f"/upgrade-requests/{id}/approve"
    assert any_service.ask("POST", path, role="viewer").status_code == 403
    answer = any_service.ask("POST", path, {"note": "paid"}, role="operator")
    assert answer.status_code == 200, answer.text
    assert answer.json()["tier"] == "premium"
    user = any_service.ask("GET", "/users/42").json()
    assert (user["tier"], user["custom_limits"]) == ("premium", {"api": "7/minute"})
    (decided,) = any_service.ask("GET", "/upgrade-requests", params={"user": "42"}).json()
    assert (decided["status"], decided["note"]) == ("APPROVED", "paid")
    assert decided["decided_by"].endswith("operator of the tests")
    assert any_service.ask("POST", path).status_code == 409, "it is decided"
    entry = any_service.audit()[-1]
    assert (entry["action"], entry["before"]["tier"]) == ("request.approve", "free")
    assert entry["after"]["tier"] == "premium"
    assert any_service.changes[-1] == ("tiers", "42")


def test_a_rejected_request_changes_no_tier(service: AdminService) -> None:
    add_api_rule(service)
    id = _request(service)
    answer = service.ask("POST", f"/upgrade-requests/{id}/reject", {"note": "not yet"})
    assert answer.status_code == 200, answer.text
    assert service.rows("SELECT * FROM user_tiers") == []
    assert service.audit()[-1]["action"] == "request.reject"
    assert service.ask("POST", "/upgrade-requests/999/reject").status_code == 404


def test_a_request_for_an_unknown_tier_stays_pending(service: AdminService) -> None:
    add_api_rule(service)
    id = _request(service, tier="gold")
    answer = service.ask("POST", f"/upgrade-requests/{id}/approve")
    assert answer.status_code == 422
    assert service.rows("SELECT status FROM upgrade_requests") == [("PENDING",)]


def test_an_override_that_never_ends_is_listed(any_service: AdminService) -> None:
    add_api_rule(any_service)
    any_service.run(
        "INSERT INTO rate_limit_overrides (rule_id, key, limits, expires_at) "
        "VALUES ('api', '\"42\"', '7/minute', 'infinity')"
    )
    (listed,) = any_service.ask("GET", OVERRIDES, role="viewer").json()
    assert (listed["key"], listed["limits"]) == ("42", "7/minute")
    assert listed["until"] is None or listed["until"].startswith("9999")
    path = f"{OVERRIDES}/{listed['id']}"
    new = {"rule": "api", "key": "42", "limits": "8/minute"}
    assert any_service.ask("PUT", path, new).status_code == 200
    assert any_service.ask("DELETE", path).status_code == 204


@pytest.mark.parametrize(
    ("key", "until", "shown"), [("o42", None, "o42"), ('"42"', "tomorrow", "42"), ("[", None, "[")]
)
def test_an_override_that_cannot_be_read_can_be_found_and_deleted(
    service: AdminService, key: str, until: str | None, shown: str
) -> None:
    add_api_rule(service)
    ends = "NULL" if until is None else f"'{until}'"
    service.run(
        "INSERT INTO rate_limit_overrides (rule_id, key, limits, expires_at) "
        f"VALUES ('api', '{key}', '7/minute', {ends})"
    )
    (listed,) = service.ask("GET", OVERRIDES, role="viewer").json()
    assert (listed["key"], listed["until"]) == (shown, None)
    assert service.ask("DELETE", f"{OVERRIDES}/{listed['id']}").status_code == 204
    assert service.ask("GET", OVERRIDES).json() == []


def test_a_user_whose_limits_are_not_json_can_be_found_and_mended(service: AdminService) -> None:
    add_api_rule(service)
    assert service.ask("PUT", "/users/42", {"tier": "free"}).status_code == 200
    service.run("""UPDATE user_tiers SET custom_limits = '{"api": 5/minute}'""")
    assert service.ask("GET", "/users").json()[0]["custom_limits"] == '{"api": 5/minute}'
    assert service.ask("GET", "/users/42").json()["custom_limits"] == '{"api": 5/minute}'
    mended = {"tier": "free", "custom_limits": {"api": {"limits": "5/minute"}}}
    assert service.ask("PUT", "/users/42", mended).status_code == 200
    assert service.ask("GET", "/users/42").json()["custom_limits"] == mended["custom_limits"]


@pytest.mark.parametrize(
    ("column", "stored", "shown"),
    [
        ("tier", "x'ff'", "b'\\xff'"),
        ("tier", "x'70726f'", "pro"),
        ("tier", "''", ""),
        ("tier", "5", "5"),
        ("custom_limits", "x'ff'", "b'\\xff'"),
        ("custom_limits", "x'7b7d'", {}),
        ("custom_limits", "'[NaN]'", [None]),
        ("custom_limits", "'\"\\ud800\"'", '"\\ud800"'),
        ("created_at", "'tomorrow'", None),
        ("created_at", "x'ff'", None),
        ("created_at", "5", None),
        ("updated_at", "'tomorrow'", None),
        ("updated_at", "x'ff'", None),
    ],
)
def test_a_user_whose_row_is_damaged_is_shown_and_mended(
    service: AdminService, column: str, stored: str, shown: Any
) -> None:
    add_api_rule(service)
    for user in ("41", "42"):
        assert service.ask("PUT", f"/users/{user}", {"tier": "free"}).status_code == 200
    service.run(f"UPDATE user_tiers SET {column} = {stored} WHERE user_id = '42'")
    other, listed = service.ask("GET", "/users").json()
    assert (other["user_id"], other["tier"], listed["user_id"]) == ("41", "free", "42")
    assert listed[column] == shown
    assert service.ask("GET", "/users/42").json() == listed
    put = service.ask("PUT", "/users/42", {"tier": "premium", "custom_limits": None})
    assert put.status_code == 200, put.text
    assert (put.json()["tier"], put.json()["custom_limits"]) == ("premium", None)
    assert service.audit()[-1]["before"]["tier"] == (shown if column == "tier" else "free")
    eventually(lambda: _limit_of(service, "42") == 100)
    service.run(f"UPDATE user_tiers SET {column} = {stored} WHERE user_id = '42'")
    assert service.ask("DELETE", "/users/42").status_code == 204


def test_a_user_whose_id_is_damaged_is_shown(service: AdminService) -> None:
    service.run("INSERT INTO user_tiers (user_id, tier) VALUES (x'ff', 'free'), ('42', 'free')")
    listed = service.ask("GET", "/users").json()
    assert [each["user_id"] for each in listed] == ["42", "b'\\xff'"]


def test_an_override_whose_texts_are_damaged_is_listed(service: AdminService) -> None:
    add_api_rule(service)
    service.run(
        "INSERT INTO rate_limit_overrides (rule_id, key, limits, reason) "
        "VALUES ('api', '\"42\"', x'ff', x'61')"
    )
    (listed,) = service.ask("GET", OVERRIDES).json()
    assert (listed["limits"], listed["reason"]) == ("b'\\xff'", "a")
    assert service.ask("DELETE", f"{OVERRIDES}/{listed['id']}").status_code == 204


def test_a_request_whose_row_is_damaged_is_shown_and_decided(service: AdminService) -> None:
    add_api_rule(service)
    other, id = _request(service, "41"), _request(service)
    damage = "current_tier = x'ff', reason = x'61', created_at = 'tomorrow', decided_at = x'ff'"
    service.run(f"UPDATE upgrade_requests SET {damage} WHERE id = {id}")
    first, second = service.ask("GET", "/upgrade-requests").json()
    assert (first["id"], second["id"]) == (id, other)
    assert (first["current_tier"], first["reason"]) == ("b'\\xff'", "a")
    assert (first["created_at"], first["decided_at"]) == (None, None)
    answer = service.ask("POST", f"/upgrade-requests/{id}/approve")
    assert answer.status_code == 200, answer.text
    assert service.ask("GET", "/users/42").json()["tier"] == "premium"
