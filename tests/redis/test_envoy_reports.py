"""Envoy's reports of what was used are charged in full by every storage, through a real front."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from polling import run_threads
from redis_server import PATIENT, RedisServer
from tidegate import _core
from tidegate.limiter.storage.uri import open_store

if not sys.platform.startswith("linux"):
    pytest.skip("the service is for Linux", allow_module_level=True)

from tidegate.rules.document import read_text
from tidegate.server import _native
from tidegate.server.envoy_descriptors import Descriptors

MIDNIGHT = 1_700_006_400 * 10**9
ALGORITHMS = ["fixed-window", "sliding-window", "sliding-log", "token-bucket", "leaky-bucket"]


class Edge:
    """A service with one limit of tokens, and a connection to it."""

    def __init__(self, storage: str, clock: Any, algorithm: str, fields: str) -> None:
        limit = f"{{algorithm: {algorithm}, {fields}}}"
        text = f"domain: d\ndescriptors: [{{key: tokens, rate_limit: {limit}}}]"
        descriptors = Descriptors([read_text(text, "yaml", "<text>")])
        self.store = open_store(storage, {})
        native_clock = None if clock is None else _core.native_clock(clock)
        self.service = _native.EnvoyService(self.store._native(), native_clock)
        self.service.use(descriptors.tree)
        self.front = _native.Front()
        self.front.route(self.service)
        self.port = self.front.listen("127.0.0.1", 0)
        self.front.start()
        self.connection = self.connect()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def __call__(self, hits: int, key: str = "k", **more: Any) -> tuple[str, int]:
        """The code and what is left after so many hits of a descriptor's own."""
        (told,) = self.ask((key, hits), **more)
        return told

    def ask(
        self,
        *reports: tuple[str, int],
        connection: http.client.HTTPConnection | None = None,
        **more: Any,
    ) -> list[tuple[str, int]]:
        descriptors = [
            {"entries": [{"key": "tokens", "value": key}], "hitsAddend": hits, **more}
            for key, hits in reports
        ]
        asked = {"domain": "d", "descriptors": descriptors}
        headers = {"content-type": "application/json"}
        connection = connection or self.connection
        connection.request("POST", "/json", json.dumps(asked), headers)
        statuses = json.loads(connection.getresponse().read())["statuses"]
        return [(status["code"], status["limitRemaining"]) for status in statuses]

    def close(self) -> None:
        self.connection.close()
        self.front.stop()


@contextlib.contextmanager
def edge_of(
    storage: str, clock: Any, algorithm: str, fields: str = "limits: 1000/minute"
) -> Iterator[Edge]:
    edge = Edge(storage, clock, algorithm, fields)
    try:
        yield edge
    finally:
        edge.close()


def storage_of(kind: str, server: RedisServer, tmp_path: Path) -> str:
    return {
        "memory": "memory://",
        "shm": f"shm://{tmp_path}/counts?capacity=1000",
        "redis": server.uri(f"{PATIENT}&clock=client&ttl_margin=600"),
    }[kind]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", ["memory", "shm", "redis"])
def test_a_report_is_owed_and_paid(
    server: RedisServer, tmp_path: Path, kind: str, algorithm: str
) -> None:
    clock = tg.ManualClock(MIDNIGHT)
    with edge_of(storage_of(kind, server, tmp_path), clock, algorithm) as edge:
        assert edge(0) == ("OK", 1000)
        assert edge(5000) == ("OVER_LIMIT", 0)
        assert edge(1) == ("OVER_LIMIT", 0), "a report is charged in debt too: 4001"
        for _ in range(4):
            assert edge(0) == ("OVER_LIMIT", 0)
            clock.advance(60)
        assert edge(0) == ("OVER_LIMIT", 0)
        clock.advance(90)  # a sliding window that was full counts half
        code, left = edge(0)
        assert (code, left > 0) == ("OK", True)
        assert edge(2, isNegativeHits=True)[0] == "OK"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_an_hour_of_reports_uses_what_the_limit_grants(
    server: RedisServer, tmp_path: Path, kind: str, algorithm: str
) -> None:
    """The table of the issue: estimate 0, real 5,000, a limit of 1,000 a minute."""
    clock = tg.ManualClock(MIDNIGHT)
    used = 0
    with edge_of(storage_of(kind, server, tmp_path), clock, algorithm) as edge:
        for _ in range(600):
            if edge(0)[0] == "OK":
                edge(5000)
                used += 5000
            clock.advance(6)
    assert used <= 61_000 + 5000
    assert used >= 60_000 - 5000


