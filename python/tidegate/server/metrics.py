"""The metrics of the service, for Prometheus."""

from __future__ import annotations

import math
import threading
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tidegate.limiter.errors import ConfigurationError

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        UnknownMetricFamily,
    )
    from prometheus_client.registry import Collector
except ModuleNotFoundError:
    raise ConfigurationError(
        "metrics need the package prometheus-client; expected `pip install 'tidegate[server]'`"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from tidegate.server.call_times import CallTimes
    from tidegate.server.state import ServiceState

    Counters = Callable[[], Mapping[str, int]]

__all__ = [
    "DescriptorCounters",
    "ReferenceCounters",
    "SlipCounters",
    "StateCollector",
    "TimesCollector",
    "registry_of",
    "render",
]

# These numbers may also fall.
_GAUGES = ("_open", "_enforced", "_free_bytes")


class _Numbers(Collector):
    """A collector of numbers that a function returns by name."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        for name, value in sorted(self._counters().items()):
            kind = GaugeMetricFamily if name.endswith(_GAUGES) else CounterMetricFamily
            yield kind(f"tidegate_{name}", name.replace("_", " ").capitalize() + ".", value)


class StateCollector(Collector):
    """The version, the start, and the state of each configuration."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "tidegate_build_info", "The version that runs.", labels=("version",)
        )
        build.add_metric((self._state.version,), 1)
        yield build
        yield GaugeMetricFamily(
            "tidegate_start_time_seconds", "Unix time of the start.", self._state.started
        )
        newest = GaugeMetricFamily(
            "tidegate_config_newest_in_force",
            "1 if the newest version of a configuration is in force, 0 if it was refused or cannot "
            "be read.",
            labels=("config",),
        )
        since = GaugeMetricFamily(
            "tidegate_config_in_force_since_seconds",
            "Unix time at which the version in force began.",
            labels=("config",),
        )
        for each in self._state.configurations():
            newest.add_metric((each.name,), int(each.problem is None))
            since.add_metric((each.name,), each.since)
        yield newest
        yield since


class TimesCollector(Collector):
    """How long calls took, which `read` returns."""

    def __init__(self, read: Callable[[], list[CallTimes]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "tidegate_check_seconds",
            "The time from reading a call to its answer.",
            labels=("service", "protocol"),
        )
        for service, protocol, seconds, buckets in self._read():
            upto = accumulate(bucket.calls for bucket in buckets)
            bounds = (
                "+Inf" if math.isinf(bucket.bound) else str(bucket.bound) for bucket in buckets
            )
            family.add_metric((service, protocol), list(zip(bounds, upto)), seconds)
        yield family


class SlipCounters(Collector):
    """The decisions with a slip, by attribute: the values themselves would be without bound."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "tidegate_slips",
            "Decisions on a value that no rule matches, as a slip of what the rules name.",
            labels=("attribute",),
        )
        for attribute, count in self._counts.items():
            family.add_metric((attribute,), count)
        yield family


class _Descriptor(NamedTuple):
    domain: str
    path: str
    """Keys with their values, as Envoy's own service joins them: `key_value.key`."""


_COUNTED = {
    "total_hits": "Hits of a descriptor of Envoy's rate limit service.",
    "within_limit": "Hits within the limit of a descriptor.",
    "near_limit": "Hits within the limit of a descriptor, but near it.",
    "over_limit": "Hits over the limit of a descriptor.",
    "shadow_mode": "Hits over the limit of a descriptor in shadow, which were allowed.",
}
_OTHERS = _Descriptor("(others)", "(others)")


class DescriptorCounters(Collector):
    """The counters of Envoy's rate limit service by descriptor.

    `stats` returns those of `EnvoyService.stats()`. At most `most` descriptors have names; the
    hits of the others are counted together. A descriptor keeps its name while it exists.
    """

    def __init__(self, stats: Callable[[], Mapping[str, Any]], most: int) -> None:
        self._stats = stats
        self._most = most
        self._lock = threading.Lock()  # of those that ask at the same time
        self._named: set[_Descriptor] = set()

    def collect(self) -> Iterator[Metric]:
        counts = self._counts(self._stats()["descriptors"])
        for name, help in _COUNTED.items():
            shown = "hits" if name == "total_hits" else name
            family = CounterMetricFamily(
                f"tidegate_envoy_descriptor_{shown}", help, labels=("domain", "descriptor")
            )
            for descriptor, each in counts.items():
                family.add_metric(descriptor, each[name])
            yield family

    def _counts(self, rows: Iterable[Mapping[str, Any]]) -> dict[_Descriptor, dict[str, int]]:
        by_name = {_Descriptor(row["domain"], row["path"]): row for row in rows}
        counts: dict[_Descriptor, dict[str, int]] = {}
        with self._lock:
            self._named &= by_name.keys()
            for name in sorted(by_name):
                if name not in self._named and len(self._named) < self._most:
                    self._named.add(name)
                shown = counts.setdefault(
                    name if name in self._named else _OTHERS, dict.fromkeys(_COUNTED, 0)
                )
                for counted in _COUNTED:
                    shown[counted] += by_name[name][counted]
        return counts


class ReferenceCounters(DescriptorCounters):
    """The same counters under the names that the service of envoyproxy/ratelimit gives them.

    That service has a label for each key: `key1="message_type_marketing", key2="to_number"`.
    """

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        counts = self._counts(stats["descriptors"])
        # Its counters have no suffix, and those of the client library always have one.
        for name, help in _COUNTED.items():
            full = f"ratelimit_service_rate_limit_{name}"
            family = UnknownMetricFamily(full, help)
            for descriptor, each in counts.items():
                keys = descriptor.path.split(".")
                labels = {f"key{i}": key for i, key in enumerate(keys, 1)}
                family.add_sample(full, {"domain": descriptor.domain, **labels}, each[name])
            yield family
        for full, help, labels, value in (
            (
                "ratelimit_service_total_requests",
                "Requests.",
                {"grpc_method": "ShouldRateLimit"},
                stats["requests"],
            ),
            (
                "ratelimit_service_should_rate_limit_error",
                "Requests that were refused as invalid.",
                {"err_type": "service_error"},
                stats["invalid"],
            ),
        ):
            family = UnknownMetricFamily(full, help)
            family.add_sample(full, labels, value)
            yield family


def registry_of(
    limiters: Mapping[str, Any], counters: Counters, more: Iterable[Collector] = ()
) -> Any:
    """Returns a registry with the metrics of limiters and the numbers that `counters` returns.

    It has those of the collectors `more` too.
    """
    from tidegate.prometheus import RateLimitCollector

    registry = CollectorRegistry()
    registry.register(RateLimitCollector(limiters))
    registry.register(_Numbers(counters))
    for collector in more:
        registry.register(collector)
    return registry


def render(registry: Any) -> tuple[bytes, str]:
    """Returns the text of all metrics and its content type."""
    return generate_latest(registry), CONTENT_TYPE_LATEST
