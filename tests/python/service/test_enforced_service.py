"""The whole service with enforced anomalies: checks, metrics, admin API and dashboard."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_client import AdminService, Clock, add_api_rule
from dashboard_client import HOSTILE, DashboardService, Issuer
from running_service import Running
from tidegate import ConfigurationError
from tidegate.server.anomalies.detector import Action, Anomaly
from tidegate.server.enforcement import Enforcement
from tidegate.server.recording import Recorded, Row
from tidegate.server.settings import read_settings

# Nobody is blocked without others to compare with.
OTHERS = {f"other {i}": 28 + i % 5 for i in range(25)}


class Flooded(Running):
    """A service that detects floods in the counts that a test gives it."""

    def __init__(self, directory: Path, **anomalies: Any) -> None:
        super().__init__(directory, anomalies=anomalies)
        self.minute = 0

    def flood(self, user: str) -> None:
        """Reports that the user suddenly sends thirty times as many requests."""
        watch = self.service.anomalies
        assert watch is not None
        # The instant is later than everything that the service itself records meanwhile.
        for count in [30] * 20 + [900] * 4:
            self.minute += 1
            counts = {user: count, **OTHERS}
            rows = [Row(each, "/a", None, None, None, n, 0, 0, 0, n) for each, n in counts.items()]
            watch(Recorded(4e9 + self.minute * 60.0, rows))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Flooded]:
    made = Flooded(tmp_path, enforce=True, interval=60.0)
    yield made
    made.service.stop()


def test_a_flood_is_blocked_until_an_operator_unlocks_it(running: Flooded) -> None:
    running.flood("42")
    answer = running.check("42")
    assert (answer["allowed"], answer["rule"]) == (False, "anomaly:block")
    assert 295 <= answer["retryAfter"] <= 300
    of_envoy = running.envoy("42")
    assert of_envoy["overallCode"] == "OVER_LIMIT"
    assert of_envoy["statuses"][0]["currentLimit"]["name"] == "anomaly:block"
    assert running.check("43")["allowed"]
    metrics = running.admin("GET", "/metrics").text
    assert "\ntidegate_anomaly_enforced 1.0\n" in metrics
    assert "\ntidegate_checks_blocked_total 1.0\n" in metrics
    assert "\ntidegate_envoy_blocked_total 1.0\n" in metrics
    assert "\ntidegate_envoy_descriptor_hits_total{" in metrics
    running.service.reload()
    assert not running.check("42")["allowed"], "a reload keeps it"
    operator = running.token("operator")
    (listed,) = running.admin("GET", "/v1/admin/anomalies/enforced", headers=operator).json()
    assert (listed["caller"], listed["action"]) == ("user:42", "block")
    assert listed["reason"].startswith("900 requests in 60 s, 30 are usual")
    unlocked = running.admin(
        "POST", "/v1/admin/anomalies/unlock", headers=operator, json={"caller": "user:42"}
    )
    assert unlocked.status_code == 200, unlocked.text
    assert running.check("42")["allowed"]
    assert running.envoy("42")["overallCode"] == "OK"
    audit = running.admin("GET", "/v1/admin/audit", headers=operator).json()["entries"][0]
    assert (audit["action"], audit["target"]) == ("anomaly.unlock", "user:42")
    assert "\ntidegate_anomaly_enforced 0.0\n" in running.admin("GET", "/metrics").text


def test_decisions_of_envoy_are_in_the_history(running: Flooded) -> None:
    running.envoy("42")
    running.service.recording.take()
    (row,) = [row for each in running.service.recording.recent() for row in each.rows]
    assert (row.user, row.endpoint, row.allowed) == ("42", "edge", 1)


def test_anomalies_are_only_reported_unless_asked_for(tmp_path: Path) -> None:
    running = Flooded(tmp_path, interval=60.0)
    try:
        running.flood("42")
        assert running.check("42")["allowed"]
        assert running.service.anomalies is not None
        assert running.service.anomalies.found == 1
        unlock = {"caller": "user:42"}
        operator = running.token("operator")
        answer = running.admin("POST", "/v1/admin/anomalies/unlock", headers=operator, json=unlock)
        assert (answer.status_code, "anomalies.enforce" in answer.text) == (409, True)
        assert running.admin("GET", "/v1/admin/anomalies/enforced", headers=operator).json() == []
    finally:
        running.service.stop()


ATTRIBUTES = {"user": "42", "tier": "free", "endpoint": "/api/posts"}


class _NoService:
    def set_penalties(self, penalties: object) -> None:
        pass


def blocking(caller: str, clock: Clock) -> Enforcement:
    enforcement = Enforcement([_NoService()], clock=lambda: clock().timestamp())
    enforcement.apply([Anomaly(caller, Action.BLOCK, 12.0, "900 requests", 900, 12.0, 0.0)])
    return enforcement


@pytest.fixture
def enforcing(service: AdminService, clock: Clock) -> Iterator[AdminService]:
    """An admin API while user:42 is blocked."""
    with AdminService(service.url, clock, enforcement=blocking("user:42", clock)) as made:
        add_api_rule(made)
        yield made


def listed(service: AdminService) -> list[str]:
    found = service.ask("GET", "/anomalies/enforced", role="viewer").json()
    return [each["caller"] for each in found]


def test_a_viewer_unlocks_nobody(enforcing: AdminService) -> None:
    unlock = {"caller": "user:42"}
    refused = enforcing.ask("POST", "/anomalies/unlock", unlock, role="viewer")
    assert refused.status_code == 403
    assert listed(enforcing) == ["user:42"]
    nobody = enforcing.ask("POST", "/anomalies/unlock", {"caller": "user:43"})
    assert (nobody.status_code, "neither throttled nor blocked" in nobody.text) == (404, True)
    for wrong in ({}, {"caller": ""}, {"caller": 42}, {"caller": "user:42", "why": "x"}):
        assert enforcing.ask("POST", "/anomalies/unlock", wrong).status_code == 422


def test_explain_says_that_the_caller_is_blocked(enforcing: AdminService) -> None:
    asked = {"attributes": ATTRIBUTES}
    said = enforcing.ask("POST", "/ratelimit/explain", asked, role="viewer").json()
    assert (said["allowed"], said["rule"]) == (False, "anomaly:block")
    assert said["retry_after"] == pytest.approx(300)
    assert said["enforced"]["reason"] == "900 requests"
    other = {"attributes": {**ATTRIBUTES, "user": "43"}}
    said = enforcing.ask("POST", "/ratelimit/explain", other, role="viewer").json()
    assert (said["allowed"], said["enforced"]) == (True, None)


def test_explain_lets_a_blocked_caller_on_an_allow_list_pass(enforcing: AdminService) -> None:
    entry = {"id": "vip", "user": "42"}
    added = enforcing.ask("POST", "/ratelimit/lists/allow", entry, role="operator")
    assert added.status_code == 201, added.text
    asked = {"attributes": ATTRIBUTES}
    said = enforcing.ask("POST", "/ratelimit/explain", asked, role="viewer").json()
    assert (said["allowed"], said["rule"], said["enforced"]) == (True, "vip", None)


def test_a_reset_of_a_key_unlocks_its_caller_too(enforcing: AdminService) -> None:
    answer = enforcing.ask("POST", "/ratelimit/reset", {"attributes": ATTRIBUTES}, role="operator")
    assert answer.status_code == 200, answer.text
    assert listed(enforcing) == []
    actions = [entry["action"] for entry in enforcing.audit()]
    assert actions[-2:] == ["counts.reset", "anomaly.unlock"]


def test_a_caller_is_not_unlocked_if_the_audit_log_cannot_be_written(
    enforcing: AdminService,
) -> None:
    enforcing.run("DROP TABLE audit_log")
    answer = enforcing.ask("POST", "/anomalies/unlock", {"caller": "user:42"})
    assert answer.status_code >= 500
    assert listed(enforcing) == ["user:42"]


def test_the_dashboard_shows_who_is_blocked_and_unlocks(
    service: AdminService, clock: Clock
) -> None:
    caller = f"user:{HOSTILE}"
    with DashboardService(service.url, clock, enforcement=blocking(caller, clock)) as dashboard:
        add_api_rule(dashboard)
        viewer, operator = dashboard.browser(), dashboard.browser("operator")
        text = viewer.get("/anomalies").text
        assert "They are throttled or blocked for a time." in text
        assert (HOSTILE in text, ">Unlock</button>" in text) == (False, False)
        key = f"/key?{urllib.parse.urlencode({**ATTRIBUTES, 'user': HOSTILE})}"
        assert "by anomaly:block; the request can pass in 5 min." in viewer.get(key).text
        assert ">Unlock</button>" in operator.get("/anomalies").text
        assert viewer.post("/anomalies/unlock", caller=caller).status_code == 403
        assert operator.post("/anomalies/unlock").status_code == 422
        assert operator.post("/anomalies/unlock", caller=caller).status_code == 303
        assert operator.post("/anomalies/unlock", caller=caller).status_code == 404
        assert "Throttled or blocked now" not in operator.get("/anomalies").text
        assert dashboard.audit()[-1]["action"] == "anomaly.unlock"


def test_a_user_is_told_of_a_block(service: AdminService, clock: Clock) -> None:
    enforcement = blocking("user:42", clock)
    with DashboardService(service.url, clock, enforcement=enforcement, oidc=Issuer()) as dashboard:
        add_api_rule(dashboard)

        def status(user: str) -> Any:
            headers = {"Authorization": f"Bearer user:{user}"}
            return dashboard.ask("GET", "/../dashboard/status", role=None, headers=headers).json()

        until = int(clock().timestamp()) + 300
        assert status("42")["enforced"] == {
            "action": "block",
            "until": until,
            "reason": "900 requests",
        }
        assert status("43")["enforced"] is None
        browser = dashboard.browser(None)
        assert browser.sign_in("user:42").status_code == 303
        said = "Your requests are refused for 5 min more: 900 requests."
        assert said in browser.get("/me").text
        enforcement.unlock("user:42")
        assert "Your requests are refused" not in browser.get("/me").text


def test_enforcing_needs_detection(tmp_path: Path) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text("anomalies: {enabled: false, enforce: true}\n")
    with pytest.raises(ConfigurationError, match=r"anomalies\.enabled is false; expected both"):
        read_settings(path, {})


@pytest.mark.parametrize(
    "wrong",
    ["enforce_seconds: 0", "enforce_most: 0", "exempt: ['42']", "exempt: ['user:']", "enforce: 1"],
)
def test_impossible_settings_are_refused(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text(f"anomalies: {{{wrong}}}\n")
    with pytest.raises(ConfigurationError, match="anomalies"):
        read_settings(path, {})


def test_a_reload_says_that_a_certificate_was_refused(
    running: Flooded, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def reload(self) -> None:
            raise ValueError("no PEM")

    caplog.set_level("INFO", "tidegate")
    running.service.reload()
    assert "the service was reloaded" in caplog.text
    caplog.clear()
    running.service._tls = Broken()
    running.service.reload()
    running.service._tls = None
    assert "the certificate was not replaced: no PEM" in caplog.text
    assert "the service keeps a certificate of before; all else was read again" in caplog.text
    assert "the service was reloaded" not in caplog.text
