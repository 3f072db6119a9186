"""Finds the tier of a request that does not name one."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Callable, Union

from tidegate.limiter.checks import check_int, check_number
from tidegate.limiter.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Value = Union[str, bytes, None]
    Lookup = Union[Mapping[str, str], Callable[[str], Union[str, None]]]

__all__ = ["Tiers"]

log = logging.getLogger("tidegate")


class Tiers:
    """Finds the tier of a request by one of its attributes, and caches it for a while.

        Tiers({"42": "premium"})                          # a table
        Tiers(lambda user: database.tier_of(user), ttl=60)  # a function
        Limiter(rules=rules, tiers=Tiers(...))

    `lookup` maps values of the attribute `by` to tiers: it is a mapping, or a function that returns
    a tier or None. The answers of a function are cached for `ttl` seconds, for at most `capacity`
    values; the ones looked up longest ago are dropped first. If the function raises, the exception
    is logged, and the request has the last known tier of its value, or the rules' default tier if
    none is known. Thread-safe.
    """

    def __init__(
        self,
        lookup: Lookup,
        *,
        by: str = "user",
        ttl: float = 60.0,
        capacity: int = 100_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not callable(lookup) and not hasattr(lookup, "get"):
            raise ArgumentTypeError(
                f"the lookup of tiers is {lookup!r} of type {type(lookup).__name__}; expected a "
                "mapping or a function"
            )
        call = getattr(lookup, "__call__", None)  # noqa: B004, which is what an object is called by
        if inspect.iscoroutinefunction(lookup) or inspect.iscoroutinefunction(call):
            raise ArgumentTypeError(
                f"the lookup of tiers is {lookup!r:.80}, which is async; expected a mapping or a "
                "function that is not"
            )
        check_number("the ttl", ttl, "0 or more seconds", least=0)
        check_int("the capacity", capacity, "1 or more", least=1)
        self._lookup = lookup
        self._by = by
        self._ttl = ttl
        self._capacity = capacity
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, str | None]] = OrderedDict()
        self._lock = threading.Lock()
        self.failures = 0
        """The number of calls that raised, or returned something that is not a tier."""

    def of(self, attributes: Mapping[str, Value]) -> str | None:
        """Returns the tier of a request with these attributes; None for the default tier."""
        given = attributes.get(self._by)
        if given is None:
            return None
        value = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
        if not callable(self._lookup):
            return self._lookup.get(value)
        now = self._clock()
        with self._lock:
            known = self._known.get(value)
        if known is not None and now < known[0]:
            return known[1]
        try:
            tier = self._lookup(value)
            if tier is not None and not isinstance(tier, str):
                raise ArgumentTypeError(f"the tier is {tier!r}; expected a str or None")
        except Exception:
            self.failures += 1
            log.exception("the tier of %s=%.80r was not found", self._by, value)
            tier = None if known is None else known[1]
        with self._lock:
            self._known[value] = (now + self._ttl, tier)
            self._known.move_to_end(value)
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return tier

    def forget(self, value: str | None = None) -> None:
        """Forgets the tier of `value`, or of all values, so that it is looked up again."""
        with self._lock:
            if value is None:
                self._known.clear()
            else:
                self._known.pop(value, None)
