"""The metrics of the service, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

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
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    Counters = Callable[[], Mapping[str, int]]

__all__ = ["registry_of", "render"]

# These numbers may also fall.
_GAUGES = ("_open", "_enforced")


class _Numbers(Collector):
    """A collector of numbers that a function returns by name."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        for name, value in sorted(self._counters().items()):
            kind = GaugeMetricFamily if name.endswith(_GAUGES) else CounterMetricFamily
            yield kind(f"tidegate_{name}", name.replace("_", " ").capitalize() + ".", value)


def registry_of(limiters: Mapping[str, Any], counters: Counters) -> Any:
    """Returns a registry with the metrics of limiters and the numbers that `counters` returns."""
    from tidegate.prometheus import RateLimitCollector

    registry = CollectorRegistry()
    registry.register(RateLimitCollector(limiters))
    registry.register(_Numbers(counters))
    return registry


def render(registry: Any) -> tuple[bytes, str]:
    """Returns the text of all metrics and its content type."""
    return generate_latest(registry), CONTENT_TYPE_LATEST
