"""The metrics of the service, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate._errors import ConfigurationError

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError:
    raise ConfigurationError(
        "metrics need the package prometheus-client; expected `pip install 'tidegate[server]'`"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from tidegate._service.service import Service

__all__ = ["registry_of", "render"]

# Counters of the front that go down as well as up.
_GAUGES = {"connections_open", "streams_open"}


class _FrontCollector(Collector):
    """The counters of the front, of Envoy's service, and of what was recorded and written."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        for name, value in sorted(service.front.stats().items()):
            yield _single(f"tidegate_front_{name}", value, is_gauge=name in _GAUGES)
        if service.envoy is not None:
            for name, value in sorted(service.envoy_service.stats().items()):
                if isinstance(value, int):
                    yield _single(f"tidegate_envoy_{name}", value, is_gauge=False)
        yield _single("tidegate_records_dropped", service.recorder.dropped, is_gauge=False)
        for name, writer in (
            ("usage", getattr(service, "history", None)),
            ("violations", getattr(service, "violations", None)),
        ):
            if writer is not None:
                yield _single(f"tidegate_{name}_written", writer.written, is_gauge=False)
                yield _single(f"tidegate_{name}_dropped", writer.dropped, is_gauge=False)
                yield _single(f"tidegate_{name}_failures", writer.failures, is_gauge=False)
        watch = getattr(service, "anomalies", None)
        if watch is not None:
            yield _single("tidegate_anomalies", watch.found, is_gauge=False)
        sources: list[tuple[str, Any]] = [
            ("rules", service.rules),
            ("envoy_config", service.envoy),
        ]
        for name, source in sources:
            if hasattr(source, "refused"):
                yield _single(f"tidegate_{name}_refused", source.refused, is_gauge=False)
                yield _single(f"tidegate_{name}_failures", source.failures, is_gauge=False)


def _single(name: str, value: Any, *, is_gauge: bool) -> Metric:
    kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
    return kind(name, name.replace("_", " ").removeprefix("tidegate ").capitalize() + ".", value)


def registry_of(service: Service) -> Any:
    """A registry with the limiter's metrics and those of the service."""
    from tidegate.prometheus import RateLimitCollector

    registry = CollectorRegistry()
    registry.register(RateLimitCollector({service.settings.prefix: service.limiter}))
    registry.register(_FrontCollector(service))
    return registry


def render(registry: Any) -> tuple[bytes, str]:
    """The text of all metrics, and its content type."""
    return generate_latest(registry), CONTENT_TYPE_LATEST
