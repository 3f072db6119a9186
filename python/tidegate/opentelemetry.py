"""Metrics by OpenTelemetry.

::

    from tidegate.opentelemetry import instrument

    instrument()

Counters are read when they are exported, so that requests pay nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Callable

from tidegate.limiter.errors import without_extra

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        MeterProvider,
        Observation,
        get_meter_provider,
    )
except ImportError as error:
    raise without_extra("tidegate.opentelemetry", "opentelemetry", error) from None

from tidegate import _core
from tidegate.web.metrics import DECISION_SECONDS, METRICS, Metric, Sources
from tidegate.web.observers import Watch

if TYPE_CHECKING:
    from tidegate.limiter.limiter import Limiter

__all__ = ["Instruments", "instrument"]


class Instruments:
    """The instruments that instrument() made. close() ends them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.is_open = True

    def close(self) -> None:
        """Ends all reports. The instruments stay, since OpenTelemetry cannot remove them."""
        self.is_open = False
        self._watch.close()


def instrument(
    meter_provider: MeterProvider | None = None,
    limiters: Mapping[str, Any] | None = None,
    *,
    decision_duration: bool = False,
) -> Instruments:
    """Reports the counters of limiters and their stores to `meter_provider` (the global one).

    `limiters` is a dict of names and limiters as in tidegate.prometheus.RateLimitCollector;
    without it all middleware, decorators and dependencies of the process are reported.
    Instruments are ``tidegate.decisions`` (by ``tidegate.limiter`` and
    ``tidegate.outcome``), ``tidegate.refused`` (by ``tidegate.limiter`` and
    ``tidegate.rule``), and by ``tidegate.store``: ``tidegate.degraded``,
    ``tidegate.breaker.open``, ``tidegate.breaker.opened`` and ``tidegate.store.*``.
    No key and no path becomes an attribute.

    With `decision_duration` the time that each decision on a request takes is recorded too,
    in the histogram ``tidegate.decision.duration`` (seconds), which costs each request more than a
    decision in memory does. Call it once for a provider. Raises ConfigurationError for invalid
    limiters. Thread-safe.
    """
    sources = Sources(limiters)
    provider = get_meter_provider() if meter_provider is None else meter_provider
    meter = provider.get_meter("tidegate", _core.__version__)
    times = []
    if decision_duration:
        histogram = meter.create_histogram(
            "tidegate.decision.duration",
            unit="s",
            description="The time that decisions on requests took.",
            explicit_bucket_boundaries_advisory=DECISION_SECONDS,
        )

        def record(limiter: Limiter, seconds: float) -> None:
            name = sources.name_of(limiter)
            if name is not None:
                histogram.record(seconds, {"tidegate.limiter": name})

        times.append(record)
    instruments = Instruments(Watch(times=times))
    for metric in METRICS:
        create = (
            meter.create_observable_counter if metric.is_counter else meter.create_observable_gauge
        )
        create(
            f"tidegate.{metric.dotted}",
            [_callback(metric, sources, instruments)],
            unit=metric.unit,
            description=metric.text,
        )
    return instruments


def _callback(
    metric: Metric, sources: Sources, instruments: Instruments
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    names = [f"tidegate.{label}" for label in metric.labels]

    def observe(options: CallbackOptions) -> Iterable[Observation]:
        if not instruments.is_open:
            return []
        return [
            Observation(value, dict(zip(names, labels)))
            for labels, value in metric.samples(sources.read())
        ]

    return observe
