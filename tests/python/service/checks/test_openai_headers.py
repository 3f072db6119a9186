"""The service sends the fields that clients of OpenAI read, where it is told to."""

from __future__ import annotations

from typing import Any

import tidegate as tg
from check_service import Service

RULES: Any = {
    "algorithm": "fixed-window",
    "rules": [
        {"id": "requests", "by": "ip", "limit": "60/minute", "counts": "requests"},
        {"id": "tokens", "by": "ip", "limit": "90000/10 minutes"},
    ],
}
FIRST = {
    "limit-requests": "60",
    "remaining-requests": "59",
    "reset-requests": "1m0s",
    "limit-tokens": "90000",
    "remaining-tokens": "89999",
    "reset-tokens": "10m0s",
}


def service(**options: Any) -> Service:
    now = 1_700_000_000 * 10**9
    return Service(RULES, clock=tg.ManualClock(now - now % (3600 * 10**9)), **options)


def openai(headers: Any) -> dict[str, str]:
    """The fields of the family, without their common beginning."""
    start = "x-ratelimit-"
    found = {name.lower(): value for name, value in dict(headers).items()}
    return {
        name[len(start) :]: value
        for name, value in found.items()
        if name.startswith(start) and name.endswith(("-requests", "-tokens"))
    }


def test_the_service_sends_them_to_callers_and_to_gateways() -> None:
    asked_for = service(openai_fields=True)
    _, headers, _ = asked_for.check({"ip": "192.0.2.1"})
    assert openai(headers) == FIRST
    asked = [("x-original-uri", "/"), ("x-original-method", "GET"), ("x-real-ip", "192.0.2.1")]
    _, headers, _ = asked_for.http("GET", "/v1/ratelimit/auth", asked)
    assert openai(headers) == {**FIRST, "remaining-requests": "58", "remaining-tokens": "89998"}


def test_they_are_not_sent_unless_asked_for() -> None:
    assert openai(service().check({"ip": "192.0.2.1"})[1]) == {}
