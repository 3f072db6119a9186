"""The tiers of users, from the table user_tiers."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Callable

import sqlalchemy as sa

from tidegate.limiter.background import renew_after_fork
from tidegate.limiter.checks import check_int, check_number
from tidegate.rules.sql.connection import Database
from tidegate.rules.sql.schema import user_tiers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Union

    from typing_extensions import Self

    from tidegate.rules.sql.connection import DatabaseLike

    Value = Union[str, bytes, None]

__all__ = ["SqlTiers"]

log = logging.getLogger("tidegate")

_MOST_AT_ONCE = 500
# The pause after a failure, so that not every user causes a query while the database is down.
_PAUSE = 1.0
# The thread ends if there is nothing to look up for this long.
_IDLE = 10.0


class SqlTiers:
    """Finds the tier of a user in the table ``user_tiers``, without a request waiting for it.

        Limiter(rules=source, tiers=SqlTiers("postgresql://db.internal/shop"))

    A new user has the rules' default tier until a thread has looked up the user's tier, which takes
    a few milliseconds. A known tier is looked up again after `ttl` seconds, and stays until the
    answer arrives, so that a slow or unavailable database changes no user's tier. If there are more
    than `capacity` users, those looked up longest ago are forgotten. Thread-safe, and safe to use
    after `fork()`.
    """

    def __init__(
        self,
        database: DatabaseLike,
        *,
        by: str = "user",
        ttl: float = 60.0,
        capacity: int = 100_000,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_number("the ttl", ttl, "0 or more seconds", least=0)
        check_int("the capacity", capacity, "1 or more", least=1)
        self._database = Database(database, timeout)
        self._by = by
        self._ttl = ttl
        self._capacity = capacity
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, str | None]] = OrderedDict()
        self._wanted: OrderedDict[str, None] = OrderedDict()
        # Those that the thread looks up now, without those that were forgotten meanwhile: the
        # answer may be from before the change that made forget() be called.
        self._asked: set[str] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.failures = 0
        """The number of lookups that failed."""
        renew_after_fork(self)

    def of(self, attributes: Mapping[str, Value]) -> str | None:
        """Returns the tier of a request with these attributes; None for the default tier.

        Never waits for the database.
        """
        given = attributes.get(self._by)
        if given is None:
            return None
        value = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
        known = self._known.get(value)
        if known is None or self._clock() >= known[0]:
            self._request(value)
        return None if known is None else known[1]

    def forget(self, value: str | None = None) -> None:
        """Forgets the tier of `value`, or of all users, so that it is looked up again."""
        with self._changed:
            if value is None:
                self._known.clear()
                self._asked.clear()
            else:
                self._known.pop(value, None)
                self._asked.discard(value)

    def close(self) -> None:
        """Ends the thread. Known tiers stay."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _request(self, value: str) -> None:
        if len(value) > 255 or "\0" in value or not _is_utf8(value):  # no row can have it
            return
        with self._changed:
            # Made-up users must not fill the memory while the database is down.
            if value in self._wanted or len(self._wanted) >= self._capacity or self._is_closed:
                return
            self._wanted[value] = None
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tidegate SqlTiers", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._is_closed, _IDLE)
                if self._is_closed or not self._wanted:
                    self._thread = None
                    self._database.close()
                    return
                values = list(self._wanted)[:_MOST_AT_ONCE]
                self._asked = set(values)
            try:
                found = self._look_up(values)
            except Exception as error:
                self.failures += 1
                if self.failures == 1 or self.failures % 100 == 0:
                    log.warning("the tiers of users were not found: %s", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, _PAUSE)
                continue
            self._learn(values, found)

    def _look_up(self, values: list[str]) -> dict[str, str]:
        asked = sa.select(user_tiers.c.user_id, user_tiers.c.tier).where(
            user_tiers.c.user_id.in_(values)
        )
        with self._database.use() as connection:
            return {row.user_id: row.tier for row in connection.execute(asked)}

    def _learn(self, values: list[str], found: dict[str, str]) -> None:
        until = self._clock() + self._ttl
        with self._changed:
            for value in values:
                if value not in self._asked:
                    continue  # it is still wanted
                self._wanted.pop(value, None)
                self._known[value] = (until, found.get(value))
                self._known.move_to_end(value)
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)

    def _after_fork(self) -> None:
        self._changed = threading.Condition()
        self._wanted = OrderedDict()
        self._thread = None
        self._database.forget_parent()


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