def test_services_that_share_redis_see_what_each_was_told(server: RedisServer) -> None:
    uri = server.uri(PATIENT)
    with (
        edge_of(uri, None, "fixed-window", "limits: 1000/year") as one,
        edge_of(uri, None, "fixed-window", "limits: 1000/year") as other,
    ):
        assert one(0) == ("OK", 1000)
        for _ in range(3):
            one(300)
            other(300)
        assert one(0) == other(0) == ("OVER_LIMIT", 0)
        one(799, isNegativeHits=True)
        assert one(0) == ("OVER_LIMIT", 0)
        one(2, isNegativeHits=True)
        assert other(0) == ("OK", 1)


@contextlib.contextmanager
def edge_without_its_redis(server: RedisServer, options: str = "") -> Iterator[Edge]:
    """A service that counted 400 units in Redis, and found it gone at the next one."""
    uri = server.uri(f"timeout=0.2&connect_timeout=0.2&breaker_open=600{options}")
    with edge_of(uri, None, "fixed-window", "limits: 1000/year") as edge:
        assert edge(400) == ("OK", 600)
        server.kill()
        edge(1)
        assert edge.service.stats()["degraded"] == 1
        yield edge


def test_the_fallback_is_charged_while_redis_is_away(own_server: RedisServer) -> None:
    with edge_without_its_redis(own_server) as edge:
        assert edge(5000) == ("OVER_LIMIT", 0)
        assert edge(0) == ("OVER_LIMIT", 0)
        assert edge.service.stats()["degraded"] >= 3
        assert edge.service.stats()["written_off"] == 0


def test_a_policy_charges_nothing_and_says_so(own_server: RedisServer) -> None:
    with edge_without_its_redis(own_server, "&on_error=open") as edge:
        assert edge(5000)[0] == "OK"
        assert edge.service.stats()["written_off"] == 0


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ("limits: 10/minute", ("OVER_LIMIT", 0)),
        ("limits: 10/minute, reports: true", ("OVER_LIMIT", 0)),
        ("unit: minute, requests_per_unit: 10, reports: no", ("OVER_LIMIT", 10)),
    ],
)
def test_a_file_says_whether_hits_are_reports(fields: str, outcome: tuple[str, int]) -> None:
    with edge_of("memory://", tg.ManualClock(MIDNIGHT), "fixed-window", fields) as edge:
        assert edge(11) == outcome
        assert edge(0) == (("OK", 10) if outcome[1] else ("OVER_LIMIT", 0))


def test_reports_to_several_slots_of_a_cluster_are_charged(node: RedisServer) -> None:
    uri = f"redis+cluster://127.0.0.1:{node.port}?{PATIENT}"
    with edge_of(uri, None, "fixed-window", "limits: 10/year") as edge:
        keys = [f"k{number}" for number in range(20)]
        assert edge.ask(*((key, 15) for key in keys)) == [("OVER_LIMIT", 0)] * 20
        for key in keys:
            assert edge(5, key, isNegativeHits=True) == ("OK", 0)
            assert edge(1, key, isNegativeHits=True) == ("OK", 1)
        assert edge.service.stats()["degraded"] == 0


@pytest.mark.parametrize("kind", ["memory", "shm", "redis"])
def test_no_report_of_many_at_once_is_lost(server: RedisServer, tmp_path: Path, kind: str) -> None:
    storage = storage_of(kind, server, tmp_path)
    clock = tg.ManualClock(MIDNIGHT)
    with edge_of(storage, clock, "token-bucket", "limits: 1000/hour") as edge:

        def report() -> None:
            connection = edge.connect()
            for _ in range(50):
                edge.ask(("k", 7), ("other", 3), connection=connection)
            connection.close()

        run_threads([threading.Thread(target=report) for _ in range(8)])
        assert edge(1800, isNegativeHits=True) == ("OK", 0)
        assert edge(1, isNegativeHits=True) == ("OK", 1)
        assert edge(200, "other", isNegativeHits=True) == ("OK", 0)
        assert edge(1, "other", isNegativeHits=True) == ("OK", 1)
