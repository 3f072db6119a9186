"""A value that no rule matches, and that is a slip of what rules name, is said by name."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import tidegate as tg
from fastapi import FastAPI
from fastapi.testclient import TestClient
from tidegate.asgi import RateLimitMiddleware
from tidegate.rules import RuleSet, Tiers

RULES: dict[str, Any] = {
    "default_tier": "free",
    "rules": [
        {"id": "login", "by": "ip", "endpoint": "/login", "limits": "5/minute"},
        {"id": "item", "by": "ip", "endpoint": "/items/{id}/price", "limits": "5/minute"},
        {"id": "search", "by": "ip", "endpoint": "search", "limits": "5/minute"},
        {"id": "all", "by": "user", "limits": {"premium": "9/minute", "free": "5/minute"}},
        {"id": "norway", "by": "tenant", "when": {"country": "NO"}, "limits": "5/minute"},
    ],
    "block": [{"networks": ["10.0.0.0/8"]}],
}


@pytest.fixture
def limiter() -> tg.RuleLimiter:
    return tg.Limiter(rules=RuleSet(RULES))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    start = "a request was given the "
    records = [record for record in caplog.records if record.message.startswith(start)]
    assert {record.levelno for record in records} <= {logging.WARNING}
    return [record.message[len(start) :] for record in records]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tier", "Premium", "did you mean 'premium'? Its requests have the default tier 'free'"),
        ("tier", "premium ", "did you mean 'premium'?"),
        ("tier", "premum", "did you mean 'premium'?"),
        ("endpoint", "login", "so rules for '/login' do not apply; expected '/login'"),
        ("endpoint", "items/7/price", "rules for '/items/{id}/price' do not apply"),
        ("endpoint", "GET /login", "expected endpoint='/login' and method='GET'"),
        ("endpoint", "/Login", "differs from the endpoint '/login' of rules in case"),
        ("endpoint", "/items/Ab/PRICE", "the endpoint '/items/{id}/price' of rules in case"),
        ("priority", "urgent", "changes nothing; expected 'critical', 'normal' or 'background'"),
        ("country", "no", "did you mean 'NO'?"),
        ("ip", "localhost", "which is no address, so no network and no list of addresses holds it"),
    ],
)
def test_a_slip_is_said_once(
    name: str,
    value: str,
    expected: str,
    limiter: tg.RuleLimiter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        limiter.check(user="1", **{name: value})
        limiter.peek(user="2", **{name: value})
        limiter.reset(user="2", **{name: value})
        asyncio.run(_check(limiter, **{name: value}))
    (message,) = said(caplog)
    assert message.startswith(f"{name} {value!r}, ")
    assert expected in message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("https://u:secret@a.example/login?x=secret", "'/login', which came in a URL; expected"),
        ("https://a.example?x=/secret", "'/', which came in a URL; expected the path alone"),
        ("/login?x=secret", "'/login', which came with a query, so rules for it do not apply"),
        ("/other?x=secret#secret", "'/other', which came with a query, so rules for it do not"),
        ("login?x=secret", "'login', so rules for '/login' do not apply; expected '/login'"),
        ("/Login?x=secret", "'/Login', which came with a query"),
        ("GET /login?x=secret", "'GET /login', which has a method; expected endpoint='/login'"),
    ],
)
def test_only_the_path_of_an_endpoint_is_said(
    value: str, expected: str, limiter: tg.RuleLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    limiter.check(user="1", endpoint=value)
    (message,) = said(caplog)
    assert message.startswith(f"endpoint {expected}")
    assert "secret" not in message


def test_a_url_after_a_method_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    rules = {"rules": [{"id": "a", "by": "user", "endpoint": "/**", "limit": "9/hour"}]}
    tg.Limiter(rules=RuleSet(rules)).check(user="1", endpoint="GET https://u:secret@a.example/x")
    assert "secret" not in caplog.text


async def _check(limiter: tg.RuleLimiter, **attributes: str) -> None:
    await limiter.check_async(**attributes)


def test_what_is_right_or_new_is_not_said(
    limiter: tg.RuleLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    for given in (
        {"endpoint": "/login/", "ip": "10.0.0.1", "tier": "premium", "priority": "critical"},
        {"endpoint": "/items/Ab7/price", "ip": "2001:db8::1", "tier": "gold", "country": "NO"},
        {"endpoint": "/exports", "country": "SE", "method": "get"},
        {"endpoint": "search", "tier": "trial"},
        {"endpoint": "export"},
        {"user": "NO", "tenant": "Premium"},
    ):
        limiter.check(**given)
    assert said(caplog) == []


def test_no_rule_names_a_path_or_a_tier(caplog: pytest.LogCaptureFixture) -> None:
    limiter = tg.Limiter(rules=RuleSet({"rules": [{"id": "a", "by": "endpoint", "limit": "9/s"}]}))
    limiter.check(endpoint="GET /login", tier="Premium")
    assert said(caplog) == []


def test_other_rules_say_it_again(
    limiter: tg.RuleLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    limiter.check(tier="Premium")
    limiter.use(RuleSet(RULES))
    limiter.check(tier="Premium")
    assert len(said(caplog)) == 2


def test_a_flood_of_values_is_bounded(
    limiter: tg.RuleLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(3000):
        limiter.check(endpoint=f"{i}/login")
        limiter.check(endpoint=f"GET /{i}")
    assert len(said(caplog)) == 1


def test_a_tier_of_a_table_is_said(caplog: pytest.LogCaptureFixture) -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES), tiers=Tiers({"42": "PREMIUM"}))
    limiter.check(user="42")
    assert len(said(caplog)) == 1


def test_middleware_says_what_the_service_gives_and_not_what_clients_send(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()
    app.add_middleware(
        RateLimitMiddleware,
        rules=RuleSet(RULES),
        attributes={
            "tier": lambda scope: "Premium",
            "user": lambda scope: None,
            "tenant": lambda scope: None,
            "country": lambda scope: None,
        },
    )
    TestClient(app).get("/Login?a=1")  # from the address "testclient"
    (message,) = said(caplog)
    assert message.startswith("tier 'Premium', ")
