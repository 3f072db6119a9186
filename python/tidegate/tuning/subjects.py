"""The subject of a replay: limits under one or several keys, or rules, with their columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate.limiter.clock import ManualClock
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.plan import Plan
from tidegate.tuning.columns import as_costs, check_length, shown
from tidegate.tuning.keys import Keys, as_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tidegate._core import Limit
    from tidegate.tuning.times import Times
    from tidegate.types import Algorithm

    Costs = NDArray[np.int64] | None

__all__ = ["LimitsSubject", "RulesSubject", "Subject", "as_subject"]


class Subject:
    """The limits or rules that decide, and the columns that they read."""

    keys: dict[str, Keys]
    """All columns of keys by name, including those that no limit reads."""
    limits: tuple[Limit, ...]
    """The limits that decide; empty for a rule set."""
    notes: tuple[str, ...] = ()
    """What to know about the answers."""
    is_slow: bool
    """Whether a replay takes as long as a microsecond a request."""
    delays: bool
    """Whether a leaky bucket may be among the limits."""

    def start(
        self, times: Times, answers: dict[str, NDArray[Any]], clients: dict[str, Any] | None
    ) -> _core.ReplayRun:
        """Returns a new replay that has not begun."""
        raise NotImplementedError

    def rule_names(self, run: _core.ReplayRun) -> list[str | None]:
        """Returns the names that the codes of rules stand for."""
        raise NotImplementedError


@dataclass
class LimitsSubject(Subject):
    """Limits, each under one of the keys and with its own costs."""

    keys: dict[str, Keys]
    limits: tuple[Limit, ...]
    names: tuple[str, ...]
    """The key of each limit."""
    costs: tuple[Costs, ...]
    used: tuple[Costs, ...]
    """What requests used, where their costs are estimates."""

    def __post_init__(self) -> None:
        self.is_slow = len(self.limits) > 1
        self.delays = any(limit.algorithm == "leaky-bucket" for limit in self.limits)

    def start(
        self, times: Times, answers: dict[str, NDArray[Any]], clients: dict[str, Any] | None
    ) -> _core.ReplayRun:
        keys = [self.keys[name] for name in self.names]
        return _core.ReplayRun.of_limits(
            list(self.limits),
            [each.codes for each in keys],
            [len(each.names) for each in keys],
            list(self.costs),
            list(self.used),
            times.ns,
            times.order,
            answers,
            clients,
        )

    def rule_names(self, run: _core.ReplayRun) -> list[str | None]:
        names = run.names
        if len(set(names)) == len(names):
            return [*names]
        return [f"{key}: {name}" for key, name in zip(self.names, names)]


@dataclass
class RulesSubject(Subject):
    """A set of rules with the attributes of requests."""

    rules: _core.RuleSet
    keys: dict[str, Keys]
    costs: Costs
    notes: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    is_slow: bool = True
    delays: bool = True

    def start(
        self, times: Times, answers: dict[str, NDArray[Any]], clients: dict[str, Any] | None
    ) -> _core.ReplayRun:
        attributes = [
            (name, column.codes, [_as_bytes(value) for value in column.names])
            for name, column in self.keys.items()
        ]
        return _core.ReplayRun.of_rules(
            self.rules, attributes, self.costs, times.ns, times.order, answers, clients
        )

    def rule_names(self, run: _core.ReplayRun) -> list[str | None]:
        return [name or None for name in run.names]


def as_subject(
    limit: Any, keys: Any, costs: Any, used: Any, size: int, algorithm: Algorithm
) -> Subject:
    """Makes the subject for `size` requests. Raises ConfigurationError if arguments mismatch."""
    for rules in (limit, getattr(limit, "rules", None)):
        compiled = getattr(rules, "_compiled", None)
        if compiled is not None:
            if used is not None:
                raise ConfigurationError(
                    "what was used was given for rules; expected limits, or costs alone"
                )
            columns = _columns(keys, "attributes of the rules", size, optional=True)
            return RulesSubject(compiled, columns, as_costs(costs, size), _unasked(rules, columns))
    if isinstance(limit, Plan):
        return _of_plan(limit, keys, costs, used, size)
    if isinstance(limit, dict):
        return _of_dict(limit, keys, costs, used, size, algorithm)
    limits = limit.limits if isinstance(limit, Limiter) else _limits(limit, algorithm)
    column = as_keys(keys)
    check_length(len(column), "keys", size)
    each, used = as_costs(costs, size), _as_used(used, size)
    number = len(limits)
    return LimitsSubject(
        {"key": column}, limits, ("key",) * number, (each,) * number, (used,) * number
    )


def _as_used(used: Any, size: int) -> Costs:
    return as_costs(used, size, "used cost", 0)


def _unasked(rules: Any, columns: dict[str, Keys]) -> tuple[str, ...]:
    """Names the rules that apply to no request because an attribute they count by is missing."""
    notes = []
    for rule in rules.rules:
        missing = [name for name in rule.by if name not in columns]
        if missing:
            notes.append(
                f"The rule {rule.id} counts by {missing[0]}, which was not given: it applied to no "
                "request."
            )
    return tuple(notes)


def _limits(limit: Any, algorithm: Algorithm) -> tuple[Limit, ...]:
    """Returns the limits as a Limiter holds them: checked, and each once."""
    return Limiter(limit, algorithm=algorithm, clock=ManualClock()).limits


def _of_dict(
    limit: Mapping[str, Any], keys: Any, costs: Any, used: Any, size: int, algorithm: Algorithm
) -> LimitsSubject:
    if not limit:
        raise ConfigurationError("no limit was given; expected at least one")
    columns = _columns(keys, "keys of a plan", size)
    missing = [name for name in limit if name not in columns]
    if missing:
        raise ConfigurationError(
            f"the limits are under {', '.join(map(repr, limit))}, and the keys have no "
            f"{missing[0]!r}; expected a column of keys for each"
        )
    charged = _by_name(limit, costs, "costs", lambda column: as_costs(column, size))
    spent = _by_name(limit, used, "used costs", lambda column: _as_used(column, size))
    each = [
        (one, name, charged.get(name), spent.get(name))
        for name, limits in limit.items()
        for one in _limits(limits, algorithm)
    ]
    limits, names, of_each, used_of_each = zip(*each)
    return LimitsSubject(columns, limits, names, of_each, used_of_each)


def _by_name(
    limit: Mapping[str, Any], given: Any, what: str, read: Callable[[Any], Costs]
) -> dict[str, Costs]:
    columns = given if isinstance(given, dict) else dict.fromkeys(limit, given)
    unknown = [name for name in columns if name not in limit]
    if unknown:
        raise ConfigurationError(
            f"{what} were given for {unknown[0]!r}, but no limit has this name; expected {what} "
            f"for {', '.join(map(repr, limit))}"
        )
    once = {id(column): read(column) for column in columns.values()}
    return {name: once[id(column)] for name, column in columns.items()}


def _of_plan(plan: Plan, keys: Any, costs: Any, used: Any, size: int) -> LimitsSubject:
    limiters = plan.limiters
    for what, given in (("keys", keys), ("costs", costs), ("used costs", used)):
        if given is None and what != "keys":
            continue
        if not isinstance(given, (list, tuple)) or len(given) != len(limiters):
            raise ConfigurationError(
                f"the {what} of a plan of {len(limiters)} limiters are of type "
                f"{type(given).__name__}; expected a list with a column for each limiter"
            )
    _check_counted_apart(limiters)
    columns = _columns(
        {str(number): column for number, column in enumerate(keys)}, "keys of a plan", size
    )
    every = range(len(limiters))
    charged = [None if costs is None else as_costs(costs[n], size) for n in every]
    spent = [None if used is None else _as_used(used[n], size) for n in every]
    each = [
        (limit, str(number), charged[number], spent[number])
        for number, limiter in enumerate(limiters)
        for limit in limiter.limits
    ]
    limits, names, of_each, used_of_each = zip(*each)
    return LimitsSubject(columns, limits, names, of_each, used_of_each)


def _check_counted_apart(limiters: Iterable[Limiter]) -> None:
    """Refuses limiters that share usage in a live store, since a replay counts them separately."""
    seen = set()
    for limiter in limiters:
        for limit in limiter.limits:
            identity = (limiter._prefix, limit.algorithm, limit.id or str(limit))
            if identity in seen:
                raise ConfigurationError(
                    f"two limiters of the plan count {limit} under the prefix "
                    f"{limiter._prefix!r} together; expected prefixes that tell them apart"
                )
            seen.add(identity)


def _columns(keys: Any, what: str, size: int, *, optional: bool = False) -> dict[str, Keys]:
    if not hasattr(keys, "items") or hasattr(keys, "dtype"):
        raise ArgumentTypeError(
            f"the {what} are {shown(keys)}; expected a dict with a column for each"
        )
    columns = {}
    for name, column in keys.items():
        columns[name] = as_keys(column, f"keys {name!r}", optional=optional)
        check_length(len(columns[name]), f"keys {name!r}", size)
    return columns


def _as_bytes(value: Any) -> bytes | None:
    """Converts the value of an attribute to the form that the core reads."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogatepass")
