"""The dashboard in a real Chromium: accessible, on any screen, with the keyboard alone.

With TIDEGATE_SCREENSHOTS=directory, screenshots of all pages are written there.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_client import Clock, add_api_rule
from dashboard_client import HOSTILE, DashboardService, Issuer, row
from tidegate.server.admin_server import AdminServer
from tidegate.server.settings import Address

_WHY = "playwright is not installed, such as for Python 3.9 and 3.10"
sync_api = pytest.importorskip("playwright.sync_api", reason=_WHY)
axe_api = pytest.importorskip("axe_playwright_python.sync_playwright", reason=_WHY)
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

PAGES = {
    "sign-in": "/sign-in",
    "overview": "/",
    "keys": "/keys",
    "key": "/key?user=42&tier=free&endpoint=/api/posts",
    "rules": "/rules",
    "shadow": "/shadow",
    "anomalies": "/anomalies",
    "requests": "/requests",
    "usage": "/usage?user=42&by=hour",
    "quotas": "/quotas?user=42",
    "top-ups": "/quotas",
    "me": "/me?by=hour",
    "error": "/nothing",
}
WIDTHS = {"phone": 320, "desktop": 1280}
SCHEMES = ("light", "dark")


class Site:
    """A dashboard with content on every page, and its address."""

    def __init__(self, service: DashboardService, url: str) -> None:
        self.service = service
        self.url = url


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Site]:
    # As long as paths are, since the page of rules shows it.
    path = tmp_path_factory.mktemp("a_dashboard_whose_database_has_a_long_name") / "service.db"
    shutil.copyfile(migrated_sqlite, path)
    clock = Clock(dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc))
    with DashboardService(f"sqlite:///{path}", clock, oidc=Issuer()) as service:
        _fill(service)
        server = AdminServer(service.app, None)
        host, port = server.start(Address(host="127.0.0.1", port=0))
        yield Site(service, f"http://{host}:{port}/dashboard")
        server.stop()


def _fill(service: DashboardService) -> None:
    add_api_rule(service)
    add_api_rule(service, id="search", endpoints=["/search/**"], shadow=True)
    add_api_rule(service, id="sign-in", endpoints=["/login"], by="ip", limits="5/minute")
    quotas = {"free": "quota 10000/month rollover 5000", "premium": "quota 100000/month"}
    add_api_rule(service, id="monthly", endpoints=["/paid/**"], limits=quotas)
    paid = {"user": "42", "tier": "free", "endpoint": "/paid/report"}
    service.limiter.check(cost=8300, **paid)
    until = dt.datetime(2030, 1, 31, tzinfo=dt.timezone.utc)
    service.limiter.top_up(paid, 500, expires_at=until, priority=1)
    service.limiter.top_up(paid, 20)
    asked = {"user": "42", "tier": "free", "endpoint": "/api/posts"}
    for _ in range(12):
        service.limiter.check(**asked)
        service.limiter.check(**{**asked, "endpoint": "/search/all"})
    for ago in range(299, -1, -1):
        wave = 40 + int(25 * math.sin(ago / 20)) + ago % 7
        flood = 30 if 90 < ago < 120 else ago % 3
        service.record(
            row("42", allowed=wave, refused=flood, rule="api"),
            row(None, allowed=ago % 5, refused=ago % 11 == 0, rule="sign-in"),
            row(HOSTILE, allowed=1),
            ago=ago,
        )
    for hour in range(48):
        service.use("42", hours_ago=hour, allowed=300 + 40 * (hour % 9), refused=hour % 5 * 20)
    service.use("42", endpoint="/search/all", allowed=77)
    service.add_anomaly()
    service.add_anomaly("ip:203.0.113.9", score=3.1, action="throttle", reason="300; 90 expected")
    service.add_request("42")
    service.add_request("43", status="REJECTED", note="Use the free tier.", decided_by="token:2")
    service.run("insert into user_tiers (user_id, tier) values ('42', 'free'), ('77', 'free')")
    service.run(
        "insert into user_quotas values ('42', 'monthly', "
        '\'{"limit": 10000, "period": "month"}\', \'2026-01-30 10:00:00\')'
    )
    service.run(
        "insert into quota_top_ups (user_id, quota, units, created_at, reason) "
        "values ('42', 'monthly', 5000, '2026-01-30 10:00:00', 'a launch')"
    )
    service.run(
        "insert into rate_limit_violations (endpoint, timestamp, attempted_count, caller) "
        f"values ('/api', '{dt.datetime.now(dt.timezone.utc):%Y-%m-%d %H:%M:%S}', 40, 'user:42')"
    )


@pytest.fixture(scope="module")
def chromium(site: Site) -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


# The token is the issuer's, so that there is a page about its user too.
OPERATOR = "operator:42"


def _page(chromium: Any, site: Site, token: str | None = OPERATOR, **options: Any) -> Any:
    """Returns a page that has signed in. Fails the test if the console has an error."""
    context = chromium.new_context(**options)
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.errors = []
    page.on("console", lambda said: said.type == "error" and page.errors.append(said.text))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    if token is not None:
        page.goto(f"{site.url}/sign-in")
        page.fill("#token", token)
        page.click("button[type=submit]")
        page.wait_for_url(f"{site.url}/me" if token.startswith("user") else f"{site.url}/")
    return page


@pytest.mark.parametrize(("width", "scheme"), list(itertools.product(WIDTHS, SCHEMES)))
def test_each_page_is_accessible_and_fits(
    chromium: Any, site: Site, width: str, scheme: str
) -> None:
    size = {"width": WIDTHS[width], "height": 800}
    page = _page(chromium, site, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    for name, path in PAGES.items():
        page.goto(site.url + path)
        _check_sight(page, name, width, scheme)
    # The console reports that there is no such page.
    assert [error for error in page.errors if "404" not in error] == []
    page.context.close()


def _check_sight(page: Any, name: str, width: str, scheme: str) -> None:
    """Checks that the page is accessible, and no wider than the window."""
    for summary in page.query_selector_all("summary"):
        summary.click()
    found = axe_api.Axe().run(page, options={"resultTypes": ["violations"]})
    problems = [
        (each["id"], node["html"], node.get("failureSummary"))
        for each in found.response["violations"]
        for node in each["nodes"]
    ]
    assert problems == [], f"{name}, {width}, {scheme}"
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= WIDTHS[width], f"{name} is {wide} px wide on a {width}"
    cut = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter("
        "each => each.scrollWidth > each.clientWidth).map(each => each.innerText)"
    )
    assert cut == [], f"tables of {name} do not fit on a {width}"
    for summary in page.query_selector_all("summary"):
        summary.click()
    if "TIDEGATE_SCREENSHOTS" in os.environ:
        shot = Path(os.environ["TIDEGATE_SCREENSHOTS"]) / f"{name}-{width}-{scheme}.png"
        page.screenshot(path=shot, full_page=True)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_user_without_a_role_sees_one_page(chromium: Any, site: Site, width: str) -> None:
    size = {"width": WIDTHS[width], "height": 800}
    page = _page(chromium, site, "user:43", viewport=size, reduced_motion="reduce")
    assert page.get_by_role("navigation").get_by_role("link").all_inner_texts() == ["My usage"]
    _check_sight(page, "user", width, "light")
    assert page.errors == []
    page.context.close()


def test_refusals_of_a_user_appear_without_a_reload(chromium: Any, site: Site) -> None:
    page = _page(chromium, site, "user:43")
    before = page.inner_text("#refusals")
    site.service.record(row("43", refused=77, rule="api", endpoint="/api/live"), ago=1)
    try:
        page.wait_for_function(
            "before => document.getElementById('refusals').innerText !== before", arg=before
        )
        assert "/api/live" in page.inner_text("#refusals")
    finally:
        site.service.recent.pop()
    assert page.errors == []
    page.context.close()


def test_units_are_added_from_the_page(chromium: Any, site: Site) -> None:
    page = _page(chromium, site, reduced_motion="reduce")
    page.goto(f"{site.url}/quotas?user=77")
    page.get_by_label("Units").fill("250")
    page.get_by_label("Last day (UTC)").fill("2030-02-28")
    page.get_by_label("Why").fill("a test")
    page.get_by_role("button", name="Add units").click()
    page.get_by_text("The units were added.").wait_for()
    assert "2030-03-01 00:00:00" in page.inner_text("#now")
    assert "250" in page.inner_text("#now")
    assert page.errors == []
    page.context.close()


def test_the_check_finds_inaccessible_pages(chromium: Any) -> None:
    page = chromium.new_page()
    page.set_content("<title>t</title><main><h1>t</h1><input></main>")
    found = axe_api.Axe().run(page)
    assert "label" in [each["id"] for each in found.response["violations"]]
    page.close()


def test_the_pages_work_with_the_keyboard_alone(chromium: Any, site: Site) -> None:
    page = _page(chromium, site, token=None, reduced_motion="reduce")
    page.goto(f"{site.url}/sign-in")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    page.keyboard.type(site.service.tokens["operator"])
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site.url}/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto(f"{site.url}/requests")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.value") == "approve":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert (page.evaluate("document.activeElement.value"), outline) == ("approve", "solid")
    assert page.errors == []
    page.context.close()


def test_the_overview_updates_itself_and_can_be_paused(chromium: Any, site: Site) -> None:
    page = _page(chromium, site)
    before = page.inner_text("#figures")
    site.service.record(row("42", allowed=100_000), ago=1)
    try:
        page.wait_for_function(
            "before => document.getElementById('figures').innerText !== before", arg=before
        )
        page.get_by_role("button", name="Pause").click()
        assert page.get_by_role("status").inner_text() == "Paused."
    finally:
        site.service.recent.pop()
    assert page.errors == []
    page.context.close()


def test_updates_are_paused_for_visitors_who_prefer_reduced_motion(
    chromium: Any, site: Site
) -> None:
    page = _page(chromium, site, reduced_motion="reduce")
    assert page.get_by_role("button", name="Continue").is_visible()
    assert page.get_by_role("status").inner_text() == "Paused."
    page.context.close()


def test_the_pages_can_be_read_without_scripts(chromium: Any, site: Site) -> None:
    page = _page(chromium, site, java_script_enabled=False)
    for name, path in PAGES.items():
        page.goto(site.url + path)
        assert page.locator("h1").count() == 1, name
    page.goto(site.url + "/")
    assert page.locator("#chart svg").count() == 1
    assert not page.get_by_role("button", name="Pause").is_visible()
    page.context.close()


def test_markup_in_a_name_is_shown_as_text(chromium: Any, site: Site) -> None:
    page = _page(chromium, site)
    page.on("dialog", lambda dialog: page.errors.append(dialog.message))
    page.goto(f"{site.url}/keys")
    with page.expect_response(lambda answer: answer.url.endswith("/live/keys")):
        pass
    assert HOSTILE in page.inner_text("#callers")
    assert page.errors == []
    page.context.close()


def test_no_request_leaves_the_service(chromium: Any, site: Site) -> None:
    page = _page(chromium, site)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in PAGES.values():
        page.goto(site.url + path)
    assert asked
    assert [url for url in asked if not url.startswith(f"{site.url}/")] == []
    page.context.close()
