"""Replay: how limits would have decided past requests."""

from __future__ import annotations

import warnings
from operator import index

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limit import as_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from typing import Any

    from tidegate.limiter.limit import LimitLike
    from tidegate.types import Algorithm

__all__ = ["LAST_NS", "instant_ns", "mistaken_unit", "out_of_range", "replay"]

LAST_NS = 2**62  # of the core
_NOT_A_TIME = -(2**63)  # NumPy's NaT as an int
# The years of logs, 1990 to 2100, in seconds since the epoch.
_LOGGED = (631_152_000, 4_102_444_800)
_SMALLER_UNITS = (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6))


def replay(
    limit: LimitLike,
    keys: Iterable[str | bytes],
    times_ns: Iterable[int | datetime],
    costs: Iterable[int] | None = None,
    *,
    used: Iterable[int] | None = None,
    algorithm: Algorithm = "token-bucket",
) -> list[_core.Decision]:
    """Decides requests in the order of their times, by the same steps as the stores.

    `keys`, `times_ns` and `costs` (1 each by default) have one length; so has the returned list of
    decisions, in the order in which the requests were given. A time is an int, in nanoseconds since
    the epoch, or a datetime with a time zone. Requests of one time stay in the order given. The
    state is exact and unbounded. `used` is what each request has used, from 0 up, where its cost
    was an estimate: it becomes the charge of a request that passes, at once, and what finds no room
    is owed, as by reserve() and commit(). Warns if the times look like seconds, milliseconds or
    microseconds. Raises ConfigurationError for lengths that differ, and for invalid keys, costs,
    times and limits. Pure.
    """
    limits = as_limits(limit, algorithm)
    all_keys = _listed("keys", keys, "str or bytes")
    times = _times(times_ns)
    all_costs = None if costs is None else _listed("costs", costs, "int")
    all_used = None if used is None else _used(used)
    lengths = {len(each) for each in (all_keys, times, all_costs, all_used) if each is not None}
    order = _order_of(times) if len(lengths) == 1 else None
    if order is None:
        return _core.replay(limits, all_keys, times, all_costs, all_used)
    decisions = _core.replay(
        limits,
        [all_keys[at] for at in order],
        [times[at] for at in order],
        None if all_costs is None else [all_costs[at] for at in order],
        None if all_used is None else [all_used[at] for at in order],
    )
    as_given = dict(zip(order, decisions))
    return [as_given[at] for at in range(len(order))]


def _times(given: Iterable[int | datetime]) -> list[int]:
    if _has_datetime64(given):
        # A column of pandas with a time zone becomes an array of its own datetimes.
        given = getattr(given, "to_numpy", lambda: given)()
    if _has_datetime64(given):
        times = _of_datetime64(given)
        _check_range(times)
        return times
    from datetime import datetime  # takes long to import

    times = [
        instant_ns(each) if isinstance(each, datetime) else each
        for each in _listed("times", given, "int or datetime")
    ]
    _check_range(times)
    if times and all(type(time) is int for time in times):
        in_part = any(time % 1_000_000 for time in times)
        mistake = mistaken_unit(min(times), max(times), in_part)
        if mistake is not None:
            warnings.warn(mistake, stacklevel=3)
    return times


def _has_datetime64(given: Any) -> bool:
    return getattr(getattr(given, "dtype", None), "kind", "") == "M"


def _of_datetime64(array: Any) -> list[int]:
    times: list[int] = array.astype("datetime64[ns]").astype("int64").tolist()
    if _NOT_A_TIME in times:
        raise ConfigurationError(
            f"the time at index {times.index(_NOT_A_TIME)} is NaT; expected nanoseconds since the "
            "epoch, or datetimes"
        )
    # Years that nanoseconds cannot hold wrap around.
    seconds = array.astype("datetime64[s]").astype("int64").tolist()
    for at, (ns, exact) in enumerate(zip(times, seconds)):
        if isinstance(ns, int) and ns // 10**9 != exact:
            raise out_of_range(at, array[at])
    return times


def _check_range(times: list[Any]) -> None:
    for at, time in enumerate(times):
        try:
            is_within = 0 <= index(time) <= LAST_NS
        except TypeError:
            return  # the core reports invalid times
        if not is_within:
            raise out_of_range(at, time)


def out_of_range(at: int, time: object) -> ConfigurationError:
    """The error for a time that the core cannot hold."""
    return ConfigurationError(
        f"the time at index {at} is {time!s:.60}; expected one from 1970 to the year 2116 "
        "(0 to 2**62 nanoseconds since the epoch)"
    )


def instant_ns(instant: datetime) -> int:
    """Nanoseconds since the epoch. Raises ConfigurationError where it has no time zone."""
    if instant.tzinfo is None:
        raise ConfigurationError(
            f"the time {instant!r} has no time zone; expected a datetime with one, such as "
            "datetime.now(timezone.utc), or nanoseconds since the epoch"
        )
    from datetime import datetime, timedelta, timezone

    passed = instant - datetime(1970, 1, 1, tzinfo=timezone.utc)
    # The times of pandas are finer than a microsecond.
    return passed // timedelta(microseconds=1) * 1000 + getattr(instant, "nanosecond", 0)


def _order_of(times: list[Any]) -> list[int] | None:
    """The order by time; None if the requests are already in it."""
    try:
        exact = [index(time) for time in times]
    except TypeError:
        return None  # the core reports invalid times
    if all(earlier <= later for earlier, later in zip(exact, exact[1:])):
        return None
    return sorted(range(len(times)), key=exact.__getitem__)


def mistaken_unit(first: int, last: int, in_part: bool) -> str | None:
    """Returns what is wrong with times that look like those of a log in another unit than
    nanoseconds; None if they do not.

    `in_part`: whether one of them is no whole number of milliseconds, if it is nanoseconds. Traffic
    that somebody made up begins at 0, and is mostly whole milliseconds: its first hour is no
    suspect. Microseconds are one in any case, since those of whole seconds are common.
    """
    for unit, scale in _SMALLER_UNITS:
        in_logs = _is_logged(first, scale) and _is_logged(last, scale)
        if in_logs and (in_part or unit == "microseconds"):
            return (
                f"the times are {first} to {last}, which look like {unit} since the epoch; "
                f"expected nanoseconds (times {10**9 // scale}), or datetimes"
            )
        if _is_logged(first, scale) and _is_logged(last, 10**9):
            return (
                f"the times are {first} to {last}: the first looks like {unit} since the epoch, "
                "and the last like nanoseconds; expected all in nanoseconds, or datetimes"
            )
    return None


def _is_logged(time: int, scale: int) -> bool:
    return _LOGGED[0] * scale <= time < _LOGGED[1] * scale


def _used(given: Iterable[int]) -> list[int]:
    used = _listed("used costs", given, "int")
    for at, units in enumerate(used):
        try:
            if isinstance(units, bool):
                raise TypeError
            is_within = 0 <= index(units) < 2**63
        except TypeError:
            raise ArgumentTypeError(
                f"the used cost at index {at} is {repr(units)[:80]} of type "
                f"{type(units).__name__}; expected an int from 0 up"
            ) from None
        if not is_within:
            raise ConfigurationError(
                f"the used cost at index {at} is {units}; expected an int from 0 to 2**63 - 1"
            )
    return used


def _listed(what: str, given: Iterable[Any], items: str) -> list[Any]:
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise ArgumentTypeError(
            f"the {what} are {repr(given)[:80]} of type {type(given).__name__}; expected a "
            f"list of {items}"
        )
    return list(given)
