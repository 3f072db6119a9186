"""``tidegate rules explain``: which rules apply to a request, why, and their states now."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from tidegate import _core
from tidegate.cli.explain import span
from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.rule_limiter import RuleLimiter
from tidegate.limiter.storage.visible import check_visible
from tidegate.rules.rule_set import RuleSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate._core import Decision, Limit
    from tidegate.limiter.explanation import ConsideredRule, Explanation

__all__ = ["explain"]


def explain(
    file: str, attributes: dict[str, str], *, cost: int, storage: str | None, prefix: str
) -> int:
    """Prints each rule as the request sees it, and what comes out. Charges nothing."""
    from tidegate.rules.model import NAME, RESERVED

    rules = RuleSet.load(file)
    for name in attributes:
        if not re.fullmatch(NAME, name) or name in RESERVED:
            raise ConfigurationError(
                f"the attribute is named {name!r:.80}; expected a name such as api_key"
            )
    if storage is not None:
        check_visible(storage)
    limiter = RuleLimiter(rules, storage=storage or "memory://", prefix=prefix)
    if storage is not None:
        limiter.ping()  # a first call would not wait for the connection
    considered = limiter.explain(cost=cost, **attributes)
    decision = limiter.peek(cost=cost, **attributes)
    if decision.degraded:
        print("tidegate: the server does not answer", file=sys.stderr)
        return 1
    store = limiter.storage
    is_leased = isinstance(store, _core.RedisStore) and store._leases
    by = {rule.id: rule.by for rule in rules.rules}
    if rules.default is not None:
        by[rules.default.id] = rules.default.by
    for each in considered:
        for line in _lines_on(
            each, by.get(each.rule, []), has_states=storage is not None, is_leased=is_leased
        ):
            print(line)
    print()
    print(_outcome(decision))
    print(_costs(considered, cost))
    if storage is None:
        print("No --storage was given, so these are the states of a client that never came.")
    return 0


def _costs(considered: Explanation, cost: int) -> str:
    if considered.cost == 0:
        return "It costs nothing, since it is on a list."
    units = f"{considered.cost} unit{'s' if considered.cost > 1 else ''}"
    times = f" ({cost} x {considered.cost // cost})" if cost > 1 else ""
    said = f"It costs {units}{times}, and its priority is {considered.priority}."
    if considered.usage is not None:
        weights = ", ".join(
            f"{weight} for each of {name}" for name, weight in considered.usage.items()
        )
        said += f" That is an estimate; its usage costs {weights}."
    return said


def _lines_on(
    rule: ConsideredRule, by: list[str], *, has_states: bool, is_leased: bool
) -> Iterator[str]:
    if not rule.applies:
        yield f"- {rule.rule} does not apply: {rule.why}"
        return
    yield f"+ {rule.rule} applies" + (f": {rule.why}" if rule.why else "")
    yield f"    counts by {' + '.join(by)}, key {rule.key!r}" if by else "    counts all requests"
    for limit, state, leasing in zip(rule.limits, rule.states, rule.leasing):
        yield f"    {limit} ({limit.algorithm}{', in shadow' if limit.shadow else ''})" + _state(
            limit, state if has_states else None
        )
        if is_leased:
            yield f"        {leasing}"
    if not rule.limits:
        yield "    unlimited"


def _state(limit: Limit, state: Decision | None) -> str:
    if state is None:
        return ""
    wait = "" if state.allowed else f", refuses for {_wait(state.retry_after)}"
    return f": {state.remaining} of {limit.capacity} left{wait}"


def _outcome(decision: Decision) -> str:
    if decision.rule is None:
        return "The request passes: no rule applies to it."
    if not decision.outcomes:
        verb = "lets it pass" if decision.allowed else "refuses it"
        return f"{decision.rule!r} {verb}, whatever has been counted."
    if decision.allowed:
        return (
            f"The request passes: {decision.remaining} of {decision.limit} left by "
            f"{decision.rule!r}, which has the least room."
        )
    return f"The request is refused by {decision.rule!r} for {_wait(decision.retry_after)}."


def _wait(seconds: float) -> str:
    return "ever" if seconds == float("inf") else span(seconds * 1e9)
