"""Runs `tidegate serve` as a process."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plain_http
from polling import eventually
from tidegate.rules.sql.connection import engine_of
from tidegate.server.records.api_tokens import create_token

if TYPE_CHECKING:
    from collections.abc import Sequence

RULES = """
tiers: [free, premium]
default_tier: free
rules:
  - {id: api, by: user, limits: {free: 3/hour, premium: 1000/hour}}
"""
SETTINGS = """
rules: rules.yaml
checks: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
usage: {interval: 0.1}
log: {format: json, access: true}
"""


class Served:
    """A running `tidegate serve`."""

    def __init__(
        self,
        directory: Path,
        settings: str = SETTINGS,
        *,
        program: Sequence[str] = ("-m", "tidegate"),
        **environment: str,
    ) -> None:
        self.directory = directory
        (directory / "tidegate.yaml").write_text(settings)
        self.log = directory / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, "serve"],
                cwd=directory,
                stderr=log,
                env={**os.environ, **environment},
            )

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True)]

    def logged(self, pattern: str) -> str:
        """Returns the first logged message that matches."""

        def find() -> str | None:
            assert self.process.poll() is None, self.log.read_text()
            messages = [each["message"] for each in self.records()]
            return next((each for each in messages if re.search(pattern, each)), None)

        found = eventually(find, 60)
        assert found is not None
        return found

    @property
    def checks(self) -> str:
        return "http://" + self.logged("checks are answered at").rpartition(" ")[2]

    @property
    def admin(self) -> str:
        return "http://" + self.logged("the admin API is at").rpartition(" ")[2]

    def check(self, user: str = "1", **fields: Any) -> dict[str, Any]:
        answer = plain_http.post(
            f"{self.checks}/v1/ratelimit/check",
            json={"userId": user, "endpoint": "/a", **fields},
        )
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    @property
    def database(self) -> str:
        return f"sqlite:///{self.directory / 'tidegate.db'}"

    def make_token(self, role: str) -> str:
        """Makes a token as `tidegate tokens create` does."""
        engine = engine_of(self.database, 60)
        with engine.begin() as connection:
            now = dt.datetime.now(dt.timezone.utc)
            return create_token(connection, "tests", role, expires_at=None, now=now).text

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def run(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate", "serve", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
