"""Metrics for Prometheus, by prometheus_client.

::

    from prometheus_client import REGISTRY
    from tidegate.prometheus import RateLimitCollector

    REGISTRY.register(RateLimitCollector())

Counters are read when they are scraped, so that requests pay nothing for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from tidegate.limiter.errors import without_extra

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise without_extra("tidegate.prometheus", "prometheus", error) from None

from tidegate.limiter.background import Repeating
from tidegate.limiter.checks import check_number
from tidegate.limiter.errors import ConfigurationError
from tidegate.web.metrics import DECISION_SECONDS, METRICS, Metric, Readings, Sources
from tidegate.web.observers import Watch

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as MetricFamily

    from tidegate.limiter.limiter import Limiter

__all__ = ["Mirror", "RateLimitCollector"]

log = logging.getLogger("tidegate")


class RateLimitCollector(Collector):
    """The counters of limiters and their stores, for a registry of prometheus_client.

    `limiters` is a dict of names (the label `limiter`) and Limiters, or middleware and
    dependencies, which have one. By default these are all middleware, decorators and dependencies
    of the process, named by their prefixes: ``tg`` for middleware, ``tg:module.function`` for
    decorators. Limiters with one name are added up. The label `store` is ``memory``, ``shm`` or
    ``redis``, numbered from the second of a kind. No key and no path ever becomes a label.

    With `decision_seconds` the time that each decision on a request takes is measured too, in a
    histogram of `buckets` (seconds), which costs each request more than a decision in memory does;
    close() ends that.

    The counters are those of this process. prometheus_client's multiprocess mode ignores
    collectors: see Mirror. Raises ConfigurationError for invalid limiters. Thread-safe.
    """

    def __init__(
        self,
        limiters: Mapping[str, Any] | None = None,
        *,
        decision_seconds: bool = False,
        buckets: Sequence[float] = DECISION_SECONDS,
    ) -> None:
        self._sources = Sources(limiters)
        self._times = _Times(self._sources, buckets, None) if decision_seconds else None

    def collect(self) -> Iterable[MetricFamily]:
        """The metrics with their current values."""
        return self._families(self._sources.read())

    def describe(self) -> Iterable[MetricFamily]:
        """The metrics without their values, for the registry to know their names."""
        return self._families(Readings([], []))

    def close(self) -> None:
        """Ends the measuring of time; counters are still collected."""
        if self._times is not None:
            self._times.watch.close()

    def _families(self, readings: Readings) -> Iterator[MetricFamily]:
        for metric in METRICS:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(f"tidegate_{metric.name}", metric.text, labels=metric.labels)
            for labels, value in metric.samples(readings):
                family.add_metric(labels, value)
            yield family
        if self._times is not None:
            yield from self._times.histogram.collect()


class _Times:
    """The histogram of how long decisions took, filled until its `watch` is closed."""

    def __init__(
        self, sources: Sources, buckets: Sequence[float], registry: CollectorRegistry | None
    ) -> None:
        self._sources = sources
        self.histogram = Histogram(
            "tidegate_decision_seconds",
            "The time that decisions on requests took.",
            ["limiter"],
            registry=registry,
            buckets=buckets,
        )
        self.watch = Watch(times=[self._observe])

    def _observe(self, limiter: Limiter, seconds: float) -> None:
        name = self._sources.name_of(limiter)
        if name is not None:
            self.histogram.labels(name).observe(seconds)


_Family = Union[Counter, Gauge]


class Mirror:
    """The metrics of RateLimitCollector for prometheus_client's multiprocess mode.

    In that mode each worker process writes its metrics to files, and the worker that is scraped
    adds them up; collectors have no part in it. A Mirror copies the counters of its process to
    ordinary metrics of `registry`, every `every` seconds in a thread of its own, and a last time in
    close(). Make one in each worker, after the fork: in gunicorn's `post_worker_init`, closed in
    its `worker_exit`. Gauges are of the mode "liveall": one for each process, with the label `pid`.

    The other arguments are those of RateLimitCollector. Thread-safe.
    """

    def __init__(
        self,
        limiters: Mapping[str, Any] | None = None,
        *,
        every: float = 5.0,
        decision_seconds: bool = False,
        buckets: Sequence[float] = DECISION_SECONDS,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        if not 0.01 <= check_number("every", every, "seconds") <= 3600.0:
            raise ConfigurationError(f"every is {every!r}; expected 0.01 to 3600 seconds")
        self._sources = Sources(limiters)
        self._families = [(metric, _family(metric, registry)) for metric in METRICS]
        self._times = _Times(self._sources, buckets, registry) if decision_seconds else None
        self._seen: dict[tuple[str, tuple[str, ...]], int] = {}
        self._lock = threading.Lock()
        self._repeating = Repeating(self._step, every, "tidegate mirror")
        self._repeating.start()

    def update(self) -> None:
        """Copies the current counters."""
        with self._lock:
            readings = self._sources.read()
            for metric, family in self._families:
                for labels, value in metric.samples(readings):
                    child = family.labels(*labels)
                    if isinstance(child, Gauge):
                        child.set(value)
                        continue
                    before = self._seen.get((metric.name, labels), 0)
                    # The sum falls when a limiter of the name is gone.
                    child.inc(max(0, value - before))
                    self._seen[metric.name, labels] = value

    def close(self) -> None:
        """Copies the counters a last time and ends. The metrics stay."""
        self._repeating.close()
        if self._times is not None:
            self._times.watch.close()
        self.update()

    def _step(self) -> None:
        try:
            self.update()
        except Exception:  # a disk that is full now may have room the next time
            log.exception("rate limiting: metrics could not be mirrored")


def _family(metric: Metric, registry: CollectorRegistry) -> _Family:
    name = f"tidegate_{metric.name}"
    if metric.is_counter:
        return Counter(name, metric.text, metric.labels, registry=registry)
    return Gauge(name, metric.text, metric.labels, registry=registry, multiprocess_mode="liveall")
