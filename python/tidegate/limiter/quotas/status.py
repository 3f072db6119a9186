"""The status of a key's quota, and top-ups."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Protocol, Union

    Key = Union[str, bytes]

    class HasQuotas(Protocol):
        """A Limiter."""

        @property
        def limits(self) -> tuple[_core.Limit, ...]: ...


__all__ = ["QuotaGrant", "QuotaStatus", "expiry_of", "quota_index", "status_from", "status_of"]


@dataclass(frozen=True)
class QuotaGrant:
    """Units of a key that were granted at once."""

    kind: Literal["carried", "base", "top-up"]
    units: int
    """The units at the beginning of the period, or when they were added."""
    left: int
    """The units that are not spent yet."""
    expires_at: dt.datetime | None
    """The expiry in UTC; None for a top-up that does not expire."""
    priority: int
    """Lower priorities are spent first; at equal priority, the grant that expires first."""


@dataclass(frozen=True)
class QuotaStatus:
    """The status of a key's quota."""

    limit: int
    """The units of a whole period."""
    base: int
    """The units granted for this period."""
    carried: int
    """The units carried from earlier periods when this period began."""
    topped_up: int
    """The units of top-ups, without units that were spent in earlier periods."""
    used: int
    """The units charged in this period."""
    available: int
    """The units that can be charged now."""
    resets_at: dt.datetime
    """When the next period begins, in UTC."""
    grants: tuple[QuotaGrant, ...]
    """The grants in the order of spending."""


def quota_index(limiter: HasQuotas, quota: str | None) -> int:
    """The index of the limiter's quota with this name, or of its only quota."""
    indices = [
        i
        for i, limit in enumerate(limiter.limits)
        if limit.algorithm == "quota" and quota in (None, limit.name)
    ]
    if len(indices) == 1:
        return indices[0]
    limits = ", ".join(repr(limit.name) for limit in limiter.limits)
    named = "a quota" if quota is None else f"a quota of the name {quota!r}"
    raise ConfigurationError(
        f"{named} was asked of a limiter whose limits are {limits}; expected exactly one such quota"
        + ("" if quota is not None or not indices else ", or its name as quota=")
    )


def status_of(limiter: HasQuotas, key: Key, quota: str | None) -> QuotaStatus:
    """The status of `key` for the limiter's quota with this name, or for its only quota."""
    index = quota_index(limiter, quota)
    return status_from(limiter.limits[index].count, _core.quota_status(limiter, index, key))


def status_from(limit: int, values: tuple[Any, ...]) -> QuotaStatus:
    """Converts the status that the core returns."""
    base, carried, topped_up, used, available, resets, grants = values
    return QuotaStatus(
        limit,
        base,
        carried,
        topped_up,
        used,
        available,
        instant_of(resets),
        tuple(
            QuotaGrant(
                kind, units, left, None if expires is None else instant_of(expires), priority
            )
            for kind, units, left, expires, priority in grants
        ),
    )


def instant_of(seconds: int) -> dt.datetime:
    """Converts seconds since the epoch to UTC, at most to the last year of a datetime."""
    return dt.datetime.fromtimestamp(min(seconds, 253_402_300_799), dt.timezone.utc)


def expiry_of(given: dt.datetime | float | None, what: str = "the expiry") -> int | None:
    """The seconds since the epoch at which a top-up expires, rounded down."""
    if given is None:
        return None
    if isinstance(given, dt.datetime):
        if given.tzinfo is None:
            raise ConfigurationError(
                f"{what} is {given!r} without a time zone; expected an aware datetime, or "
                "seconds since the epoch"
            )
        given = given.timestamp()
    if isinstance(given, bool) or not isinstance(given, (int, float)) or given != given:
        raise ArgumentTypeError(
            f"{what} is {given!r} of type {type(given).__name__}; expected an aware datetime, "
            "seconds since the epoch, or None"
        )
    return int(max(-1.0, min(given, 2.0**40)))
