"""The end of telemetry while its collector answers, fails or hangs."""

from __future__ import annotations

import threading

import pytest
from tidegate.server import telemetry
from tidegate.server.telemetry import shut_down


class Provider:
    """Its shutdown() ends when the collector has answered, or fails with `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.answered = threading.Event()
        self._error = error

    def shutdown(self) -> None:
        if self._error is not None:
            raise self._error
        self.answered.wait(60)


def test_a_collector_that_hangs_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "_PATIENCE", 0.01)
    providers = [Provider(), Provider()]
    try:
        assert not shut_down(providers)
        assert caplog.text.count("the collector does not answer") == 1
    finally:
        for provider in providers:
            provider.answered.set()


def test_a_collector_that_answers_gets_the_last_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_PATIENCE", 60.0)
    provider = Provider()
    provider.answered.set()
    assert shut_down([provider])


def test_a_collector_that_fails_does_not_keep_others_from_being_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "_PATIENCE", 60.0)
    provider = Provider()
    provider.answered.set()
    assert shut_down([Provider(RuntimeError("no route")), provider])
    assert "could not be sent: no route" in caplog.text
