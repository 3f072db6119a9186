"""How long checks take, as metrics and of late."""

from __future__ import annotations

import math
from pathlib import Path

import check_wire as wire
import grpc
import plain_http
import pytest
from metrics import exposed, of
from prometheus_client import CollectorRegistry, generate_latest
from tidegate.server.call_times import Bucket, CallTimes, RecentTimes, quantile
from tidegate.server.metrics import TimesCollector
from tidegate.server.service import Service
from tidegate.server.settings import Settings


def buckets(*counts: int) -> list[Bucket]:
    return [Bucket(bound, count) for bound, count in zip((0.001, 0.01, math.inf), counts)]


def test_a_quantile_lies_within_its_bucket() -> None:
    assert quantile([buckets(50, 50, 0)], 0.25) == pytest.approx(0.0005)
    assert quantile([buckets(50, 0, 0), buckets(0, 50, 0)], 0.75) == pytest.approx(0.0055)
    assert quantile([buckets(0, 9, 0)], 0.0) == pytest.approx(0.001)
    assert quantile([buckets(1, 1, 8)], 0.5) == 0.01, "the last bound that is finite"
    assert quantile([buckets(0, 0, 0)], 0.5) is None
    assert quantile([], 0.5) is None


def test_recent_times_are_those_since_the_time_before() -> None:
    now = 1000.0
    total = [CallTimes("checks", "grpc", 0.0, buckets(2, 1, 0))]
    recent = RecentTimes(lambda: total, clock=lambda: now)
    recent.take()
    recent.take()  # nothing came
    total[0] = CallTimes("checks", "grpc", 0.0, buckets(2, 5, 0))
    total.append(CallTimes("envoy", "grpc", 0.0, buckets(3, 0, 1)))
    now = 1001.0
    recent.take()
    assert [tuple(each) for each in recent.recent()] == [
        (1000.0, buckets(2, 1, 0)),
        (1001.0, buckets(3, 4, 1)),
    ]
    now = 1300.5
    assert [each.at for each in recent.recent()] == [1001.0]


def test_metrics_have_a_histogram_for_each_service_and_protocol() -> None:
    registry = CollectorRegistry()
    registry.register(TimesCollector(lambda: [CallTimes("envoy", "grpc", 1.5, buckets(3, 4, 1))]))
    found = exposed(generate_latest(registry).decode())
    labels = {"service": "envoy", "protocol": "grpc"}
    for le, count in (("0.001", 3), ("0.01", 7), ("+Inf", 8)):
        assert of(found, "tidegate_check_seconds_bucket", le=le, **labels) == count
    assert of(found, "tidegate_check_seconds_count", **labels) == 8
    assert of(found, "tidegate_check_seconds_sum", **labels) == 1.5


def test_a_service_counts_how_long_its_checks_take(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{id: api, by: user, limit: 1000/minute}]\n")
    free = {"listen": "127.0.0.1:0"}
    service = Service(Settings(rules=rules, database=None, checks=free, admin=free))
    service.start()
    try:
        assert service.address is not None
        assert service.admin_address is not None
        url = f"http://127.0.0.1:{service.address[1]}/v1/ratelimit/check"
        with plain_http.client() as client:
            for _ in range(3):
                asked = {"attributes": {"user": "42"}}
                assert client.post(url, json=asked).json()["allowed"] is True
            assert client.get(url).status_code == 405, "which no service answers"
        with grpc.insecure_channel(f"127.0.0.1:{service.address[1]}") as channel:
            check = channel.unary_unary("/tidegate.v1.RateLimiter/Check")
            check(wire.request({"user": "42"}), timeout=60)
            # Calls of other services are not counted.
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60)
        metrics = f"http://127.0.0.1:{service.admin_address[1]}/metrics"
        found = exposed(plain_http.get(metrics).text)
    finally:
        service.stop()
    service.recent_times.take()
    for protocol, count in (("http1", 3), ("http2", 0), ("grpc", 1)):
        labels = {"service": "checks", "protocol": protocol}
        assert of(found, "tidegate_check_seconds_count", **labels) == count
        assert of(found, "tidegate_check_seconds_bucket", le="+Inf", **labels) == count
        seconds = of(found, "tidegate_check_seconds_sum", **labels)
        assert seconds is not None
        assert (seconds > 0) == (count > 0)
    assert of(found, "tidegate_check_seconds_count", service="envoy", protocol="grpc") is None
    counted = [each.calls for taken in service.recent_times.recent() for each in taken.buckets]
    assert sum(counted) == 4
