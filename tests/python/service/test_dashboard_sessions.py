"""Signing in and out of the dashboard, its cookies, and forged forms."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_client import Clock
from dashboard_client import DashboardService
from tidegate.server.dashboard.session import Sessions
from tidegate.server.records.audit import Actor


@pytest.fixture
def dashboard(tmp_path: Path, migrated_sqlite: Path, clock: Clock) -> Iterator[DashboardService]:
    shutil.copyfile(migrated_sqlite, tmp_path / "service.db")
    with DashboardService(f"sqlite:///{tmp_path / 'service.db'}", clock) as made:
        yield made


@pytest.mark.parametrize(("base", "is_secure"), [("http://admin", False), ("https://admin", True)])
def test_cookies_are_hidden_from_other_sites_and_scripts(
    dashboard: DashboardService, base: str, is_secure: bool
) -> None:
    browser = dashboard.browser(None, base=base)
    cookies = browser.get("/sign-in").headers.get_list("set-cookie")
    cookies += browser.sign_in(dashboard.tokens["viewer"]).headers.get_list("set-cookie")
    assert {cookie.partition("=")[0] for cookie in cookies} == {
        "tidegate_form",
        "tidegate_session",
    }
    for cookie in cookies:
        assert "; HttpOnly" in cookie
        assert "; SameSite=strict" in cookie
        assert "; Path=/dashboard" in cookie
        assert ("; Secure" in cookie) is is_secure
        assert dashboard.tokens["viewer"] not in cookie


def test_a_wrong_token_is_reported_and_counted(dashboard: DashboardService) -> None:
    browser = dashboard.browser(None)
    for _ in range(10):
        answer = browser.sign_in("tg_wrong")
        assert answer.status_code == 401
        assert "unknown" in answer.text
    assert browser.sign_in("tg_wrong").status_code == 429
    elsewhere = dashboard.browser(None)
    assert elsewhere.sign_in("tg_wrong", address="198.51.100.7").status_code == 401
    assert dashboard.browser(None).sign_in(dashboard.tokens["admin"]).status_code == 303
    assert browser.sign_in("").status_code == 401


@pytest.mark.parametrize("secret", [None, "", "x" * 43, "é"])
def test_a_form_of_another_site_is_refused(dashboard: DashboardService, secret: str | None) -> None:
    dashboard.add_anomaly()
    form = {} if secret is None else {"csrf": secret}
    operator = dashboard.browser("operator")
    for path in ("/anomalies/1/acknowledge", "/key/unlock", "/requests/1", "/sign-out"):
        assert operator.ask("POST", path, {"user": "1", **form}).status_code == 403, path
    assert operator.get("/").status_code == 200
    stranger = dashboard.browser(None)
    stranger.get("/sign-in")
    token = {"token": dashboard.tokens["admin"], **form}
    assert stranger.ask("POST", "/sign-in", token).status_code == 403


def test_the_secret_of_another_session_is_refused(dashboard: DashboardService) -> None:
    dashboard.add_anomaly()
    other = dashboard.browser("operator").csrf()
    answer = dashboard.browser("operator").ask("POST", "/anomalies/1/acknowledge", {"csrf": other})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"csrf=%ff", "application/x-www-form-urlencoded", 400),
        (b"csrf=\xff", "application/x-www-form-urlencoded", 400),
        (b"csrf=%00", "application/x-www-form-urlencoded", 400),
        (b"&".join([b"a=1"] * 60), "application/x-www-form-urlencoded", 400),
        (b"a" * 70_000, "application/x-www-form-urlencoded", 413),
    ],
)
def test_a_form_that_cannot_be_read_is_refused(
    dashboard: DashboardService, content: bytes, kind: str, status: int
) -> None:
    answer = dashboard.browser("operator").ask(
        "POST", "/sign-out", content=content, headers={"Content-Type": kind}
    )
    assert answer.status_code == status, answer.text


def test_sign_out_ends_the_session_on_the_server(dashboard: DashboardService) -> None:
    browser = dashboard.browser()
    cookies = dict(browser.cookies)
    assert browser.post("/sign-out").status_code == 303
    browser.cookies = cookies
    assert browser.get("/").status_code == 303


def test_a_session_does_not_outlive_its_token(dashboard: DashboardService) -> None:
    browser = dashboard.browser("admin")
    dashboard.run("update api_tokens set revoked_at = created_at")
    assert browser.get("/").status_code == 303


def test_a_session_ends_when_it_is_idle_and_after_eight_hours(
    dashboard: DashboardService, clock: Clock
) -> None:
    browser = dashboard.browser()
    for _ in range(15):
        clock.advance(minutes=30)
        assert browser.get("/").status_code == 200
    clock.advance(minutes=31)
    assert browser.get("/").status_code == 303
    idle = dashboard.browser()
    for _ in range(3):  # a page's own fetches do not prolong a session
        clock.advance(minutes=21)
        idle.get("/live/overview")
    assert idle.get("/").status_code == 303


def test_each_sign_in_opens_its_own_session(dashboard: DashboardService) -> None:
    browser = dashboard.browser()
    browser.cookies["tidegate_session"] = "chosen-by-somebody-else"
    browser.sign_in(dashboard.tokens["viewer"])
    assert re.fullmatch(r"[\w-]{43}", browser.cookies["tidegate_session"])


def opened(sessions: Sessions, name: str, role: str, count: int) -> list[str]:
    return [sessions.open("token", Actor(name, role, None)) for _ in range(count)]


def test_who_signs_in_very_often_puts_nobody_else_out(clock: Clock) -> None:
    sessions = Sessions(clock)
    (operator,) = opened(sessions, "ada", "operator", 1)
    own = opened(sessions, "eve", "", 2_000)
    assert sessions.find(operator)
    assert [sessions.find(each) is not None for each in own[-105:]] == [False] * 5 + [True] * 100


def test_users_beyond_the_bound_put_out_users_and_not_operators(clock: Clock) -> None:
    sessions = Sessions(clock)
    staff = [opened(sessions, f"operator {i}", "operator", 1)[0] for i in range(10)]
    users = [opened(sessions, f"user {i}", "", 1)[0] for i in range(1_500)]
    assert all(map(sessions.find, staff))
    assert sum(sessions.find(each) is not None for each in users) == 990
    assert sessions.find(users[-1])
    late = [opened(sessions, f"late {i}", "viewer", 1)[0] for i in range(1_200)]
    assert sum(sessions.find(each) is not None for each in late) == 1_000
