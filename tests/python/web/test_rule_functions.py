"""The functions of a service that requests by rules call: each is called once."""

from __future__ import annotations

import asyncio
from typing import Any

import tidegate as tg
from tidegate.rules import RuleSet
from tidegate.web.rule_requests import RuleRequests


def test_functions_are_asked_once_and_without_a_coroutine() -> None:
    asked: list[str] = []

    def answers(name: str, value: Any) -> Any:
        def function(request: Any) -> Any:
            asked.append(name)
            return value

        return function

    document = {"rules": [{"id": "user", "by": "user", "limit": "5/minute"}]}
    limiter = tg.Limiter(rules=RuleSet(document), clock=tg.ManualClock(1))

    def requests(**options: Any) -> Any:
        options.setdefault("attributes", {"user": answers("user", "ada")})
        return RuleRequests(limiter, headers=("ietf",), **options)

    scope = {"type": "http", "method": "GET", "path": "/", "client": ("192.0.2.1", 1)}
    flat = requests(exempt_when=answers("exempt", False), cost=answers("cost", 2))
    for remaining in (3, 1):
        assert flat.check(scope).decision.remaining == remaining
    assert asked == ["exempt", "cost", "user"] * 2
    asked.clear()
    assert not flat.check(scope).decision.allowed
    assert requests(exempt_when=answers("exempt", True)).check(scope) is None
    assert asked == ["exempt", "cost", "user", "exempt"]

    async def user(request: Any) -> Any:
        return answers("user", "bob")(request)

    asked.clear()
    checked = requests(
        attributes={"user": user, "tenant": answers("tenant", "a")}, cost=answers("cost", 2)
    ).check(scope)
    assert asyncio.run(checked).decision.remaining == 3
    assert asked == ["cost", "tenant", "user"]
