"""The pages of the dashboard: roles, escaping, and the changes of operators."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from admin_client import Clock, add_api_rule
from dashboard_client import HOSTILE, DashboardService, row
from tidegate import __version__
from tidegate.rules.file import RuleFile
from tidegate.server.dashboard.charts import line_chart, step_chart
from tidegate.server.dashboard.filters import short_time
from tidegate.server.dashboard.live import seconds_of
from tidegate.server.state import ServiceState

PAGES = ("/", "/keys", "/key", "/rules", "/shadow", "/anomalies", "/requests", "/usage", "/quotas")
ANY = {"If-Match": "*"}
ATTRIBUTES = {"user": "42", "tier": "free", "endpoint": "/api/posts"}


@pytest.fixture
def dashboard(tmp_path: Path, migrated_sqlite: Path, clock: Clock) -> Iterator[DashboardService]:
    shutil.copyfile(migrated_sqlite, tmp_path / "service.db")
    with DashboardService(f"sqlite:///{tmp_path / 'service.db'}", clock) as made:
        yield made


@pytest.mark.parametrize("path", PAGES)
def test_a_page_asks_strangers_to_sign_in(dashboard: DashboardService, path: str) -> None:
    answer = dashboard.browser(None).get(path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_shown_to_a_viewer_with_a_policy(dashboard: DashboardService, path: str) -> None:
    answer = dashboard.browser().get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?! src=\"/dashboard/static/)|\son\w+=|style=", answer.text)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", answer.text)


@pytest.mark.parametrize("path", PAGES)
def test_head_answers_as_get_does(dashboard: DashboardService, path: str) -> None:
    assert dashboard.browser().ask("HEAD", path).status_code == 200


def test_unknown_pages_and_wrong_methods_are_refused(dashboard: DashboardService) -> None:
    browser = dashboard.browser()
    assert browser.get("/nothing").status_code == 404
    assert browser.ask("DELETE", "/keys").status_code == 405
    assert browser.get("").headers["location"] == "/dashboard/"


@pytest.mark.parametrize(
    "name",
    ["../app.py", "%2e%2e/app.py", "..%2fapp.py", "%2e%2e%2fapp.py", "style.css%00", "x", "."],
)
def test_no_other_file_is_served(dashboard: DashboardService, name: str) -> None:
    answer = dashboard.browser(None).get(f"/static/{name}")
    assert answer.status_code in (303, 400, 404), answer.text
    assert "import" not in answer.text


@pytest.mark.parametrize(
    ("name", "kind"), [("style.css", "text/css"), ("live.js", "javascript"), ("icon.svg", "svg")]
)
def test_the_files_of_the_pages_are_served(
    dashboard: DashboardService, name: str, kind: str
) -> None:
    answer = dashboard.browser(None).get(f"/static/{name}")
    assert answer.status_code == 200
    assert kind in answer.headers["content-type"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_overview_sums_five_minutes(dashboard: DashboardService) -> None:
    dashboard.record(row("1", allowed=1200), ago=400)
    dashboard.record(row("1", allowed=7, degraded=3), row("2", refused=5, rule="api"), ago=20)
    dashboard.problem = "connection refused"
    dashboard.numbers["usage_dropped"] = 11
    dashboard.add_anomaly()
    text = dashboard.browser().get("/").text
    assert "7 allowed, 5 refused, at most 7 and 5 in one second" in text
    assert "connection refused" in text
    assert "missing from usage and violations: 11." in text
    assert "nobody has acknowledged: 1." in text
    assert "without the shared storage in the last five minutes: 3." in text


def test_live_parts_equal_those_of_the_page(dashboard: DashboardService) -> None:
    dashboard.record(row(HOSTILE, refused=5, rule="api"))
    browser = dashboard.browser()
    for page, live in (("/", "/live/overview"), ("/keys", "/live/keys")):
        text = browser.get(page).text
        parts = browser.get(live).json()["parts"]
        for name, html in parts.items():
            assert f'id="{name}"' in text
            assert html.strip() in text
            assert HOSTILE not in html
    assert dashboard.browser(None).get("/live/overview").status_code == 401


def test_names_from_others_are_escaped_on_every_page(dashboard: DashboardService) -> None:
    add_api_rule(dashboard, endpoints=["/api/<script>"])
    dashboard.record(row(HOSTILE, refused=5, rule=HOSTILE), row(None, refused=1, ip=HOSTILE))
    dashboard.add_anomaly(HOSTILE, reason=HOSTILE, action=HOSTILE[:20])
    dashboard.add_request(HOSTILE, reason=HOSTILE, requested_tier=HOSTILE, note=HOSTILE)
    dashboard.use(HOSTILE, endpoint=HOSTILE, allowed=3)
    dashboard.problem = HOSTILE
    browser = dashboard.browser("operator")
    query = {"user": HOSTILE, "endpoint": HOSTILE, "by": HOSTILE}
    for path in PAGES:
        answer = browser.ask("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        assert "<script>" not in answer.text, path
    assert "&lt;script&gt;" in browser.get("/keys").text


def test_a_key_is_explained_and_unlocked_by_an_operator(dashboard: DashboardService) -> None:
    add_api_rule(dashboard)
    assert dashboard.limiter.check(cost=10, **ATTRIBUTES)
    viewer = dashboard.browser()
    shown = viewer.ask("GET", "/key", params=ATTRIBUTES).text
    assert "Refused" not in shown.partition("<main")[0]
    assert "10/minute" in shown
    assert "refuses" in shown
    assert viewer.post("/key/unlock", **ATTRIBUTES).status_code == 403
    assert not dashboard.limiter.peek(**ATTRIBUTES)
    operator = dashboard.browser("operator")
    asks = operator.post("/key/unlock", **ATTRIBUTES)
    assert asks.status_code == 303
    assert not dashboard.limiter.peek(**ATTRIBUTES)
    asking = operator.get(asks.headers["location"][len("/dashboard") :]).text
    assert "Forget the usage?" in asking
    assert "Forget the usage?" not in viewer.get(asks.headers["location"][len("/dashboard") :]).text
    answer = operator.post("/key/unlock", **ATTRIBUTES, confirmed="yes")
    assert answer.status_code == 303
    assert dashboard.limiter.peek(**ATTRIBUTES).remaining == 10
    assert "is unlocked" in operator.get(answer.headers["location"][len("/dashboard") :]).text
    assert operator.post("/key/unlock").status_code == 422
    actions = dashboard.rows("select action, actor from audit_log order by id desc limit 1")
    assert actions[0][0] == "counts.reset"
    assert "operator of the tests" in actions[0][1]


def test_an_anomaly_is_acknowledged_once(dashboard: DashboardService) -> None:
    dashboard.add_anomaly()
    assert "Acknowledge<" not in dashboard.browser().get("/anomalies").text
    assert dashboard.browser().post("/anomalies/1/acknowledge").status_code == 403
    operator = dashboard.browser("operator")
    assert operator.post("/anomalies/1/acknowledge").status_code == 303
    assert operator.post("/anomalies/1/acknowledge").status_code == 404
    assert operator.post(f"/anomalies/{10**30}/acknowledge").status_code == 404
    assert "user:42" not in operator.get("/anomalies").text
    assert "user:42" in operator.get("/anomalies?all=1").text
    entry = dashboard.rows("select action, target from audit_log")[-1]
    assert tuple(entry) == ("anomaly.acknowledge", "anomaly:1")


def test_a_request_is_approved_with_a_note(dashboard: DashboardService) -> None:
    add_api_rule(dashboard)
    dashboard.add_request("42")
    dashboard.add_request("43")
    viewer, operator = dashboard.browser(), dashboard.browser("operator")
    assert viewer.post("/requests/1", verdict="approve").status_code == 403
    assert operator.post("/requests/1", verdict="maybe").status_code == 422
    assert operator.post("/requests/1", verdict="approve", note="agreed").status_code == 303
    assert operator.post("/requests/2", verdict="reject").status_code == 303
    assert operator.post("/requests/2", verdict="approve").status_code == 409
    found = dashboard.rows("select status, note from upgrade_requests order by id")
    assert [tuple(each) for each in found] == [("APPROVED", "agreed"), ("REJECTED", None)]
    assert [tuple(each) for each in dashboard.rows("select user_id, tier from user_tiers")] == [
        ("42", "premium")
    ]


def test_the_pages_show_rules_and_what_shadow_rules_would_refuse(
    dashboard: DashboardService,
) -> None:
    add_api_rule(dashboard, shadow=True)
    for _ in range(12):
        dashboard.limiter.check(**ATTRIBUTES)
    browser = dashboard.browser()
    assert "free: 10/minute" in browser.get("/rules").text
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", browser.get("/shadow").text)
    assert cells == ["yes", "12", "2", "16.7 %"]


def test_the_page_of_a_key_shows_what_it_owes(dashboard: DashboardService) -> None:
    add_api_rule(dashboard)
    attributes = {"user": "42", "tier": "free", "endpoint": "/api/posts"}
    path = "/key?user=42&tier=free&endpoint=/api/posts"
    assert "owes" not in dashboard.browser().get(path).text
    dashboard.limiter.charge(cost=1000, **attributes)
    assert '<span class="tag bad">owes 100</span>' in dashboard.browser().get(path).text


@pytest.mark.parametrize(
    "query", ["ip=203.0.113.9", "endpoint=/api/posts", "api_key=k", "tier=free&method=GET"]
)
def test_a_key_without_a_user_is_explained(dashboard: DashboardService, query: str) -> None:
    """An address among the top keys is such a key."""
    add_api_rule(dashboard)
    page = dashboard.browser().get(f"/key?{query}")
    assert page.status_code == 200
    assert "Every rule that was considered" in page.text
    assert "Usage of this user" not in page.text


def test_the_page_of_rules_shows_likely_mistakes(dashboard: DashboardService) -> None:
    add_api_rule(dashboard, limits="10/minute")
    assert "Likely mistakes" not in dashboard.browser().get("/rules").text
    entry = {"user": "mallory", "expires_at": "2031-01-31"}
    answer = dashboard.ask("PUT", "/ratelimit/lists/block", json=[entry], headers=ANY)
    assert answer.status_code == 200, answer.text
    (likely,) = dashboard.ask("GET", "/ratelimit/rules").json()["advice"]
    assert "did you mean 'until'?" in likely["message"]
    shown = unescape(dashboard.browser().get("/rules").text)
    assert "Likely mistakes" in shown
    assert "rate_limit_lists row 1" in shown
    assert likely["message"] in shown


def test_rules_that_name_neither_endpoint_nor_attribute_are_shown(
    dashboard: DashboardService,
) -> None:
    rules = [
        {"id": "whole", "by": "global", "limits": "100/minute"},
        {"id": "many", "by": "user+ip", "limits": ["2/second", "quota 100/month"]},
        {"id": "free", "by": "ip", "endpoint": "/free", "limits": "unlimited"},
        {"id": "tiers", "by": "user", "endpoint": "/t", "limits": {"a": ["1/hour", "9/day"]}},
    ]
    answer = dashboard.ask("PUT", "/ratelimit/document", json={"rules": rules}, headers=ANY)
    assert answer.status_code == 200, answer.text
    page = dashboard.browser().get("/rules")
    assert page.status_code == 200
    cells = [unescape(each) for each in re.findall(r"<td[^>]*>([^<]*)</td>", page.text)]
    assert [cells[i : i + 3] for i in range(0, len(cells), 5)] == [
        ["global", "all", "100/minute"],
        ["user+ip", "all", "2/second, quota 100/month"],
        ["ip", "/free", "unlimited"],
        ["user", "/t", "a: 1/hour, 9/day"],
    ]


def test_usage_is_shown_as_a_chart_a_table_and_a_file(dashboard: DashboardService) -> None:
    add_api_rule(dashboard)
    dashboard.use("=1+1", hours_ago=1, allowed=1234, refused=6)
    browser = dashboard.browser()
    text = browser.get("/usage?user=%3D1%2B1&by=hour").text
    assert "1234 allowed, 6 refused" in text
    assert 'class="allowed-bar"' in text
    assert "1\u202f234" in text
    table = browser.get("/usage.csv?user=%3D1%2B1&by=day")
    assert table.headers["content-type"].startswith("text/csv")
    lines = table.text.splitlines()
    assert (len(lines), lines[-1]) == (31, "'=1+1,2026-01-31T00:00:00+00:00,1234,6")


def test_names_with_invisible_characters_are_told_apart(dashboard: DashboardService) -> None:
    disguised = "user\u202e24\u200b\x1b"
    dashboard.record(row(disguised, refused=5, rule="api"), row("user42", refused=1, rule="api"))
    browser = dashboard.browser()
    for html in (browser.get("/keys").text, browser.get("/live/keys").json()["parts"]["callers"]):
        assert r"user\u202e24\u200b\x1b" in html
        assert not set(disguised[4:]) & set(html) - set("24")
        assert "user%E2%80%AE24%E2%80%8B%1B" in html, "the link is to the caller itself"
    page = browser.get("/usage?user=%E2%80%AEx").text
    assert r">\u202ex<" in page.replace("Usage of ", ">")
    assert 'value="\u202ex"' in page, "the form is about the caller itself"


def test_the_second_that_has_not_ended_is_not_drawn(dashboard: DashboardService) -> None:
    for ago in range(1, 4):
        dashboard.record(row("42", allowed=7), ago=float(ago))
    now = dashboard.clock().timestamp()
    for part in (0.0, 0.3, 0.999):
        allowed = [each.allowed for each in seconds_of(dashboard.recent, now + part)]
        assert (len(allowed), allowed[-4:]) == (300, [0, 7, 7, 7])


def test_the_time_before_the_start_is_not_drawn_as_without_requests(
    dashboard: DashboardService,
) -> None:
    dashboard.record(row("42", allowed=7), ago=2.0)
    now = dashboard.clock().timestamp() + 0.5

    def allowed(started: float) -> list[int]:
        return [each.allowed for each in seconds_of(dashboard.recent, now, started)]

    assert allowed(now - 4) == [0, 0, 7, 0]
    assert allowed(now - 0.2) == []
    for long_ago in (now - 1000, now + 60):  # the latter after the clock went back
        assert (len(allowed(long_ago)), sum(allowed(long_ago))) == (300, 7)


def test_a_chart_of_a_short_past_begins_where_that_begins() -> None:
    short = line_chart([2, 4], [0, 2], "a chart", 5).svg
    assert 'class="allowed-line" points="450.0,80.0 600.0,0.0"' in short
    assert 'class="refused-area" points="450.0,160 450.0,160.0 600.0,80.0 600,160"' in short
    none = line_chart([], [], "a chart", 5)
    assert none.is_empty
    assert 'class="allowed-line" points=""' in none.svg


def test_the_overview_has_quantiles_of_the_times_of_checks(dashboard: DashboardService) -> None:
    assert "p99 of checks, 5 min</dt><dd>none</dd>" in dashboard.browser().get("/").text
    dashboard.dashboard.state = ServiceState({}, started=dashboard.clock().timestamp() - 200)
    dashboard.time((1e-3, 98), (0.01, 2), ago=12)  # counted when the second was over
    dashboard.time((1e-3, 4), ago=2)
    text = dashboard.browser().get("/").text
    assert "p50 of checks, 5 min</dt><dd>510 µs</dd>" in text
    assert "p99 of checks, 5 min</dt><dd>5.3 ms</dd>" in text
    assert "p50 and p99 of each ten seconds, at most 5.5 ms" in text
    assert "<span>10 ms</span><span>5 ms</span><span>0</span>" in text
    for ago, p50, p99 in ((0, "500 µs", "990 µs"), (10, "510 µs", "5.5 ms"), (20, "none", "none")):
        row = text.partition(f">{ago} to {ago + 10}</th>")[2].partition("</tr>")[0]
        assert f'"p50" class="n">{p50}</td>' in row
        assert f'"p99" class="n">{p99}</td>' in row


def test_a_chart_of_steps_has_gaps_where_nothing_is_known() -> None:
    drawn = step_chart({"a-line": [None, 1, 2, None, 4]}, "a chart", 6)
    assert 'd="M200.0,120.0H300.0V80.0H400.0M500.0,0.0H600.0"' in drawn.svg
    assert (drawn.top, drawn.is_empty) == (4, False)
    assert step_chart({"a-line": [None]}, "a chart", 6).is_empty


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "none"),
        (4e-6, "4 µs"),
        (8.44e-6, "8.4 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1 ms"),
        (0.0254, "25 ms"),
        (1, "1 s"),
        (12.34, "12.3 s"),
    ],
)
def test_a_time_is_shown_in_its_unit(seconds: float | None, text: str) -> None:
    assert short_time(seconds) == text


def test_a_caller_links_to_the_requests_that_were_refused_most(
    dashboard: DashboardService,
) -> None:
    dashboard.record(
        row("4&2", allowed=900, endpoint="/calm"),
        row("4&2", refused=5, rule="api", endpoint="/a b", tier=None),
        row("4&2", refused=9, rule="api"),
        row(None, allowed=1, endpoint=None, tier=None),
        row(None, allowed=7, endpoint="(other)", ip=None),
    )
    text = dashboard.browser().get("/keys").text
    links = re.findall(r'href="/dashboard/key\?([^"]+)"', text)
    assert links == ["user=4%262&amp;endpoint=%2Fapi%2Fposts&amp;tier=free", "ip=203.0.113.9"]
    assert "all others" in text


def test_the_overview_shows_what_runs_and_which_rules_were_refused(
    dashboard: DashboardService, tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{id: api, by: user, limits: 3/hour}]")
    rules = RuleFile(path)
    dashboard.dashboard.state = ServiceState({"rules": rules}, started=1_700_000_000)
    page = dashboard.browser().get("/").text
    assert f'<dt>Version</dt><dd class="small">{__version__}</dd>' in page
    assert "2023-11-14 22:13" in page
    assert "not in force" not in page
    path.write_text("rules: [{id: '<b>', limits: many}]")
    rules.refresh()
    page = dashboard.browser().get("/").text
    assert "The newest rules are not in force," in page
    assert "<b>" not in page
