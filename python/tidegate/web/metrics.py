"""Counters of limiters and their stores, as metrics for monitoring systems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Union

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError, LimiterClosedError
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.rule_limiter import RuleLimiter
from tidegate.web.registry import registered_limiters, registered_rule_limiters

if TYPE_CHECKING:
    from tidegate.limiter.stats import Stats

__all__ = [
    "DECISION_SECONDS",
    "METRICS",
    "LimiterReading",
    "Metric",
    "Readings",
    "Sources",
    "StoreReading",
]

AnyLimiter = Union[Limiter, RuleLimiter]
_LIMITERS = (Limiter, RuleLimiter)

# The bounds of histograms: from the time of a decision in memory to beyond the deadline of any
# store.
DECISION_SECONDS = [
    *(1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4),
    *(1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25),
]


class LimiterReading(NamedTuple):
    """The decisions of all limiters of one name."""

    name: str
    allowed: int
    denied: int
    refused: dict[str, int]
    """Refusals by the name of the limit, or the id of the rule, that refused."""
    refused_in_shadow: dict[str, int]
    """Calls that limits and rules in shadow would have refused, by the same names."""
    written_off: int
    """Units of costs known afterwards, beyond what a key may owe."""


class StoreReading(NamedTuple):
    """The counters of one store. The names of several stores of a kind are numbered."""

    name: str
    stats: Stats


class Readings(NamedTuple):
    limiters: list[LimiterReading]
    stores: list[StoreReading]


class Sources:
    """The limiters that are read: the given ones by name, else all that guard requests.

    Each is a Limiter or RuleLimiter, or has one as its `limiter`, as middleware and dependencies
    do. Raises ConfigurationError for anything else. Thread-safe.
    """

    def __init__(self, limiters: Mapping[str, Any] | None = None) -> None:
        self._names: dict[AnyLimiter, str] | None = None
        if limiters is None:
            return
        if not isinstance(limiters, Mapping):
            raise ArgumentTypeError(
                f"the limiters are a {type(limiters).__name__}; expected a dict of names and "
                "limiters, or None for all that guard requests"
            )
        self._names = {}
        for name, given in limiters.items():
            if not isinstance(name, str) or not name:
                raise ConfigurationError(f"a limiter is called {name!r}; expected a non-empty str")
            limiter = given if isinstance(given, _LIMITERS) else getattr(given, "limiter", None)
            if not isinstance(limiter, _LIMITERS):
                raise ArgumentTypeError(
                    f"the limiter {name!r} is of type {type(given).__name__}; expected a "
                    "tidegate.Limiter, a middleware, or a dependency"
                )
            self._names[limiter] = name

    def name_of(self, limiter: AnyLimiter) -> str | None:
        """The name of the limiter; None if it is not read."""
        return limiter._prefix if self._names is None else self._names.get(limiter)

    def read(self) -> Readings:
        """The counters as they are now. Closed limiters are left out."""
        named: list[tuple[str, AnyLimiter]] = []
        if self._names is None:
            named += [(limiter._prefix, limiter) for limiter in registered_limiters()]
            named += [(limiter._prefix, limiter) for limiter in registered_rule_limiters()]
        else:
            named += [(name, limiter) for limiter, name in self._names.items()]
        named.sort(key=lambda each: (each[0], repr(each[1])))
        limiters: dict[str, LimiterReading] = {}
        stores: dict[_core.Store, StoreReading] = {}
        kinds: dict[str, int] = {}
        for name, limiter in named:
            try:
                stats = limiter.stats()
                counts = _by_rule(limiter)
            except LimiterClosedError:
                continue
            limiters[name] = _added(limiters.get(name), name, stats, counts)
            if limiter.storage not in stores:
                kind = limiter.storage.name
                kinds[kind] = number = kinds.get(kind, 0) + 1
                label = kind if number == 1 else f"{kind}-{number}"
                stores[limiter.storage] = StoreReading(label, stats)
        return Readings(list(limiters.values()), list(stores.values()))


# Further rules share one label, so that a large set does not make as many time series.
_MOST_RULES = 200
_OTHER_RULES = "other"


def _by_rule(limiter: AnyLimiter) -> Iterator[tuple[str, int, int]]:
    """For each limit or rule its name, its refusals, and its refusals in shadow."""
    if isinstance(limiter, Limiter):
        names = [limit.name for limit in limiter.limits]
        return zip(names, limiter._refused(), limiter._refused_in_shadow())
    return (
        (rule if number < _MOST_RULES else _OTHER_RULES, stats.refused, stats.refused_in_shadow)
        for number, (rule, stats) in enumerate(limiter.rule_stats().items())
    )


def _added(
    before: LimiterReading | None,
    name: str,
    stats: Stats,
    counts: Iterable[tuple[str, int, int]],
) -> LimiterReading:
    before = before or LimiterReading(name, 0, 0, {}, {}, 0)
    refused, in_shadow = dict(before.refused), dict(before.refused_in_shadow)
    for rule, refusals, shadows in counts:
        refused[rule] = refused.get(rule, 0) + refusals
        in_shadow[rule] = in_shadow.get(rule, 0) + shadows
    allowed, denied = before.allowed + stats.allowed, before.denied + stats.denied
    written_off = before.written_off + stats.written_off
    return LimiterReading(name, allowed, denied, refused, in_shadow, written_off)


Sample = tuple[tuple[str, ...], int]


class Metric(NamedTuple):
    """One metric: its name after ``tidegate_`` and ``tidegate.``, and its samples."""

    name: str
    dotted: str
    unit: str
    is_counter: bool
    text: str
    labels: tuple[str, ...]
    samples: Callable[[Readings], Iterable[Sample]]


def _decisions(readings: Readings) -> Iterator[Sample]:
    for each in readings.limiters:
        yield (each.name, "allowed"), each.allowed
        yield (each.name, "refused"), each.denied


def _refused(readings: Readings) -> Iterator[Sample]:
    for each in readings.limiters:
        for rule, count in each.refused.items():
            yield (each.name, rule), count


def _refused_in_shadow(readings: Readings) -> Iterator[Sample]:
    for each in readings.limiters:
        for rule, count in each.refused_in_shadow.items():
            if count:
                yield (each.name, rule), count


def _written_off(readings: Readings) -> Iterator[Sample]:
    for each in readings.limiters:
        yield (each.name,), each.written_off


def _of_store(
    name: str, dotted: str, unit: str, text: str, field: str, *, is_counter: bool = True
) -> Metric:
    def samples(readings: Readings) -> Iterator[Sample]:
        for each in readings.stores:
            yield (each.name,), int(getattr(each.stats, field))

    return Metric(name, dotted, unit, is_counter, text, ("store",), samples)


def _lease_keys(readings: Readings) -> Iterator[Sample]:
    for each in readings.stores:
        yield (each.name, "held"), each.stats.held_keys
        yield (each.name, "dry"), each.stats.dry_keys


METRICS = (
    Metric(
        "decisions",
        "decisions",
        "{decision}",
        True,
        "Decisions, by outcome.",
        ("limiter", "outcome"),
        _decisions,
    ),
    Metric(
        "refused",
        "refused",
        "{decision}",
        True,
        "Refusals, by the limit that refused.",
        ("limiter", "rule"),
        _refused,
    ),
    Metric(
        "refused_in_shadow",
        "refused_in_shadow",
        "{decision}",
        True,
        "Calls that limits in shadow would have refused.",
        ("limiter", "rule"),
        _refused_in_shadow,
    ),
    Metric(
        "written_off",
        "written_off",
        "{unit}",
        True,
        "Units of costs known afterwards that were not charged, since the key owed its max_debt.",
        ("limiter",),
        _written_off,
    ),
    _of_store(
        "degraded",
        "degraded",
        "{decision}",
        "Decisions made without the shared store.",
        "degraded",
    ),
    _of_store(
        "errors",
        "store.errors",
        "{call}",
        "Calls that the shared store did not answer, or refused.",
        "errors",
    ),
    _of_store(
        "script_errors",
        "store.script_errors",
        "{call}",
        "Keys that another program wrote, and defects of tidegate's scripts: report those.",
        "script_errors",
    ),
    _of_store(
        "refused_locally",
        "store.refused_locally",
        "{decision}",
        "Refusals repeated without asking the shared store.",
        "denied_locally",
    ),
    _of_store(
        "leased",
        "store.leased",
        "{decision}",
        "Decisions by what Redis had leased to this process.",
        "leased",
    ),
    _of_store(
        "lease_questions",
        "store.lease_questions",
        "{call}",
        "Questions that asked Redis to lease units.",
        "lease_questions",
    ),
    _of_store(
        "lease_held_units",
        "store.lease_held_units",
        "{unit}",
        "Units that were leased and may still be spent.",
        "held_units",
        is_counter=False,
    ),
    Metric(
        "lease_keys",
        "store.lease_keys",
        "{key}",
        False,
        "Keys of which units are held, and keys refused without asking, since Redis had none.",
        ("store", "state"),
        _lease_keys,
    ),
    _of_store(
        "lease_wasted_units",
        "store.lease_wasted_units",
        "{unit}",
        "Units whose leases ended before they were spent or given back.",
        "wasted_units",
    ),
    _of_store(
        "breaker_opened",
        "breaker.opened",
        "{event}",
        "How often the circuit breaker opened.",
        "breaker_opened",
    ),
    _of_store(
        "breaker_open",
        "breaker.open",
        "1",
        "Whether the circuit breaker is open (1) or not (0).",
        "breaker_open",
        is_counter=False,
    ),
    _of_store(
        "store_keys",
        "store.keys",
        "{key}",
        "Keys that the store holds, idle ones included.",
        "keys",
        is_counter=False,
    ),
    _of_store(
        "evictions",
        "store.evictions",
        "{key}",
        "Idle keys reclaimed; nothing was lost.",
        "evictions",
    ),
    _of_store(
        "evictions_live",
        "store.evictions_live",
        "{key}",
        "Live keys evicted, since the capacity is too small: their counts restarted.",
        "evicted_live",
    ),
)
