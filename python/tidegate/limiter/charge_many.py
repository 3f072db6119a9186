"""Charges of many keys, whose requests are sent together."""

from __future__ import annotations

import select

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.unawaited import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Union

    from tidegate._core import Decision

    Key = Union[str, bytes]

__all__ = ["charge_all", "pairs_of"]


def pairs_of(limiter: Any, keys: Iterable[Key], costs: Iterable[int]) -> list[tuple[Key, int]]:
    """The keys and their costs. Raises ConfigurationError if one of them is invalid."""
    if isinstance(keys, (str, bytes)):
        raise ArgumentTypeError(f"the keys are {keys!r:.80}; expected a list of str or bytes")
    all_keys, all_costs = list(keys), list(costs)
    if len(all_keys) != len(all_costs):
        raise ConfigurationError(
            f"{len(all_costs)} costs were given for {len(all_keys)} keys; expected one for each key"
        )
    pairs = list(zip(all_keys, all_costs))
    for key, cost in pairs:
        limiter._check(key, cost)
    return pairs


def charge_all(limiter: Any, pairs: list[tuple[Key, int]]) -> list[Decision]:
    """Charges each key its cost. Where the storage answers later, all requests are sent before the
    first answer is waited for."""
    channel = _channel() if limiter._storage.blocks else None
    if channel is None:
        return [limiter.charge(key, cost) for key, cost in pairs]
    found: dict[int, Decision] = {}
    for number, (key, cost) in enumerate(pairs):

        def hear(decision: Decision, number: int = number) -> None:
            found[number] = decision

        answer = limiter._begin(_core.CHARGE, key, cost, None, Loop(hear), channel)
        if type(answer) is _core.Decision:  # such as that of a circuit breaker
            hear(answer)
    channel._kick()
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while len(found) < len(pairs):  # each call has a deadline
        poll.poll(1000)
        channel.drain()
    return [limiter._write_offs.seen(found[number], cost) for number, (_, cost) in enumerate(pairs)]


def _channel() -> _core.Channel | None:
    """None if the process has no descriptor left."""
    try:
        return _core.Channel()
    except OSError:
        return None
