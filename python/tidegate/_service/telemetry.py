"""OpenTelemetry: sends the metrics of limiters to a collector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate._errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["start_telemetry"]


def start_telemetry(limiters: Mapping[str, Any], endpoint: str | None) -> Any:
    """Sends metrics every minute from now on. Returns an object whose shutdown() stops this."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"telemetry needs the package {error.name}; expected `pip install "
            "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`, or telemetry.enabled: false"
        ) from None
    from tidegate.opentelemetry import instrument

    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint))
    provider = MeterProvider([reader], Resource.create({"service.name": "tidegate"}))
    instrument(provider, limiters)
    return provider
