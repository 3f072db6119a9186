"""The log names tiers and endpoints that callers of the service give and no rule matches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plain_http
import pytest
import tidegate as tg
from tidegate.rules import RuleSet
from tidegate.server.recording import Recorded, Row
from tidegate.server.service import Service
from tidegate.server.settings import Settings
from tidegate.server.slips import SlipLog, slips_of_headers

RULES = {
    "rules": [
        {"id": "login", "by": "user", "endpoint": "/login", "limit": "5/minute"},
        {"id": "all", "by": "user", "limits": {"premium": "9/minute", "*": "5/minute"}},
        {"id": "search", "by": "user", "endpoint": "search", "limit": "5/minute"},
    ]
}
RULES_BY_USER = {"rules": [{"id": "a", "by": "usr_id", "limit": "5/minute"}]}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    start = "a request was given the "
    found = [record.message for record in caplog.records if record.message.startswith(start)]
    return [text[len(start) :].partition(",")[0] for text in found]


def row(endpoint: str | None, tier: str | None) -> Row:
    return Row("u", endpoint, tier, None, None, 1, 0, 0, 0, 1)


def test_the_log_of_a_service_names_what_rest_callers_gave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{id: a, by: user, endpoint: /login, limits: {premium: 9/hour}}]\n")
    free = {"listen": "127.0.0.1:0"}
    database = f"sqlite:///{tmp_path / 'tidegate.db'}"
    service = Service(Settings(rules=path, database=database, checks=free, admin=free))
    service.start()
    try:
        host, port = service.address or ("", 0)
        asked: Any = {"attributes": {"user": "42", "tier": "Premium", "endpoint": "login"}}
        for _ in range(2):
            answer = plain_http.post(f"http://{host}:{port}/v1/ratelimit/check", json=asked)
            assert answer.status_code == 200, answer.text
            service.recording.take()
        assert service.admin_address is not None
        metrics = plain_http.get(f"http://{host}:{service.admin_address[1]}/metrics").text
    finally:
        service.stop()
    assert said(caplog) == ["tier 'Premium'", "endpoint 'login'"]
    assert 'tidegate_slips_total{attribute="tier"} 2.0' in metrics
    assert 'tidegate_slips_total{attribute="endpoint"} 2.0' in metrics


def test_each_is_said_once_for_each_version_of_the_rules(caplog: pytest.LogCaptureFixture) -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES))
    listener = SlipLog(limiter)
    for _ in range(2):
        listener(Recorded(1.0, [row("login", "premium "), row("login", None)]))
    assert said(caplog) == ["tier 'premium '", "endpoint 'login'"]
    limiter.use(RuleSet(RULES))
    listener(Recorded(1.0, [row(None, "premium ")]))
    assert said(caplog) == ["tier 'premium '", "endpoint 'login'", "tier 'premium '"]


def test_all_decisions_on_a_slip_are_counted() -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES))
    listener = SlipLog(limiter)
    good = Row("u", "/login", "premium", None, None, 50, 5, 0, 0, 1)
    slip = Row("u", "/login", "Premium", None, None, 3, 4, 0, 0, 1)
    for _ in range(2):
        listener(Recorded(1.0, [good, slip, row("login", None), row("login", None)]))
    assert listener.counts == {"tier": 14, "endpoint": 4}
    limiter.use(RuleSet({"rules": [{"id": "a", "by": "user", "limits": {"Premium": "9/hour"}}]}))
    listener(Recorded(1.0, [slip]))
    assert listener.counts == {"tier": 14, "endpoint": 4}, "the tier is right now"
    listener(Recorded(1.0, [row(None, f"Premium {' ' * i}") for i in range(1100)]))
    assert listener.counts["tier"] == 14 + 1000, "of so many texts the first are looked at"


def test_what_is_right_and_what_clients_write_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    rows = [row("/LOGIN", "premium"), row("search", "gold"), row("export", None), row(None, None)]
    SlipLog(tg.Limiter(rules=RuleSet(RULES)))(Recorded(1.0, rows))
    # The endpoints of Envoy's requests are domains.
    SlipLog(tg.Limiter(rules=RuleSet(RULES)), endpoints=False)(Recorded(1.0, [row("login", None)]))
    assert said(caplog) == []


def test_an_attribute_of_a_gateway_that_is_a_slip_is_a_warning_of_the_start(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{id: a, by: user, limit: 9/hour}]\n")
    checks: Any = {"listen": "127.0.0.1:0", "auth_headers": {"X-User": "usr"}}
    settings = Settings(rules=path, database=None, checks=checks, admin={"listen": None})
    service = Service(settings)
    try:
        assert service.warnings() == [
            "checks.auth_headers has the attribute 'usr' of X-User, which no rule reads; did you "
            "mean 'user'?"
        ]
    finally:
        service.close()


@pytest.mark.parametrize("attribute", ["user", "endpoint", "ip", "api_key", "usr_id"])
def test_an_attribute_of_a_gateway_that_may_be_meant_is_no_slip(attribute: str) -> None:
    rules = RuleSet({"attributes": ["usr_id"], **RULES_BY_USER})
    assert slips_of_headers(rules, {"X-One": attribute}) == []
    assert slips_of_headers(rules, None) == []
