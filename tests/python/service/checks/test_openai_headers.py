"""The service sends the header fields that clients of OpenAI read if `openai_fields` is set."""

from __future__ import annotations

from typing import Any

import tidegate as tg
from check_service import Service
from openai_headers import BOTH, openai

RULES: Any = {
    "algorithm": "fixed-window",
    "rules": [
        {"id": "requests", "by": "ip", "limit": "60/minute", "counts": "requests"},
        {"id": "tokens", "by": "ip", "limit": "90000/10 minutes"},
    ],
}


def service(**options: Any) -> Service:
    now = 1_700_000_000 * 10**9
    return Service(RULES, clock=tg.ManualClock(now - now % (3600 * 10**9)), **options)


def test_the_service_sends_them_to_callers_and_to_gateways() -> None:
    asked_for = service(openai_fields=True)
    _, headers, _ = asked_for.check({"ip": "192.0.2.1"})
    assert openai(headers) == BOTH
    asked = [("x-original-uri", "/"), ("x-original-method", "GET"), ("x-real-ip", "192.0.2.1")]
    _, headers, _ = asked_for.http("GET", "/v1/ratelimit/auth", asked)
    assert openai(headers) == {**BOTH, "remaining-requests": "58", "remaining-tokens": "89998"}


def test_they_are_not_sent_unless_asked_for() -> None:
    assert openai(service().check({"ip": "192.0.2.1"})[1]) == {}
