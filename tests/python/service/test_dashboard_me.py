"""The page of a user without a role, which shows only that user's data."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_client import Clock, add_api_rule
from dashboard_client import HOSTILE, Browser, DashboardService, Issuer, row


@pytest.fixture
def dashboard(tmp_path: Path, migrated_sqlite: Path, clock: Clock) -> Iterator[DashboardService]:
    shutil.copyfile(migrated_sqlite, tmp_path / "service.db")
    with DashboardService(f"sqlite:///{tmp_path / 'service.db'}", clock, oidc=Issuer()) as made:
        add_api_rule(made, limits={"free": "10/minute", "premium": "quota 400/month"})
        made.run("insert into user_tiers (user_id, tier) values ('42', 'free')")
        yield made


def user_browser(dashboard: DashboardService, user: str = "42") -> Browser:
    found = dashboard.browser(None)
    assert found.sign_in(f"user:{user}").status_code == 303
    return found


def test_a_user_is_redirected_to_the_own_page(dashboard: DashboardService) -> None:
    browser = user_browser(dashboard)
    assert browser.get("/").headers["location"] == "/dashboard/me"
    text = browser.get("/me").text
    assert "Usage of" in text
    links = re.findall(r'<li><a href="([^"]+)"', text)
    assert links == ["/dashboard/me"]


def test_a_user_without_a_role_can_sign_out(dashboard: DashboardService) -> None:
    browser = user_browser(dashboard)
    cookies = dict(browser.cookies)
    answer = browser.ask("POST", "/sign-out", {"csrf": browser.csrf("/me")})
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in")
    browser.cookies = cookies
    assert browser.get("/me").status_code == 303, "the server has ended the session"


def test_a_user_without_a_role_gets_no_page_of_operators(dashboard: DashboardService) -> None:
    browser = user_browser(dashboard)
    paths = ("/keys", "/key", "/rules", "/shadow", "/anomalies", "/requests", "/usage", "/quotas")
    live = ("/live/overview", "/live/keys", "/live/quotas?user=43", "/usage.csv?user=43")
    for path in (*paths, *live):
        assert browser.get(path).status_code == 403, path
    csrf = browser.csrf("/me")
    for path in ("/key/unlock", "/requests/1", "/quotas/top-up", "/anomalies/1/acknowledge"):
        assert browser.ask("POST", path, {"csrf": csrf, "user": "42"}).status_code == 403, path
    assert dashboard.ask("GET", "/whoami", token="user:42").status_code == 401


def test_a_user_sees_no_data_of_others(dashboard: DashboardService) -> None:
    dashboard.use("43", endpoint="/secret", allowed=999)
    dashboard.record(row("43", refused=7, rule="api", endpoint="/secret"))
    browser = user_browser(dashboard)
    for path in ("/me?user=43", "/live/me?user=43"):
        assert "/secret" not in browser.get(path).text
        assert "999" not in browser.get(path).text


def test_a_token_without_a_user_has_no_such_page(dashboard: DashboardService) -> None:
    assert dashboard.browser("viewer").get("/me").status_code == 404
    assert dashboard.browser(None).get("/me").status_code == 303
    operator = dashboard.browser(None)
    operator.sign_in("operator:42")
    assert operator.get("/me").status_code == 200
    assert "My usage" in operator.get("/").text


@pytest.mark.parametrize("id", ["0", "-1", "x", str(2**63), "9" * 5000, "\u0661"])
def test_an_impossible_number_in_a_path_is_not_found(dashboard: DashboardService, id: str) -> None:
    browser = user_browser(dashboard)
    form = {"csrf": browser.csrf("/me")}
    assert browser.ask("POST", f"/me/requests/{id}/withdraw", form).status_code == 404
    operator = dashboard.browser("operator")
    assert operator.post(f"/requests/{id}", verdict="approve").status_code == 404
    assert operator.post(f"/anomalies/{id}/acknowledge").status_code == 404


def test_the_page_shows_remaining_limits_and_refusals(dashboard: DashboardService) -> None:
    dashboard.limiter.check(user="42", tier="free", endpoint="/api/*", cost=4)
    dashboard.use("42", endpoint="/api", allowed=1234)
    dashboard.record(row("42", allowed=4), row("42", refused=5, rule="api", endpoint="/api/x"))
    dashboard.record(row("42", allowed=1, degraded=1))
    browser = user_browser(dashboard)
    text = browser.get("/me").text
    assert "Refused in the last five minutes: 5." in text
    assert "the shared storage did not answer: 1." in text
    cells = re.findall(r'data-label="(Limit|Left|Refused)"[^>]*>(\d+)', text)
    assert cells[:3] == [("Limit", "10"), ("Left", "6"), ("Refused", "5")]
    parts = browser.get("/live/me").json()["parts"]
    assert set(parts) == {"state", "limits", "quotas", "refusals"}
    for name, html in parts.items():
        assert f'id="{name}"' in text
        assert html.strip() in text


def test_limits_are_those_of_the_tier_that_checks_come_with(
    tmp_path: Path, migrated_sqlite: Path, clock: Clock
) -> None:
    shutil.copyfile(migrated_sqlite, tmp_path / "service.db")
    tiers = {"7": "gold"}
    url = f"sqlite:///{tmp_path / 'service.db'}"
    with DashboardService(url, clock, oidc=Issuer(), tier_seen=tiers.get) as made:
        add_api_rule(made, limits={"free": "10/minute", "gold": "500/minute"})
        add_api_rule(made, id="trial", limits={"free": "3/minute", "gold": "5/minute"}, shadow=True)
        for user, shown in (("7", ["500"]), ("8", [])):
            for page in (
                user_browser(made, user).get("/me"),
                made.browser().get(f"/usage?user={user}"),
            ):
                assert re.findall(r'data-label="Limit"[^>]*>(\d+)', page.text) == shown
        for user, link in (("7", "user=7&amp;tier=gold"), ("8", "user=8")):
            page = made.browser().get(f"/usage?user={user}")
            assert f'<a href="/dashboard/key?{link}">Explain this user</a>' in page.text
        bearer = made.ask("GET", "/../dashboard/status", token="user:7")
        assert bearer.json()["tier"] == "gold"
        assert [each["limit"] for each in bearer.json()["rateLimits"]] == [500]
        made.run("insert into user_tiers (user_id, tier) values ('7', 'free')")
        assert "10" in re.findall(
            r'data-label="Limit"[^>]*>(\d+)', user_browser(made, "7").get("/me").text
        )


def test_the_quota_of_the_user_is_shown(dashboard: DashboardService) -> None:
    dashboard.run("update user_tiers set tier = 'premium'")
    dashboard.limiter.check(user="42", tier="premium", endpoint="/api/*", cost=30)
    text = user_browser(dashboard).get("/me").text
    assert "<dt>Available</dt><dd>370</dd>" in text
    assert "Top up" not in text


def test_a_tier_is_requested_withdrawn_and_decided(
    dashboard: DashboardService, caplog: pytest.LogCaptureFixture
) -> None:
    browser = user_browser(dashboard)
    assert re.findall(r"<option[^>]*>(\w+)", browser.get("/me").text) == ["premium"]
    with caplog.at_level(logging.INFO, "tidegate"):
        assert browser.ask("POST", "/me/tier", {"tier": "premium"}).status_code == 403
        assert (
            browser.ask(
                "POST", "/me/tier", {"csrf": browser.csrf("/me"), "tier": "nothing"}
            ).status_code
            == 422
        )
        answer = browser.ask(
            "POST", "/me/tier", {"csrf": browser.csrf("/me"), "tier": "premium", "reason": "grow"}
        )
        assert answer.headers["location"] == "/dashboard/me"
        assert "waits for a decision" in browser.get("/me").text
        other = user_browser(dashboard, "43")
        stolen = {"csrf": other.csrf("/me")}
        assert other.ask("POST", "/me/requests/1/withdraw", stolen).status_code == 404
        mine = {"csrf": browser.csrf("/me")}
        assert browser.ask("POST", "/me/requests/1/withdraw", mine).status_code == 303
        assert browser.ask("POST", "/me/requests/1/withdraw", mine).status_code == 409
        assert "WITHDRAWN" in browser.get("/me").text
        browser.ask("POST", "/me/tier", {**mine, "tier": "premium"})
        operator = dashboard.browser("operator")
        operator.post("/requests/2", verdict="reject", note="Use less.")
    text = browser.get("/me").text
    assert "was rejected on 2026-01-31 12:00:00 UTC. Note: Use less." in text
    assert [record.getMessage() for record in caplog.records if "request" in record.msg] == [
        "'42' requests the tier premium: request 1",
        "'42' requests the tier premium: request 2",
        "request 2 of '42' for the tier premium is REJECTED",
    ]
    dashboard.clock.advance(days=31)
    assert "was rejected" not in browser.get("/me").text
    actions = [entry[0] for entry in dashboard.rows("select action from audit_log order by id")]
    assert actions[-4:] == [
        "request.create",
        "request.withdraw",
        "request.create",
        "request.reject",
    ]


def test_names_are_escaped(dashboard: DashboardService) -> None:
    dashboard.record(row(HOSTILE, refused=5, rule=HOSTILE, endpoint=HOSTILE))
    dashboard.add_request(HOSTILE, status="REJECTED", note=HOSTILE, decided_at=dashboard.clock())
    browser = user_browser(dashboard, HOSTILE)
    for path in ("/me", "/live/me"):
        answer = browser.get(path)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
