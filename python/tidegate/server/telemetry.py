"""Sends the metrics of limiters, and spans, to a collector of OpenTelemetry."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["shut_down", "start_telemetry", "start_traces"]

log = logging.getLogger("tidegate")

# How long the end of the service waits for a collector, in seconds.
_PATIENCE = 1.0


def start_telemetry(limiters: Mapping[str, Any], endpoint: str | None) -> Any:
    """Sends metrics every minute from now on. Returns a provider for shut_down()."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ModuleNotFoundError as error:
        raise _missing(error, "telemetry.enabled") from None
    from tidegate.opentelemetry import instrument

    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint))
    provider = MeterProvider(
        [reader], Resource.create({"service.name": "tidegate"}), shutdown_on_exit=False
    )
    instrument(provider, limiters)
    return provider


def start_traces(endpoint: str | None) -> Any:
    """Creates a provider that sends spans in batches; shut_down() sends the rest and stops.

    The SDK's variables, such as OTEL_TRACES_SAMPLER, apply.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise _missing(error, "telemetry.traces") from None
    provider = TracerProvider(
        resource=Resource.create({"service.name": "tidegate"}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


def shut_down(providers: Iterable[Any]) -> bool:
    """Sends what is left, and stops all providers. Returns whether they ended within a second.

    The exporters wait longer for a collector that hangs, and others have to be closed too.
    """
    ending = [
        threading.Thread(target=_end, args=(each,), name="tidegate telemetry", daemon=True)
        for each in providers
    ]
    for thread in ending:
        thread.start()
    last = time.monotonic() + _PATIENCE
    for thread in ending:
        thread.join(max(0.0, last - time.monotonic()))
    if not any(thread.is_alive() for thread in ending):
        return True
    log.warning("telemetry: the collector does not answer; the last data are lost")
    return False


def _end(provider: Any) -> None:
    try:
        provider.shutdown()
    except Exception as error:
        log.warning("telemetry: the last data could not be sent: %s", error)


def _missing(error: ModuleNotFoundError, setting: str) -> ConfigurationError:
    return ConfigurationError(
        f"{setting} needs the package {error.name}; expected `pip install opentelemetry-sdk "
        f"opentelemetry-exporter-otlp-proto-http`, or {setting}: false"
    )
