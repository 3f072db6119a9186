"""Starts the `tidegate serve` under test with its rules, and measures its use of resources."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import processes
from polling import eventually

from soak.model import LIMIT, PERIOD_DAYS

# The time-outs are far beyond those of a service: a slow machine must not look like a fault.
STORAGE_OPTIONS = "timeout=2&connect_timeout=2&breaker_open=0.5"
SETTINGS = """
rules: rules.yaml
checks: {listen: "127.0.0.1:0", loops: 2, request_timeout: 3}
admin: {listen: "127.0.0.1:0"}
usage: {interval: 0.5}
anomalies: {interval: 10, capacity: 10000}
log: {format: json}
drain: 5
"""
RULES = """
rules:
  - {{id: api, by: user, endpoint: /api/**, limit: {limit}/{days} days}}
  - {{id: probe, by: user, endpoint: /probe, limit: {probe}/second}}
"""
FIRST_PROBE = 1000


class Usage(NamedTuple):
    """The resources that the process uses."""

    resident: int
    descriptors: int
    threads: int


class Service:
    """A running `tidegate serve` with its directory."""

    def __init__(self, directory: Path, redis: int, database: str) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.probe_limit = FIRST_PROBE
        self.write_rules()
        (directory / "tidegate.yaml").write_text(SETTINGS)
        variables = {
            "TIDEGATE_STORAGE": f"redis://127.0.0.1:{redis}/0?{STORAGE_OPTIONS}",
            "TIDEGATE_DATABASE": database,
        }
        with self.log.open("w") as log:
            self.process = processes.start(
                [sys.executable, "-m", "tidegate", "serve"],
                cwd=directory,
                stderr=log,
                env={**os.environ, **variables},
            )
        self.checks = self._address("checks are answered at")
        self.admin = self._address("the admin API is at")

    def _address(self, text: str) -> tuple[str, int]:
        def find() -> re.Match[str] | None:
            assert self.process.poll() is None, self.log.read_text()
            return re.search(rf"{text} ([\d.]+):(\d+)", self.log.read_text())

        found = eventually(find, 60)
        assert found is not None
        return found[1], int(found[2])

    def write_rules(self, text: str | bytes | None = None) -> None:
        """Writes the file of rules: the first ones, or `text`."""
        if text is None:
            text = RULES.format(limit=LIMIT, days=PERIOD_DAYS, probe=self.probe_limit)
        new = self.directory / "rules.new"
        new.write_bytes(text if isinstance(text, bytes) else text.encode())
        new.rename(self.directory / "rules.yaml")

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def get(self, path: str) -> tuple[int, bytes]:
        """Sends a GET to the admin port."""
        connection = http.client.HTTPConnection(*self.admin, timeout=20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def probe(self) -> dict[str, Any]:
        """Returns the answer to a check over a new connection."""
        connection = http.client.HTTPConnection(*self.checks, timeout=20)
        try:
            connection.request(
                "POST",
                "/v1/ratelimit/check",
                json.dumps({"userId": "probe", "endpoint": "/probe"}),
                {"content-type": "application/json"},
            )
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, (response.status, body)
            found: dict[str, Any] = json.loads(body)
            return found
        finally:
            connection.close()

    def count(self, name: str) -> int:
        """Returns a counter of the metrics, such as ``front_floods``."""
        status, body = self.get("/metrics")
        assert status == 200, body
        found = re.search(rf"^tidegate_{name}(?:_total)? (\S+)$", body.decode(), re.MULTILINE)
        assert found is not None, name
        return int(float(found[1]))

    def usage(self) -> Usage:
        process = Path("/proc", str(self.process.pid))
        status = (process / "status").read_text()
        numbers = {
            name: int(re.findall(rf"^{name}:\s+(\d+)", status, re.MULTILINE)[0])
            for name in ("VmRSS", "Threads")
        }
        descriptors = len(os.listdir(process / "fd"))
        return Usage(numbers["VmRSS"] << 10, descriptors, numbers["Threads"])

    def exceptions(self) -> list[str]:
        """Returns the last line of each exception that was logged."""
        found = []
        for line in self.log.read_text().splitlines():
            record = json.loads(line) if line.startswith("{") else {"exception": line}
            if "exception" in record:
                found.append(f"{record.get('message')}: {record['exception'].splitlines()[-1]}")
        return found

    def end(self) -> int:
        """Ends the service with SIGTERM, and returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            self.kill()

    def kill(self) -> None:
        processes.stop(self.process)
