"""A service within the process of the tests."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import httpx
import plain_http
from tidegate.rules.sql.connection import engine_of
from tidegate.server.records.api_tokens import create_token
from tidegate.server.service import Service
from tidegate.server.settings import Settings

RULES = "rules: [{id: api, by: user, limit: 1000/hour}]\n"
LIMITS = """
domain: edge
descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000}}]
"""


class Running:
    """A service within the process, on its own ports."""

    def __init__(
        self, directory: Path, *, limits: str = LIMITS, envoy: Any = None, **more: Any
    ) -> None:
        (directory / "rules.yaml").write_text(RULES)
        (directory / "limits.yaml").write_text(limits)
        self.url = f"sqlite:///{directory / 'tidegate.db'}"
        free = {"listen": "127.0.0.1:0"}
        settings = Settings(
            rules=directory / "rules.yaml",
            database=self.url,
            checks=free,
            admin=free,
            envoy={"config": directory / "limits.yaml", **(envoy or {})},
            **more,
        )
        self.service = Service(settings)
        self.service.start()

    def post(self, path: str, body: Any) -> Any:
        host, port = self.service.address or ("", 0)
        return plain_http.post(f"http://{host}:{port}{path}", json=body).json()

    def check(self, user: str) -> Any:
        return self.post("/v1/ratelimit/check", {"userId": user, "endpoint": "/a"})

    def envoy(self, user: str) -> Any:
        return self.descriptors({"user": user})

    def descriptors(self, entries: dict[str, str]) -> Any:
        """Sends a request of Envoy with a descriptor for each entry."""
        descriptors = [
            {"entries": [{"key": key, "value": value}]} for key, value in entries.items()
        ]
        return self.post("/json", {"domain": "edge", "descriptors": descriptors})

    def admin(self, method: str, path: str, **more: Any) -> httpx.Response:
        host, port = self.service.admin_address or ("", 0)
        return plain_http.request(method, f"http://{host}:{port}{path}", **more)

    def token(self, role: str) -> dict[str, str]:
        engine = engine_of(self.url)
        with engine.begin() as connection:
            now = dt.datetime.now(dt.timezone.utc)
            token = create_token(connection, role, role, expires_at=None, now=now).text
        engine.dispose()
        return {"Authorization": f"Bearer {token}"}
