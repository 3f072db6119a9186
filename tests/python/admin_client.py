"""An admin API within the process, its limiter, and a client with a token for each role."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import httpx
import sqlalchemy as sa
import tidegate as tg
from tidegate.rules.sql import SqlRules, SqlTiers
from tidegate.rules.sql.connection import engine_of
from tidegate.server.admin.app import create_admin
from tidegate.server.records.api_tokens import ROLES, create_token
from typing_extensions import Self

BASE = "/v1/admin"


class Clock:
    """The clock of the admin API; a call returns the time."""

    def __init__(self, at: dt.datetime) -> None:
        self.at = at

    def __call__(self) -> dt.datetime:
        return self.at

    def advance(self, **of: float) -> None:
        self.at += dt.timedelta(**of)


class AdminService:
    """An admin API; `ask` sends it a request with a token of a role."""

    def __init__(self, url: str, clock: Clock, **options: Any) -> None:
        self.url = url
        self.clock = clock
        self.engine = engine_of(url)
        # A refresh would come at any instant of a test.
        self.rules = SqlRules(url, interval=3600.0)
        self.tiers = SqlTiers(url)
        # The limiter has its own clock, so that limits do not refill while a test runs.
        self.limiter = tg.Limiter(rules=self.rules, tiers=self.tiers, clock=tg.ManualClock(10**18))
        self.changes: list[tuple[str, str | None]] = []
        with self.engine.begin() as connection:
            self.tokens = {role: self._token_in(connection, role) for role in ROLES}
        given: dict[str, Any] = {
            "rules": self.rules,
            "limiter": self.limiter,
            "tiers": self.tiers,
            "on_change": lambda what, key: self.changes.append((what, key)),
            "now": clock,
            **options,
        }
        self.app = create_admin(url, **given)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.rules.close()
        self.tiers.close()
        self.engine.dispose()

    def make_token(self, role: str, expires_at: dt.datetime | None = None) -> str:
        with self.engine.begin() as connection:
            return self._token_in(connection, role, expires_at)

    def _token_in(
        self, connection: sa.Connection, role: str, expires_at: dt.datetime | None = None
    ) -> str:
        return create_token(
            connection, f"{role} of the tests", role, expires_at=expires_at, now=self.clock()
        ).text

    def ask(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        role: str | None = "admin",
        token: str | None = None,
        headers: dict[str, str] | None = None,
        address: str = "127.0.0.1",
        **more: Any,
    ) -> httpx.Response:
        """Sends one request; `path` begins after /v1/admin."""
        given = dict(headers or {})
        if token is None and role is not None:
            token = self.tokens[role]
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        if json is not None:
            more["json"] = json

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(
                self.app, client=(address, 1), raise_app_exceptions=False
            )
            async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
                return await client.request(method, BASE + path, headers=given, **more)

        return asyncio.run(ask())

    def rows(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.exec_driver_sql(statement).all())

    def run(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(statement))

    def audit(self) -> list[Any]:
        """Returns all entries of the audit log, the oldest first."""
        answer = self.ask("GET", "/audit")
        assert answer.status_code == 200, answer.text
        found: list[Any] = answer.json()["entries"]
        return found[::-1]


API_RULE: dict[str, Any] = {
    "id": "api",
    "by": "user",
    "endpoints": ["/api/*"],
    "limits": {"free": "10/minute", "premium": "100/minute"},
}


def add_api_rule(service: AdminService, **fields: Any) -> None:
    """Adds the rule ``api`` with tiers."""
    answer = service.ask("POST", "/ratelimit/rules", {"rules": [{**API_RULE, **fields}]})
    assert answer.status_code == 201, answer.text
