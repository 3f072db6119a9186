"""An attribute that a caller gives, no rule reads, and is near to one that rules read is said."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import tidegate as tg
from fastapi import FastAPI
from fastapi.testclient import TestClient
from tidegate.asgi import RateLimitMiddleware
from tidegate.rules import RuleSet

RULES: dict[str, Any] = {
    "rules": [
        {"id": "user", "by": "user", "limits": "5/minute"},
        {"id": "shop", "by": "shop_id", "when": {"country": "NO"}, "limits": "5/minute"},
    ],
    "block": [{"device": "stolen"}],
}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "no rule reads" in record.message]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("usr", "user"),
        ("User", "user"),
        ("usre", "user"),
        ("shopid", "shop_id"),
        ("shop_ids", "shop_id"),
        ("counrty", "country"),
        ("devise_", None),
        ("devices", "device"),
        ("endpont", "endpoint"),
        ("mehtod", "method"),
        ("ip_address", "ip"),
        ("tiers", "tier"),
    ],
)
def test_a_slip_of_an_attribute_is_said(
    given: str, meant: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES))
    caplog.clear()
    limiter.check(**{given: "42"})
    expected = f"a request was given {given!r}, which no rule reads; did you mean {meant!r}?"
    assert [text.startswith(expected) for text in said(caplog)] == [True] * (meant is not None)


def test_it_is_said_once_and_again_for_other_rules(caplog: pytest.LogCaptureFixture) -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES))
    for user in ("1", "2"):
        limiter.check(usr=user)
        limiter.peek(usr=user)
        asyncio.run(_check(limiter, user))
    assert len(said(caplog)) == 1
    limiter.use(RuleSet(RULES))
    limiter.check(usr="3")
    assert len(said(caplog)) == 2


async def _check(limiter: tg.RuleLimiter, user: str) -> None:
    await limiter.check_async(usr=user)


def test_names_of_other_things_are_not_said(caplog: pytest.LogCaptureFixture) -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES))
    limiter.check(user="1", plan="x", api_key="k", tenant="t", region="eu", host="h", use="u")
    # Known, and read by rules to come.
    declared = {**RULES, "attributes": ["user", "users", "shop_id", "country", "device"]}
    tg.Limiter(rules=RuleSet(declared)).check(user="1", users="2")
    assert said(caplog) == []


def test_an_attribute_of_middleware_is_said(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    limiter = tg.Limiter(rules=RuleSet(RULES))
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        attributes={"usr": lambda scope: "42", "user": lambda scope: None},
    )
    TestClient(app).get("/")
    assert len(said(caplog)) == 1


def test_a_log_handler_that_raises_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise OSError("the disk is full")

    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda info: told.append(info.exc_type))
    limiter = tg.Limiter(rules=RuleSet(RULES))
    log = logging.getLogger("tidegate")
    log.addFilter(refuse)
    try:
        assert limiter.check(usr="42")
    finally:
        log.removeFilter(refuse)
    assert told == [OSError]
