"""JSON for users: their usage, what remains, and requests for another tier."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from admin_client import Clock, add_api_rule
from dashboard_client import DashboardService, Issuer

WISH = {"requestedTier": "premium", "reason": "We grow."}


@pytest.fixture
def dashboard(tmp_path: Path, migrated_sqlite: Path, clock: Clock) -> Iterator[DashboardService]:
    shutil.copyfile(migrated_sqlite, tmp_path / "service.db")
    with DashboardService(f"sqlite:///{tmp_path / 'service.db'}", clock, oidc=Issuer()) as made:
        add_api_rule(made)
        yield made


def ask(
    dashboard: DashboardService, method: str, path: str, token: str | None, **more: Any
) -> httpx.Response:
    """Sends one request; `path` begins after /v1/dashboard."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def one() -> httpx.Response:
        transport = httpx.ASGITransport(dashboard.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            return await client.request(method, "/v1/dashboard" + path, headers=headers, **more)

    return asyncio.run(one())


def test_a_user_sees_usage_and_what_remains(dashboard: DashboardService) -> None:
    dashboard.run("insert into user_tiers (user_id, tier) values ('42', 'free')")
    dashboard.limiter.check(user="42", tier="free", endpoint="/api/*", cost=4)
    dashboard.use("42", allowed=3, refused=1)
    dashboard.use("42", hours_ago=20, endpoint="/old", allowed=10)
    dashboard.use("42", hours_ago=24 * 31, endpoint="/old", allowed=100)
    dashboard.use("43", allowed=1000)
    body = ask(dashboard, "GET", "/status", "user:42").json()
    assert (body["userId"], body["tier"], body["quota"]) == ("42", "free", None)
    stats = body["usageStats"]
    assert stats["totalRequests"] == 114
    assert stats["requestsToday"] == 4
    assert stats["requestsThisMonth"] == 14
    assert stats["requestsByEndpoint"] == {"/old": 110, "/api": 4}
    hours = stats["hourlyUsage"]
    assert (len(hours), hours[-1]["value"], hours[3]["value"]) == (24, 4, 10)
    assert hours[-1]["timestamp"] == int(dashboard.clock().timestamp())
    (limit,) = body["rateLimits"]
    assert (limit["rule"], limit["endpoint"], limit["limit"], limit["remaining"]) == (
        "api",
        "/api/*",
        10,
        6,
    )
    assert limit["resetTime"] > dashboard.clock().timestamp()


def test_a_quota_is_part_of_the_status(dashboard: DashboardService) -> None:
    dashboard.run(
        "insert into user_quotas values "
        "('42', 'monthly', '{\"limit\": 10000}', '2026-01-30 10:00:00')"
    )
    body = ask(dashboard, "GET", "/status", "user:42").json()
    assert body["quota"] == {"name": "monthly", "limit": 10000}


@pytest.mark.parametrize(
    ("token", "user", "status"),
    [
        ("user:42", None, 200),
        ("user:42", "42", 200),
        ("user:42", "43", 403),
        ("user:42", "", 422),
        ("viewer:1", "43", 200),
        ("viewer:1", None, 200),
        ("nobody", None, 401),
        (None, "42", 401),
    ],
)
@pytest.mark.parametrize("path", ["/status", "/usage/history"])
def test_a_user_sees_no_data_of_others(
    dashboard: DashboardService, path: str, token: str | None, user: str | None, status: int
) -> None:
    query = {"startDate": "2026-01-01", "endDate": "2026-01-31"}
    params = query if user is None else {**query, "user": user}
    answer = ask(dashboard, "GET", path, token, params=params)
    assert answer.status_code == status, answer.text
    if status == 200:
        assert answer.json()["userId"] == (user or (token or "").partition(":")[2])


def test_a_token_of_the_database_names_the_user(dashboard: DashboardService) -> None:
    token = dashboard.tokens["viewer"]
    assert ask(dashboard, "GET", "/status", token).status_code == 422
    assert ask(dashboard, "GET", "/status?user=42", token).json()["userId"] == "42"


def test_a_token_of_the_issuer_with_a_role_signs_in(dashboard: DashboardService) -> None:
    assert dashboard.browser(None).sign_in("nobody:42").status_code == 401
    assert dashboard.ask("GET", "/whoami", token="user:42").status_code == 401
    assert dashboard.browser(None).sign_in("viewer:42").status_code == 303


def test_history_has_every_day(dashboard: DashboardService) -> None:
    dashboard.use("42", hours_ago=24, allowed=5, refused=2)
    body = ask(
        dashboard, "GET", "/usage/history?startDate=2026-01-29&endDate=2026-01-31", "user:42"
    ).json()
    assert [(day["date"], day["requests"], day["refused"]) for day in body["days"]] == [
        ("2026-01-29", 0, 0),
        ("2026-01-30", 7, 2),
        ("2026-01-31", 0, 0),
    ]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "startDate=2026-01-01",
        "startDate=2026-01-02&endDate=2026-01-01",
        "startDate=2025-01-01&endDate=2026-01-31",
        "startDate=0001-01-01&endDate=9999-12-31",
        "startDate=9999-12-31&endDate=9999-12-31",
        "startDate=yesterday&endDate=today",
    ],
)
def test_impossible_days_are_refused(dashboard: DashboardService, query: str) -> None:
    answer = ask(dashboard, "GET", f"/usage/history?{query}", "user:42")
    assert answer.status_code == 422
    assert answer.json()["detail"]


