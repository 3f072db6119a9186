"""Metrics by OpenTelemetry, read by its SDK."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tidegate as tg
from metrics import exported, of
from servers import asgi_server, limited, statuses
from tidegate.web.observers import observers

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, Histogram, InMemoryMetricReader, Sum
from tidegate.opentelemetry import instrument


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader):
    provider = MeterProvider([reader])
    yield provider
    provider.shutdown()


def test_the_decisions_of_a_service_are_exported(reader, provider):
    app = limited(["2/minute", "9/hour"], prefix="otel")
    instruments = instrument(provider, decision_duration=True)
    with asgi_server(app) as client:
        assert [client("/").status for _ in range(5)] == [200, 200, 429, 429, 429]
    samples = exported(reader)
    mine = {"tidegate.limiter": "otel"}
    assert of(samples, "tidegate.decisions", **mine, **{"tidegate.outcome": "allowed"}) == 2
    assert of(samples, "tidegate.decisions", **mine, **{"tidegate.outcome": "refused"}) == 3
    assert of(samples, "tidegate.refused", **mine, **{"tidegate.rule": "2/minute"}) == 3
    assert of(samples, "tidegate.refused", **mine, **{"tidegate.rule": "9/hour"}) == 0
    assert of(samples, "tidegate.decision.duration", **mine) == 5
    # Limiters that other tests of this process have left may name their storage.
    labels = [labels for _, labels in samples if ("tidegate.limiter", "otel") in labels]
    assert labels
    assert "127.0.0.1" not in str(labels)

    instruments.close()
    assert observers.times == ()
    statuses(app, 1)
    assert of(exported(reader), "tidegate.decision.duration", **mine) in (5, None)


def test_names_units_and_types(reader, provider):
    limiter = tg.Limiter("1/hour")
    app = limited("1/hour")
    instruments = instrument(provider, {"jobs": limiter, "web": app}, decision_duration=True)
    limiter.hit_many(["a", "b", "b"])
    statuses(app, 1)
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    instruments.close()
    assert (scope.scope.name, scope.scope.version) == ("tidegate", tg.__version__)
    found = {metric.name: (metric.unit, type(metric.data)) for metric in scope.metrics}
    assert found == {
        "tidegate.decisions": ("{decision}", Sum),
        "tidegate.refused": ("{decision}", Sum),
        "tidegate.written_off": ("{unit}", Sum),
        "tidegate.degraded": ("{decision}", Sum),
        "tidegate.store.errors": ("{call}", Sum),
        "tidegate.store.script_errors": ("{call}", Sum),
        "tidegate.store.refused_locally": ("{decision}", Sum),
        "tidegate.store.leased": ("{decision}", Sum),
        "tidegate.store.lease_questions": ("{call}", Sum),
        "tidegate.store.lease_held_units": ("{unit}", Gauge),
        "tidegate.store.lease_keys": ("{key}", Gauge),
        "tidegate.store.lease_wasted_units": ("{unit}", Sum),
        "tidegate.breaker.opened": ("{event}", Sum),
        "tidegate.breaker.open": ("1", Gauge),
        "tidegate.store.keys": ("{key}", Gauge),
        "tidegate.store.evictions": ("{key}", Sum),
        "tidegate.store.evictions_live": ("{key}", Sum),
        "tidegate.decision.duration": ("s", Histogram),
    }
    assert all(metric.data.is_monotonic for metric in scope.metrics if isinstance(metric.data, Sum))
    (duration,) = [metric for metric in scope.metrics if metric.unit == "s"]
    assert duration.data.data_points[0].explicit_bounds[0] == 1e-6
    keys = {
        point.attributes["tidegate.store"]: point.value
        for metric in scope.metrics
        if metric.name == "tidegate.store.keys"
        for point in metric.data.data_points
    }
    assert keys == {"memory": 2, "memory-2": 1}


GLOBAL = """
import tidegate as tg
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tidegate.opentelemetry import instrument

reader = InMemoryMetricReader()
set_meter_provider(MeterProvider([reader]))
limiter = tg.Limiter("1/hour")
instrument(limiters={"jobs": limiter})
limiter.hit("a")
print(reader.get_metrics_data().to_json())
"""


def test_the_global_provider_is_the_one_meant():
    done = subprocess.run([sys.executable, "-c", GLOBAL], capture_output=True, check=True)
    assert '"tidegate.limiter": "jobs"' in done.stdout.decode()


def test_what_is_no_limiter(provider):
    with pytest.raises(tg.ConfigurationError, match="expected"):
        instrument(provider, {"a": "1/hour"})
    assert observers.times == ()
