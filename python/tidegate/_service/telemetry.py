"""Sends the metrics of limiters, and spans, to a collector of OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate._errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["start_telemetry", "start_traces"]


def start_telemetry(limiters: Mapping[str, Any], endpoint: str | None) -> Any:
    """Sends metrics every minute from now on. Returns an object whose shutdown() stops this."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ModuleNotFoundError as error:
        raise _missing(error, "telemetry.enabled") from None
    from tidegate.opentelemetry import instrument

    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint))
    provider = MeterProvider([reader], Resource.create({"service.name": "tidegate"}))
    instrument(provider, limiters)
    return provider


def start_traces(endpoint: str | None) -> Any:
    """Creates a provider that sends spans in batches; shutdown() sends the rest and stops.

    The SDK's variables, such as OTEL_TRACES_SAMPLER, apply.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise _missing(error, "telemetry.traces") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "tidegate"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


def _missing(error: ModuleNotFoundError, setting: str) -> ConfigurationError:
    return ConfigurationError(
        f"{setting} needs the package {error.name}; expected `pip install opentelemetry-sdk "
        f"opentelemetry-exporter-otlp-proto-http`, or {setting}: false"
    )
