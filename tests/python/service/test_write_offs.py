"""The log says that units were used and not charged, whoever reported them."""

from __future__ import annotations

import logging
from pathlib import Path

import plain_http
import pytest

pytest.importorskip("tidegate.server._native", reason="the system has no epoll")
from tidegate.server.service import Service
from tidegate.server.settings import Envoy, Settings

LIMITS = (
    "domain: d\ndescriptors: [{key: tokens, rate_limit: {unit: year, requests_per_unit: 10}}]\n"
)


def test_the_log_of_a_service_says_what_was_written_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the service's thread may log at any instant between two calls.
    monkeypatch.setattr("tidegate.server.recording._INTERVAL", 300.0)
    (tmp_path / "rules.yaml").write_text("rules: [{id: a, by: user, limit: 10/year}]\n")
    (tmp_path / "limits.yaml").write_text(LIMITS)
    service = Service(
        Settings(
            rules=tmp_path / "rules.yaml",
            database=f"sqlite:///{tmp_path / 'tidegate.db'}",
            checks={"listen": "127.0.0.1:0"},
            admin={"listen": "127.0.0.1:0"},
            envoy=Envoy(config=tmp_path / "limits.yaml"),
        )
    )
    service.start()
    try:
        host, port = service.address or ("", 0)

        def report(hits: int) -> None:
            entries = [{"key": "tokens", "value": "k"}]
            asked = {"domain": "d", "descriptors": [{"entries": entries, "hitsAddend": hits}]}
            plain_http.post(f"http://{host}:{port}/json", json=asked)
            service.recording.take()

        def reserve_and_commit(cost: int) -> None:
            calls = f"http://{host}:{port}/v1/ratelimit"
            asked = {"attributes": {"user": "42"}}
            token = plain_http.post(f"{calls}/reserve", json=asked).json()["reservation"]
            told = {"reservation": token, "cost": cost}
            assert plain_http.post(f"{calls}/commit", json=told).status_code == 200
            report(1)

        with caplog.at_level(logging.WARNING, "tidegate"):
            report(111)
            report(1)
            report(1)  # 3 in all
            reserve_and_commit(117)  # 11 in all: 7 of the rule's, and one more report
        assert service.admin_address is not None
        address = f"http://{host}:{service.admin_address[1]}/metrics"
        metrics = plain_http.get(address).text
    finally:
        service.stop()
    said = [record.message for record in caplog.records if "written off" in record.message]
    assert [text.split()[0] for text in said] == ["1", "2", "11"]
    assert "tidegate_envoy_written_off_total 4.0" in metrics
    assert "tidegate_written_off_total" in metrics
