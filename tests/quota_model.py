"""Quotas restated plainly, for tests: a list of grants, each period by itself, a searched calendar.

It shares no code with the core, and no shape: zoneinfo in place of cctz, a roll for each period in
place of a closed form, exact fractions.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from zoneinfo import ZoneInfo

SECOND = 10**9
TOLERANCE_NS = 10**8
KINDS = {"carried": 0, "base": 1, "top-up": 2}


@dataclass(frozen=True)
class Terms:
    period: str = "month"
    anchor_day: int = 1
    anchor_month: int = 1
    zone: str = "UTC"
    cap: int | None = None
    percent: int | None = None
    periods: int = 1
    prorated: bool = False

    def text(self, limit: int) -> str:
        parts = [f"quota {limit}/{self.period} anchor {self.anchor_day} in {self.zone}"]
        if self.anchor_month != 1:
            parts = [
                f"quota {limit}/{self.period} anchor {self.anchor_month}-{self.anchor_day} in "
                f"{self.zone}"
            ]
        if self.cap is not None:
            parts.append(f"rollover {self.cap}")
        if self.percent is not None:
            parts.append(f"rollover {self.percent}%")
        if self.carries and self.periods != 1:
            parts.append(f"for {self.periods} periods")
        if self.prorated:
            parts.append("first prorated")
        return " ".join(parts)

    @property
    def carries(self) -> bool:
        return self.cap is not None or self.percent is not None

    @property
    def lasting(self) -> int:
        return self.periods if self.carries else 0

    def carried_of(self, limit: int, left: int) -> int:
        bounds = [left]
        if self.cap is not None:
            bounds.append(self.cap)
        if self.percent is not None:
            bounds.append(math.floor(Fraction(limit * self.percent, 100)))
        return min(bounds) if self.carries else 0

    def first_day(self, number: int) -> dt.date:
        """The day on which the period of this number begins; 0 is the first of 1970."""
        if self.period == "day":
            return dt.date(1970, 1, 1) + dt.timedelta(number)
        if self.period == "week":
            return dt.date(1970, 1, 4 + self.anchor_day) + dt.timedelta(7 * number)
        months = {"month": 1, "quarter": 3, "year": 12}[self.period]
        month = number * months + (self.anchor_month - 1) % months
        year, month = 1970 + month // 12, month % 12 + 1
        day = self.anchor_day
        while True:
            try:
                return dt.date(year, month, day)
            except ValueError:
                day -= 1

    def edge(self, number: int) -> int:
        return edge_of(self.first_day(number), self.zone)

    def number_at(self, now_s: int) -> int:
        day = dt.datetime.fromtimestamp(now_s, dt.timezone.utc).date()
        days = (day - dt.date(1970, 1, 1)).days
        number = days // {"day": 1, "week": 7, "month": 31, "quarter": 93, "year": 366}[self.period]
        number -= 3
        while self.edge(number + 1) <= now_s:
            number += 1
        return number


@cache
def edge_of(day: dt.date, zone: str) -> int:
    """The first second at which a clock on the wall shows midnight of `day`, or later."""
    zone_info = ZoneInfo(zone)
    midnight = dt.datetime.combine(day, dt.time())

    def is_reached(second: int) -> bool:
        wall = dt.datetime.fromtimestamp(second, dt.timezone.utc).astimezone(zone_info)
        return wall.replace(tzinfo=None) >= midnight

    second = int(midnight.replace(tzinfo=dt.timezone.utc).timestamp()) - 30 * 3600
    while not is_reached(second + 900):
        second += 900
    low, high = second, second + 900
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return high


@dataclass
class Grant:
    kind: str
    units: int
    left: int
    expires_s: int | None
    priority: int = 0
    serial: int = 0

    def order(self) -> tuple[object, ...]:
        expires = math.inf if self.expires_s is None else self.expires_s
        return (self.priority, expires, KINDS[self.kind], self.serial)


@dataclass
class Answer:
    allowed: bool
    remaining: int
    retry_after_ns: int | None  # None: never
    reset_after_ns: int


@dataclass
class QuotaModel:
    """What one key has. Instants never go back here."""

    limit: int
    terms: Terms
    number: int | None = None
    granted_for: int = 0
    used: int = 0
    grants: list[Grant] = field(default_factory=list)
    serial: int = 0

    def copy(self) -> QuotaModel:
        grants = [Grant(**vars(grant)) for grant in self.grants]
        return QuotaModel(
            self.limit, self.terms, self.number, self.granted_for, self.used, grants, self.serial
        )

    @property
    def ends_s(self) -> int:
        assert self.number is not None
        return self.terms.edge(self.number + 1)

    @property
    def base(self) -> Grant:
        return next(grant for grant in self.grants if grant.kind == "base")

    def available(self) -> int:
        return sum(grant.left for grant in self.grants)

    def prorated(self, units: int, now_s: int) -> int:
        assert self.number is not None
        starts = self.terms.edge(self.number)
        return math.floor(units * Fraction(self.ends_s - now_s, self.ends_s - starts))

    def advance(self, now_ns: int) -> None:
        now_s = now_ns // SECOND
        number = self.terms.number_at(now_s)
        if self.number is not None and self.is_forgotten(now_s):
            self.number, self.grants = None, []
        if self.number is None:
            self.number, self.granted_for, self.used = number, self.limit, 0
            units = self.prorated(self.limit, now_s) if self.terms.prorated else self.limit
            self.grants = [Grant("base", units, units, self.ends_s)]
        while self.number < number:
            self.roll()
        if self.limit > self.granted_for:
            more = self.prorated(self.limit - self.granted_for, now_s)
            self.base.units += more
            self.base.left += more
            self.granted_for = self.limit
        self.grants = [g for g in self.grants if g.expires_s is None or g.expires_s > now_s]

    def roll(self) -> None:
        """Into the next period."""
        assert self.number is not None
        base, ends = self.base, self.ends_s
        self.grants.remove(base)
        self.number += 1
        carried = self.terms.carried_of(self.granted_for, base.left)
        if self.terms.lasting:
            expires = self.terms.edge(self.number + self.terms.lasting)
            self.grants.append(Grant("carried", carried, carried, expires))
        self.grants = [g for g in self.grants if g.expires_s is None or g.expires_s > ends]
        for grant in self.grants:
            grant.units = grant.left
        self.grants.append(Grant("base", self.limit, self.limit, self.ends_s))
        self.granted_for, self.used = self.limit, 0

    def is_forgotten(self, now_s: int) -> bool:
        days = {"day": 3, "week": 9, "month": 32, "quarter": 93, "year": 367}[self.terms.period]
        kept = 0
        if self.terms.carries or self.terms.prorated:
            kept = 86_400 * max(366, days * (max(1, self.terms.lasting) + 1))
        if self.ends_s + kept > now_s:
            return False
        return all(
            grant.left == 0 or (grant.expires_s is not None and grant.expires_s <= now_s)
            for grant in self.grants
            if grant.kind == "top-up"
        )

    def ordered(self) -> list[Grant]:
        return sorted(self.grants, key=Grant.order)

    def wait(self, now_ns: int, cost: int) -> int | None:
        assert self.number is not None
        for later in range(1, self.terms.lasting + 2):
            edge = self.terms.edge(self.number + later) * SECOND
            then = self.copy()
            then.advance(edge)
            if cost <= then.available():
                return edge - now_ns
        return None

    def answer(self, now_ns: int, cost: int, allowed: bool) -> Answer:
        touched = any(grant.left < grant.units for grant in self.grants)
        return Answer(
            allowed,
            self.available(),
            0 if allowed else self.wait(now_ns, cost),
            self.ends_s * SECOND - now_ns if touched else 0,
        )

    def peek(self, now_ns: int, cost: int) -> Answer:
        standing = self.copy()
        standing.advance(now_ns)
        return standing.answer(now_ns, cost, cost <= standing.available())

    def hit(self, now_ns: int, cost: int) -> Answer:
        standing = self.copy()
        standing.advance(now_ns)
        if cost > standing.available():
            return standing.answer(now_ns, cost, False)
        vars(self).update(vars(standing))
        self.used += cost
        left = cost
        for grant in self.ordered():
            units = min(left, grant.left)
            grant.left -= units
            left -= units
        assert left == 0
        return self.answer(now_ns, cost, True)

    def refund(self, now_ns: int, cost: int) -> None:
        standing = self.copy()
        standing.advance(now_ns)
        units = min(cost, standing.used)
        if units == 0:
            return
        vars(self).update(vars(standing))
        self.used -= units
        for grant in reversed(self.ordered()):
            back = min(units, grant.units - grant.left)
            grant.left += back
            units -= back

    def top_up(self, now_ns: int, units: int, expires_s: int | None, priority: int) -> bool:
        if expires_s is not None and expires_s <= now_ns // SECOND:
            return False
        standing = self.copy()
        standing.advance(now_ns)
        standing.grants = [g for g in standing.grants if g.kind != "top-up" or g.left > 0]
        if sum(grant.kind == "top-up" for grant in standing.grants) >= 16:
            return False
        vars(self).update(vars(standing))
        self.serial += 1
        self.grants.append(Grant("top-up", units, units, expires_s, priority, self.serial))
        return True

    def status(self, now_ns: int) -> dict[str, object]:
        standing = self.copy()
        standing.advance(now_ns)
        total = dict.fromkeys(KINDS, 0)
        for grant in standing.grants:
            total[grant.kind] += grant.units
        return {
            "base": total["base"],
            "carried": total["carried"],
            "topped_up": total["top-up"],
            "used": standing.used,
            "available": standing.available(),
            "resets_s": standing.ends_s,
            "grants": [
                (g.kind, g.units, g.left, g.expires_s, g.priority)
                for g in standing.ordered()
                if g.units > 0 or g.kind == "base"
            ],
        }
