"""Decisions by user, endpoint and hour."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Callable, NamedTuple, Union

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.limiter.checks import check_int
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.rules.background_writer import BackgroundWriter
from tidegate.rules.sql.bounded_table import HOUR, HourlyPrune, check_bounds
from tidegate.rules.sql.connection import Database
from tidegate.rules.sql.service_tables import usage_hours
from tidegate.rules.sql.usage_bound import MOST_COST, OTHERS, UsageBound
from tidegate.rules.violation_log import text_of

if TYPE_CHECKING:
    from typing import Any

    from tidegate.rules.sql.connection import DatabaseLike

    Value = Union[str, bytes, None]

__all__ = ["UsageHistory", "UsageHour", "usage_of"]

# The most users who are known to come again.
_MOST_KNOWN = 20_000
# The rows of one transaction, and the least pause behind it: SQLite has one writer at a time, and a
# change over the admin API must not wait for all rows. The pause is as long as a transaction that
# takes longer, as on a busy machine: else a change might find none for its whole time-out.
_AT_ONCE = 2_500
_PAUSE = 0.15

# The key of an entry: user, endpoint, and the hour's number since the epoch.
_Key = tuple[str, str, int]


class UsageHour(NamedTuple):
    """The decisions of one hour."""

    user: str
    endpoint: str
    hour: dt.datetime
    """The beginning of the hour, in UTC."""
    allowed: int
    refused: int
    cost: int
    """The units that allowed requests were charged."""


class UsageHistory(BackgroundWriter[_Key, list[int]]):
    """Adds decisions to the table usage_hours, on a thread of its own.

        history = UsageHistory("sqlite:///tidegate.db")
        history.add("42", "/api/posts", allowed=3, refused=1, cost=3)

    add() only adds to numbers in memory, which are written every `interval` seconds. At most
    `capacity` numbers of users, endpoints and hours wait; beyond that decisions are `dropped` and
    counted. A write that fails is tried again a few times. Hours older than `keep` days are
    deleted; with None none are. Several processes may write to one table.

    The table has at most `most_rows` rows and about `most_bytes` bytes; None means no bound. Users
    that it does not have yet get at most a 24th of the room in each hour, and all at most a fourth;
    further decisions are added to one row, of the user "" and the endpoint "(other)". Once nine
    tenths are used, users who came in one hour only are joined likewise, and then the oldest hours
    are deleted.

    Thread-safe, and safe to use after `fork()`; call close() to write what waits, which the end of
    the interpreter does too. Raises ConfigurationError for options out of range, and a database
    that SQLAlchemy does not know.
    """

    _what = "hours of usage"

    def __init__(
        self,
        database: DatabaseLike,
        *,
        interval: float = 10.0,
        capacity: int = 100_000,
        keep: float | None = 90,
        most_rows: int | None = None,
        most_bytes: int | None = None,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(interval=interval, capacity=capacity)
        check_bounds(keep, most_rows, most_bytes)
        self._database = Database(database, timeout)
        self._clock = clock
        self._prune = HourlyPrune(self._what, usage_hours.c.hour, keep)
        self._bound: UsageBound | None = None
        if most_rows is not None or most_bytes is not None:
            self._bound = UsageBound(most_rows, most_bytes)
        # The users of two successive writes, and those of the last one: invented users come once.
        self._known: dict[str, None] = {}
        self._before: set[str] = set()
        self._folded = 0
        self.on_known: Callable[[list[str]], object] | None = None
        """Called with the users who are known, after each write of a history with a bound."""

    @property
    def folded(self) -> int:
        """The number of requests in the row of all others, for want of room."""
        return self._folded + (0 if self._bound is None else self._bound.folded)

    def add(
        self,
        user: Value,
        endpoint: Value,
        *,
        allowed: int = 0,
        refused: int = 0,
        cost: int = 0,
        at: float | None = None,
    ) -> None:
        """Adds decisions made at `at`, in seconds since the epoch; now if it is None.

        Does not wait. Texts are cut to 255 characters.
        """
        hour = int((self._clock() if at is None else at) // HOUR)
        key = (text_of(user), text_of(endpoint), hour)
        with self._lock:
            known = self._waiting.get(key)
            if known is not None:
                known[0] += allowed
                known[1] += refused
                known[2] = min(known[2] + cost, MOST_COST)
            elif self._has_room_for(key[0]):
                self._waiting[key] = [allowed, refused, min(cost, MOST_COST)]
                self._start_if_needed()
            elif self._bound is None:
                self.dropped += allowed + refused
            else:
                self._folded += allowed + refused
                self._merge(
                    self._waiting.setdefault((*OTHERS, hour), [0, 0, 0]), [allowed, refused, cost]
                )

    def _has_room_for(self, user: str) -> bool:
        """Whether another entry may wait. Users who are known have a fourth more room."""
        waiting = len(self._waiting)
        if waiting < self._capacity:
            return True
        return user in self._known and waiting < self._capacity + self._capacity // 4

    def _write(self, waiting: dict[_Key, list[int]]) -> None:
        users = {key[0] for key in waiting} - {OTHERS[0]}
        # Users who are known come first: a write that is cut short lacks others. While the history
        # is closed, which must not take long, only some of the others have rows of their own.
        known: list[_Key] = []
        strangers: list[_Key] = []
        for key in sorted(waiting):
            if self._bound is None or key[:2] != OTHERS:
                (known if key[0] in self._known else strangers).append(key)
        for begin in range(0, len(known), _AT_ONCE):
            self._write_some(known[begin : begin + _AT_ONCE], waiting)
        for begin in range(0, len(strangers), _AT_ONCE):
            if begin and self._bound is not None and self._stop.is_set():
                self._folded += self._join(strangers[begin:], waiting)
                break
            self._write_some(strangers[begin : begin + _AT_ONCE], waiting)
        # Last, and so once in each write, what has no rows of its own.
        if waiting:
            self._write_part(waiting)
            with self._lock:
                waiting.clear()
        if self._bound is not None:
            self._note_users(users)
        self._prune.prune_if_due(self._database, self._clock(), self._make_room)

    def _write_some(self, keys: list[_Key], waiting: dict[_Key, list[int]]) -> None:
        """Writes some of the entries that wait, and removes them."""
        begun = time.monotonic()
        admitted = {key: waiting[key] for key in keys}
        if self._bound is not None:
            with self._database.use() as connection:
                admitted = self._bound.admit(connection, admitted)
        joined = [key for key in keys if key not in admitted]
        if admitted:
            self._write_part(admitted)
        with self._lock:
            for key in admitted:
                del waiting[key]
        self._join(joined, waiting)
        if admitted and self._is_sqlite and waiting:
            took = time.monotonic() - begun
            self._stop.wait(max(_PAUSE, took))  # not while the history is closed

    def _join(self, keys: list[_Key], waiting: dict[_Key, list[int]]) -> int:
        """Joins entries that wait to those of all others. Returns the number of their requests."""
        requests = 0
        with self._lock:
            for key in keys:
                entry = waiting.pop(key)
                requests += self._requests_of(entry)
                self._merge(waiting.setdefault((*OTHERS, key[2]), [0, 0, 0]), entry)
        return requests

    def _note_users(self, users: set[str]) -> None:
        known = dict(self._known)
        for user in users & self._before:
            known.pop(user, None)  # so that those who came last are at the end
            known[user] = None
        for user in list(known)[: max(0, len(known) - _MOST_KNOWN)]:
            del known[user]
        self._known, self._before = known, users
        if self.on_known is not None:
            self.on_known(list(known))

    def _write_part(self, part: dict[_Key, list[int]]) -> None:
        with self._database.use() as connection:
            rows = [
                {
                    "user_id": user,
                    "endpoint": endpoint,
                    "hour": dt.datetime.fromtimestamp(hour * HOUR, dt.timezone.utc),
                    "allowed": allowed,
                    "refused": refused,
                    "cost": cost,
                }
                for (user, endpoint, hour), (allowed, refused, cost) in sorted(part.items())
            ]
            # Many executions of one statement: one with many rows takes ten times as long to build.
            # The rows are in one order, so processes that write the same never wait for each other.
            connection.execute(self._adding(), rows)
            connection.commit()

    def _make_room(self, connection: sa.Connection, hour: int) -> None:
        if self._bound is not None:
            self._bound.make_room(connection, hour, self._adding())

    @property
    def _is_sqlite(self) -> bool:
        return self._database.engine.dialect.name == "sqlite"

    def _adding(self) -> Any:
        adding: Any = (sqlite if self._is_sqlite else postgresql).insert(usage_hours)
        known, added = usage_hours.c, adding.excluded
        least = sa.func.min if self._is_sqlite else sa.func.least
        room = least(known.cost, sa.literal(MOST_COST, sa.BigInteger) - added.cost)
        return adding.on_conflict_do_update(
            index_elements=["user_id", "endpoint", "hour"],
            set_={
                "allowed": known.allowed + added.allowed,
                "refused": known.refused + added.refused,
                "cost": room + added.cost,
            },
        )

    def _merge(self, known: list[int], entry: list[int]) -> None:
        known[0] += entry[0]
        known[1] += entry[1]
        known[2] = min(known[2] + entry[2], MOST_COST)

    def _requests_of(self, entry: list[int]) -> int:
        return entry[0] + entry[1]

    def _close(self) -> None:
        self._database.close()

    def _forget_parent(self) -> None:
        self._database.forget_parent()


def usage_of(
    database: DatabaseLike,
    *,
    since: dt.datetime,
    until: dt.datetime,
    user: str | None = None,
    endpoint: str | None = None,
    most: int = 10_000,
    timeout: float = 30.0,
) -> list[UsageHour]:
    """Returns the hours that begin in [since, until), the earliest first; at most `most`.

    All users and endpoints are included unless they are given. Raises ConfigurationError for times
    without a
    zone, StorageError where the database does not answer.
    """
    for name, value in (("since", since), ("until", until)):
        if not isinstance(value, dt.datetime):
            raise ArgumentTypeError(f"{name} is {value!r}; expected a datetime with a time zone")
        if value.tzinfo is None:
            raise ConfigurationError(f"{name} is {value!r}; expected a datetime with a time zone")
    check_int("most", most, "1 or more", least=1)
    columns = usage_hours.c
    asked = (
        sa.select(usage_hours)
        .where(columns.hour >= since, columns.hour < until)
        .order_by(columns.hour, columns.user_id, columns.endpoint)
        .limit(most)
    )
    if user is not None:
        asked = asked.where(columns.user_id == user)
    if endpoint is not None:
        asked = asked.where(columns.endpoint == endpoint)
    source = Database(database, timeout)
    try:
        with source.use() as connection:
            rows = connection.execute(asked).mappings().all()
    finally:
        source.close()
    names = ("user_id", "endpoint", "hour", "allowed", "refused", "cost")
    return [UsageHour(*(row[name] for name in names)) for row in rows]
