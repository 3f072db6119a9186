"""The log names tiers and endpoints that callers of the service give and no rule matches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import tidegate as tg
from tidegate.rules import RuleSet
from tidegate.server.recording import Recorded, Row
from tidegate.server.service import Service
from tidegate.server.settings import Settings
from tidegate.server.slips import SlipLog

RULES = {
    "rules": [
        {"id": "login", "by": "user", "endpoint": "/login", "limit": "5/minute"},
        {"id": "all", "by": "user", "limits": {"premium": "9/minute", "*": "5/minute"}},
        {"id": "search", "by": "user", "endpoint": "search", "limit": "5/minute"},
    ]
}


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
            answer = httpx.post(f"http://{host}:{port}/v1/ratelimit/check", json=asked, timeout=60)
            assert answer.status_code == 200, answer.text
            service.recording.take()
    finally:
        service.stop()
    assert said(caplog) == ["tier 'Premium'", "endpoint 'login'"]


def test_each_is_said_once_for_each_version_of_the_rules(caplog: pytest.LogCaptureFixture) -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES))
    listener = SlipLog(limiter)
    for _ in range(2):
        listener(Recorded(1.0, [row("login", "premium "), row("login", None)]))
    assert said(caplog) == ["tier 'premium '", "endpoint 'login'"]
    limiter.use(RuleSet(RULES))
    listener(Recorded(1.0, [row(None, "premium ")]))
    assert said(caplog) == ["tier 'premium '", "endpoint 'login'", "tier 'premium '"]


def test_what_is_right_and_what_clients_write_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    rows = [row("/LOGIN", "premium"), row("search", "gold"), row("export", None), row(None, None)]
    SlipLog(tg.Limiter(rules=RuleSet(RULES)))(Recorded(1.0, rows))
    # The endpoints of Envoy's requests are domains.
    SlipLog(tg.Limiter(rules=RuleSet(RULES)), endpoints=False)(Recorded(1.0, [row("login", None)]))
    assert said(caplog) == []
