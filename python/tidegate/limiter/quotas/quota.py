"""Quotas, which can be used like limits."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from tidegate._core import Limit
from tidegate.limiter.checks import check_int
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.quotas.status import expiry_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal
    from zoneinfo import ZoneInfo

    Period = Literal["day", "week", "month", "quarter", "year"]

__all__ = ["Quota", "Rollover"]

_PERIODS = ("day", "week", "month", "quarter", "year")


@dataclass(frozen=True)
class Rollover:
    """The share of a period's unused units that is carried into later periods.

    At most `cap` units and at most `percent` of the limit are carried; give one of them, or both.
    Carried units last `periods` periods.
    """

    cap: int | None = None
    percent: int | None = None
    periods: int = 1

    def __post_init__(self) -> None:
        if self.cap is None and self.percent is None:
            raise ConfigurationError(
                "a rollover was given without cap and percent; expected one of them, such as "
                "Rollover(5000) or Rollover(percent=50)"
            )
        for name in ("cap", "percent", "periods"):
            value = getattr(self, name)
            if value is not None:
                check_int(f"the {name} of a rollover", value)

    def _text(self) -> str:
        parts = [] if self.cap is None else [f"rollover {self.cap}"]
        if self.percent is not None:
            parts.append(f"rollover {self.percent}%")
        if self.periods != 1:
            parts.append(f"for {self.periods} periods")
        return " ".join(parts)


class Quota(Limit):
    """A number of units in each calendar period, of which unused units may be carried over.

    ``Quota()`` equals ``Quota(10_000, period="month", rollover=5_000)``. A `limit` that is left out
    is 10,000. A `rollover` that is left out is None, or 5,000 if `limit` is left out too. A quota
    is used like any limit: ``Limiter(Quota(...))``, in a list with other limits, in a Plan. Its
    text ``str(quota)``, such as ``quota 10000/month rollover 5000``, can be used in rules.

    `period` is day, week, month, quarter or year. It begins at midnight in the time zone `tz` (a
    name of the IANA database or a ZoneInfo) on `anchor_day` of the month, or on the last day of a
    shorter month. The `anchor_day` of a week is from 1 (Monday) to 7 (Sunday); for quarters and
    years it may be a date, whose month counts too. `rollover` is the most units that are carried
    into the next period, a share of the limit such as ``"50%"``, a Rollover, or None for no units.
    `first_period` is ``"full"`` or ``"prorated"``; a prorated first period gives a new key only the
    share of the units for the rest of the period. `name`, `shadow` and `id` are those of Limit:
    with an `id`, a key keeps its units when the quota changes. A larger limit then adds its share
    of the rest of the period; a smaller limit counts from the next period on. `was` are the limits
    before this one, the oldest first, each with the instant at which it ended (an aware datetime or
    seconds since the epoch), so that the change counts from that instant for every key.

    Immutable. Raises ConfigurationError for invalid arguments, including a time zone that the
    system does not know.
    """

    def __init__(
        self,
        limit: int | None = None,
        period: Period = "month",
        *,
        anchor_day: int | dt.date = 1,
        tz: str | ZoneInfo = "UTC",
        rollover: int | str | Rollover | None = ...,  # type: ignore[assignment]
        first_period: Literal["full", "prorated"] = "full",
        name: str | None = None,
        shadow: bool = False,
        id: str | None = None,
        was: Iterable[tuple[int, dt.datetime | float]] = (),
    ) -> None:
        if rollover is ...:  # type: ignore[comparison-overlap]
            rollover = 5_000 if limit is None else None
        if limit is None:
            limit = 10_000
        if check_int("the limit of a quota", limit) < 0:
            raise ConfigurationError(f"the limit of a quota is {limit}; expected 0 or more")
        if period not in _PERIODS:
            raise ConfigurationError(
                f"the period of a quota is {period!r}; expected {', '.join(_PERIODS)}"
            )
        if first_period not in ("full", "prorated"):
            raise ConfigurationError(
                f"the first period of a quota is {first_period!r}; expected 'full' or 'prorated'"
            )
        parts = [f"quota {limit}/{period}", _anchor(anchor_day, period), f"in {_zone(tz)}"]
        given = _rollover(rollover)
        if given is not None:
            parts.append(given._text())
        if first_period == "prorated":
            parts.append("first prorated")
        parts += _formers(was)
        super().__init__(" ".join(parts), name=name, shadow=shadow, id=id)


def _formers(was: Iterable[tuple[int, dt.datetime | float]]) -> list[str]:
    pairs: list[Any] = list(was) if hasattr(was, "__iter__") else [None]
    if not all(isinstance(each, (tuple, list)) and len(each) == 2 for each in pairs):
        raise ArgumentTypeError(
            f"was is {was!r:.80}; expected pairs of a limit and the instant at which it ended, "
            "such as [(10_000, datetime(...))]"
        )
    return [_former(*each) for each in pairs]


def _former(limit: int, until: dt.datetime | float) -> str:
    check_int("a limit that the quota was", limit)
    what = "the instant at which a limit ended"
    seconds = expiry_of(until, what)
    if seconds is None:
        raise ArgumentTypeError(
            f"{what} is None; expected an aware datetime or seconds since the epoch"
        )
    try:
        ended = dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
    except (OverflowError, ValueError, OSError):
        raise ConfigurationError(
            f"{what} is {until!r}; expected one before the year 10000"
        ) from None
    return f"was {limit} until {ended:%Y-%m-%dT%H:%M:%SZ}"


def _anchor(anchor: int | dt.date, period: str) -> str:
    if isinstance(anchor, dt.date):
        if period == "week":
            return f"anchor {anchor.isoweekday()}"
        if period in ("quarter", "year"):
            return f"anchor {anchor.month}-{anchor.day}"
        return f"anchor {anchor.day}"
    if check_int("the anchor day", anchor, "an int or a date") < 1:
        raise ConfigurationError(f"the anchor day is {anchor}; expected 1 or more")
    return f"anchor {anchor}"


def _zone(tz: str | ZoneInfo) -> str:
    name = tz if isinstance(tz, str) else getattr(tz, "key", None)
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"the time zone is {tz!r} of type {type(tz).__name__}; expected a name such as "
            "'Europe/Berlin', or a ZoneInfo"
        )
    if not name or any(c in name for c in " \t\r\n\f\v;,|"):
        raise ConfigurationError(
            f"the time zone is {name!r}; expected a name such as 'Europe/Berlin'"
        )
    return name


def _rollover(given: int | str | Rollover | None) -> Rollover | None:
    if given is None or isinstance(given, Rollover):
        return given
    if isinstance(given, str):
        number = given.strip()
        if number.endswith("%") and number[:-1].isdigit():
            return Rollover(percent=int(number[:-1]))
        if number.isdigit():
            return Rollover(int(number))
        raise ConfigurationError(
            f"the rollover is {given!r}; expected units such as 5000, or a share such as '50%'"
        )
    expected = "an int, a share such as '50%', a Rollover or None"
    if check_int("the rollover", given, expected) < 0:
        raise ConfigurationError(f"the rollover is {given}; expected 1 or more, or None")
    return Rollover(given) if given else None