def test_the_last_day_of_all_is_refused_by_its_name(dashboard: DashboardService) -> None:
    query = "startDate=9999-12-31&endDate=9999-12-31"
    answer = ask(dashboard, "GET", f"/usage/history?{query}", "user:42")
    assert answer.json()["detail"] == "endDate is 9999-12-31; expected a day before it"


def test_an_upgrade_waits_for_a_decision(dashboard: DashboardService) -> None:
    dashboard.run("insert into user_tiers (user_id, tier) values ('42', 'free')")
    answer = ask(dashboard, "POST", "/tier/upgrade", "user:42", json=WISH)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["status"], body["userId"], body["currentTier"], body["requestedTier"]) == (
        "PENDING",
        "42",
        "free",
        "premium",
    )
    assert ask(dashboard, "POST", "/tier/upgrade", "user:42", json=WISH).status_code == 409
    assert ask(dashboard, "POST", "/tier/upgrade", "user:43", json=WISH).status_code == 200
    action, actor, role = dashboard.rows("select action, actor, role from audit_log")[-2]
    assert (action, actor, role) == ("request.create", "oidc:42", "user")
    assert dashboard.browser("operator").post("/requests/1", verdict="approve").status_code == 303
    again = ask(dashboard, "POST", "/tier/upgrade", "user:42", json=WISH)
    assert (again.status_code, "already" in again.json()["detail"]) == (409, True)


def test_a_user_cannot_make_an_upgrade_look_like_a_downgrade(dashboard: DashboardService) -> None:
    wish = {**WISH, "currentTier": "enterprise"}
    answer = ask(dashboard, "POST", "/tier/upgrade", "user:42", json=wish)
    assert (answer.status_code, answer.json()["currentTier"]) == (200, None)
    assert "42: default → premium" in dashboard.browser("operator").get("/requests").text
    answer = ask(dashboard, "POST", "/tier/upgrade?user=43", "operator:1", json=wish)
    assert (answer.status_code, answer.json()["currentTier"]) == (200, "enterprise")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"requestedTier": ""}, 422),
        ({"requestedTier": "nothing"}, 422),
        ({"requestedTier": "premium", "status": "APPROVED"}, 422),
        ({"requestedTier": "premium", "reason": "x" * 2001}, 422),
        ({"requestedTier": "premium", "reason": "\0"}, 400),
        ([], 422),
    ],
)
def test_an_impossible_upgrade_is_refused(
    dashboard: DashboardService, body: Any, status: int
) -> None:
    answer = ask(dashboard, "POST", "/tier/upgrade", "user:42", json=body)
    assert answer.status_code == status, answer.text
    assert dashboard.rows("select * from upgrade_requests") == []


def test_only_an_operator_may_request_a_tier_for_a_user(dashboard: DashboardService) -> None:
    path = "/tier/upgrade?user=42"
    assert ask(dashboard, "POST", path, "viewer:1", json=WISH).status_code == 403
    assert ask(dashboard, "POST", path, "user:1", json=WISH).status_code == 403
    assert ask(dashboard, "POST", path, "operator:1", json=WISH).status_code == 200


def test_wrong_methods_and_paths_are_refused(dashboard: DashboardService) -> None:
    answer = ask(dashboard, "DELETE", "/status", "user:42")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert ask(dashboard, "GET", "/nothing", "user:42").status_code == 404
    assert ask(dashboard, "GET", "/%2e%2e/admin/whoami", "user:42").status_code == 400


def test_users_read_their_requests_and_withdraw_one(dashboard: DashboardService) -> None:
    assert ask(dashboard, "GET", "/tier/upgrade", "user:42").json()["requests"] == []
    assert ask(dashboard, "POST", "/tier/upgrade", "user:42", json=WISH).json()["id"] == 1
    path = "/tier/upgrade/1/withdraw"
    assert ask(dashboard, "POST", path, "user:43").status_code == 404
    assert ask(dashboard, "POST", path + "?user=42", "viewer:1").status_code == 403
    assert ask(dashboard, "POST", path, "user:42").json()["status"] == "WITHDRAWN"
    assert ask(dashboard, "POST", path, "user:42").status_code == 409
    ask(dashboard, "POST", "/tier/upgrade", "user:42", json=WISH)
    dashboard.browser("operator").post("/requests/2", verdict="approve", note="agreed")
    requests = ask(dashboard, "GET", "/tier/upgrade", "user:42").json()["requests"]
    assert [(each["status"], each["note"]) for each in requests] == [
        ("APPROVED", "agreed"),
        ("WITHDRAWN", None),
    ]
    assert ask(dashboard, "GET", "/tier/upgrade", "user:43").json()["requests"] == []


def test_the_quota_of_the_rules_in_force_is_part_of_the_status(dashboard: DashboardService) -> None:
    limits = "quota 100/month rollover 50"
    add_api_rule(dashboard, id="monthly", endpoints=["/paid"], limits=limits)
    dashboard.limiter.check(user="42", endpoint="/paid", cost=3)
    body = ask(dashboard, "GET", "/status", "user:42").json()
    assert body["quotas"] == [body["quota"]]
    quota = body["quota"]
    assert {name: quota[name] for name in ("limit", "used", "available", "rollover")} == {
        "limit": 100,
        "used": 3,
        "available": 97,
        "rollover": 0,
    }
    assert quota["name"] == "monthly"
    assert quota["resetsAt"] == 1_001_894_400
    assert [grant["kind"] for grant in quota["grants"]] == ["base"]
