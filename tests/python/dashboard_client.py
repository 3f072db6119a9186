"""A dashboard within the process, the decisions of the last five minutes, and a browser."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from typing import Any

import httpx
import sqlalchemy as sa
from admin_client import AdminService, Clock
from fastapi import FastAPI
from tidegate.rules.sql.service_tables import anomalies, upgrade_requests, usage_hours
from tidegate.server.admin.oidc import OidcError
from tidegate.server.call_times import Bucket, Taken
from tidegate.server.dashboard.mount import mount_dashboard
from tidegate.server.recording import Recorded, Row
from tidegate.server.records.audit import Actor

HOSTILE = '<script>alert("x")</script>'


def row(
    user: str | None, *, allowed: int = 0, refused: int = 0, rule: str | None = None, **more: Any
) -> Row:
    fields: dict[str, Any] = {"endpoint": "/api/posts", "tier": "free", "ip": "203.0.113.9"}
    fields |= {"refused_in_shadow": 0, "degraded": 0, "cost": allowed, **more}
    return Row(user=user, rule=rule, allowed=allowed, refused=refused, **fields)


class Issuer:
    """Accepts `user:42` as a token of user 42, and `viewer:42` as a token with a role."""

    def actor_of(self, token: str, remote: str | None, *, needs_role: bool = True) -> Actor:
        role, _, user = token.partition(":")
        if role not in ("user", "viewer", "operator") or (role == "user" and needs_role):
            raise OidcError("the token is not accepted")
        return Actor(f"oidc:{user}", role, remote, user)


class DashboardService(AdminService):
    """A dashboard. `recent` has the recorded decisions, `problem` is the storage's."""

    def __init__(self, url: str, clock: Clock, **options: Any) -> None:
        self.oidc = options.pop("oidc", None)
        super().__init__(url, clock, oidc=self.oidc, **options)
        self.recent: list[Recorded] = []
        self.times: list[Taken] = []
        self.problem: str | None = None
        self.numbers = {"usage_dropped": 0}
        self.admin_app = self.app
        self.app = FastAPI(openapi_url=None)
        self.dashboard = mount_dashboard(
            self.app,
            self.admin_app.state.admin,
            self.oidc,
            recent=lambda: self.recent,
            times=lambda: self.times,
            counters=lambda: self.numbers,
            ping=lambda: self.problem,
            clock=lambda: clock().timestamp(),
        )
        self.app.mount("/", self.admin_app)

    def record(self, *rows: Row, ago: float = 1.0) -> None:
        """Records decisions `ago` seconds before now."""
        self.recent.append(Recorded(self.clock().timestamp() - ago, list(rows)))

    def time(self, *buckets: tuple[float, int], ago: float = 1.0) -> None:
        """Keeps how long calls took, counted `ago` seconds before now."""
        taken = [Bucket(*each) for each in buckets]
        self.times.append(Taken(self.clock().timestamp() - ago, taken))

    def use(self, user: str, *, hours_ago: int = 0, endpoint: str = "/api", **counts: int) -> None:
        """Adds to the usage history."""
        hour = self.clock().replace(minute=0, second=0, microsecond=0)
        values = {"user_id": user, "endpoint": endpoint, "allowed": 0, "refused": 0, "cost": 0}
        values |= {"hour": hour - dt.timedelta(hours=hours_ago), **counts}
        self._insert(usage_hours, values)

    def add_anomaly(self, caller: str = "user:42", **more: Any) -> None:
        """Writes an anomaly that is not acknowledged."""
        values = {"time": self.clock(), "window_start": self.clock(), "caller": caller}
        values |= {"score": 7.5, "action": "block", "reason": "900 requests; 12 were expected"}
        self._insert(anomalies, {**values, **more})

    def add_request(self, user: str = "42", **more: Any) -> None:
        """Writes a request for another tier."""
        values = {"user_id": user, "requested_tier": "premium", "current_tier": "free"}
        values |= {"reason": "We grow.", "status": "PENDING", "created_at": self.clock()}
        self._insert(upgrade_requests, {**values, **more})

    def _insert(self, table: sa.Table, values: dict[str, Any]) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.insert(table), values)

    def browser(self, role: str | None = "viewer", *, base: str = "http://admin") -> Browser:
        """Returns a browser that has signed in with `role`, or has not if it is None."""
        found = Browser(self, base)
        if role is not None:
            answer = found.sign_in(self.tokens[role])
            assert answer.status_code == 303, answer.text
        return found


class Browser:
    """A browser that keeps cookies, and follows no redirect."""

    def __init__(self, service: DashboardService, base: str = "http://admin") -> None:
        self._app = service.app
        self._base = base
        self.cookies: dict[str, str] = {}

    def ask(
        self, method: str, path: str, form: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """Sends one request; `path` begins after /dashboard."""
        headers = dict(more.pop("headers", {}))
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(
                self._app,
                client=(more.pop("address", "127.0.0.1"), 1),
                raise_app_exceptions=False,
            )
            async with httpx.AsyncClient(transport=transport, base_url=self._base) as client:
                return await client.request(
                    method, "/dashboard" + path, data=form, headers=headers, **more
                )

        answer = asyncio.run(ask())
        for cookie in answer.headers.get_list("set-cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            if "Max-Age=0" in cookie:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        return answer

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)

    def csrf(self, path: str = "/") -> str:
        """Returns the secret of the forms of a page."""
        found = re.search(r'name="csrf" value="([^"]+)"', self.get(path).text)
        assert found is not None
        return found[1]

    def post(self, path: str, **form: str) -> httpx.Response:
        """Sends a form with the secret of this session."""
        return self.ask("POST", path, {"csrf": self.csrf(), **form})

    def sign_in(self, token: str, **more: Any) -> httpx.Response:
        form = {"csrf": self.csrf("/sign-in"), "token": token}
        return self.ask("POST", "/sign-in", form, **more)
