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

    def text(self, limit: int, former: list[tuple[int, int]] | None = None) -> str:
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
        for count, until_s in former or []:
            until = dt.datetime.fromtimestamp(until_s, dt.timezone.utc)
            parts.append(f"was {count} until {until.strftime('%Y-%m-%dT%H:%M:%SZ')}")
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
    # Counts before the present one, each with the second at which it ended.
    former: list[tuple[int, int]] = field(default_factory=list)
    number: int | None = None
    granted_for: int = 0
    used: int = 0
    grants: list[Grant] = field(default_factory=list)
    serial: int = 0
    seen: int = 0  # the count in force at the last call that was recorded

    def copy(self) -> QuotaModel:
        grants = [Grant(**vars(grant)) for grant in self.grants]
        return QuotaModel(**{**vars(self), "grants": grants, "former": list(self.former)})

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

    def count_at(self, at_s: int) -> int:
        """The count in force."""
        return next((count for count, until in self.former if at_s < until), self.limit)

    def changes(self) -> list[tuple[int, int]]:
        """The recorded changes: when, and to what count."""
        return [(until, self.count_at(until)) for _, until in self.former]

    def is_recorded(self) -> bool:
        """Whether the count of the last call was in force, as recorded, about its period."""
        begins = self.ends_s - self.longest_s()
        edges = [-math.inf, *(until for _, until in self.former), math.inf]
        counts = [count for count, _ in self.former] + [self.limit]
        return any(
            count == self.seen and since < self.ends_s and until > begins
            for count, since, until in zip(counts, edges, edges[1:])
        )

    def longest_s(self) -> int:
        days = {"day": 3, "week": 9, "month": 32, "quarter": 93, "year": 367}[self.terms.period]
        return days * 86_400

    def raise_to(self, count: int, at_s: int) -> None:
        """Adds the share of a larger count for the rest of the period."""
        if count > self.granted_for:
            more = self.prorated(count - self.granted_for, at_s)
            self.base.units += more
            self.base.left += more
            self.granted_for = count

    def raise_as_recorded(self, until_s: float) -> None:
        assert self.number is not None
        for at_s, count in self.changes():
            if self.terms.edge(self.number) < at_s < self.ends_s and at_s <= until_s:
                self.raise_to(count, at_s)

    def advance(self, now_ns: int) -> None:
        now_s = now_ns // SECOND
        number = self.terms.number_at(now_s)
        if self.number is not None and self.is_forgotten(now_s):
            self.number, self.grants = None, []
        if self.number is None:
            self.number, self.used = number, 0
            whole = self.count_at(self.terms.edge(number))
            self.granted_for = self.count_at(now_s) if self.terms.prorated else whole
            units = self.granted_for
            if self.terms.prorated:
                units = self.prorated(units, now_s)
            self.grants = [Grant("base", units, units, self.ends_s)]
            if not self.terms.prorated:
                self.raise_as_recorded(now_s)
        else:
            recorded = self.is_recorded()
            while self.number < number:
                if recorded:
                    self.raise_as_recorded(math.inf)
                first = self.count_at(self.ends_s) if recorded else self.seen
                if self.number + 1 == number and not recorded:
                    first = min(first, self.count_at(self.ends_s))
                self.roll(first)
            if recorded:
                self.raise_as_recorded(now_s)
        self.seen = self.count_at(now_s)
        self.raise_to(self.seen, now_s)
        self.grants = [g for g in self.grants if g.expires_s is None or g.expires_s > now_s]

    def roll(self, count: int) -> None:
        """Into the next period, which begins with `count`."""
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
        self.grants.append(Grant("base", count, count, self.ends_s))
        self.granted_for, self.used = count, 0

    def is_forgotten(self, now_s: int) -> bool:
        kept = 0
        if self.terms.carries or self.terms.prorated:
            kept = max(366 * 86_400, self.longest_s() * (max(1, self.terms.lasting) + 1))
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
        edges = [self.terms.edge(self.number + i) for i in range(1, self.terms.lasting + 2)]
        changes = [at for at, _ in self.changes() if now_ns // SECOND < at < edges[-1]]
        for at_s in sorted({*edges, *changes}):
            then = self.copy()
            then.advance(at_s * SECOND)
            if cost <= then.available():
                return at_s * SECOND - now_ns
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

    def bring_forward(self, now_ns: int) -> None:
        self.advance(now_ns)

    def reset(self, now_ns: int) -> None:
        if self.number is None or self.is_forgotten(now_ns // SECOND):
            return
        self.advance(now_ns)
        self.used = 0
        self.base.left = self.base.units
        for grant in self.grants:
            grant.units = grant.left

    def forget(self) -> None:
        self.number, self.grants = None, []

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
