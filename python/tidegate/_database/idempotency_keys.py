"""Requests that their clients may send again: each has a key, and is done once."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from tidegate._database.service_tables import idempotency_keys

if TYPE_CHECKING:
    from tidegate._database.audit import Actor

__all__ = ["KEPT_FOR", "MOST_KEYS", "KnownRequest", "OnceKey"]

KEPT_FOR = dt.timedelta(days=7)
MOST_KEYS = 100_000


class KnownRequest(NamedTuple):
    """What is known of a request that came before with the same key."""

    is_same: bool
    """Whether it asked for the same."""
    answer: Any
    """None while it has not ended."""


class OnceKey:
    """The key that a client gave to a request, which the database knows by a digest of it.

    Keys of different clients are different ones.
    """

    def __init__(self, actor: Actor, key: str, request: str) -> None:
        self._key = _digest(actor.name, key)
        self._request = _digest(request)

    def known(self, connection: sa.Connection, now: dt.datetime) -> KnownRequest | None:
        """The request that came before with this key; None for the first."""
        table = idempotency_keys
        row = connection.execute(
            sa.select(table.c.request, table.c.answer).where(
                table.c.key == self._key, table.c.created_at > now - KEPT_FOR
            )
        ).first()
        return None if row is None else KnownRequest(row.request == self._request, row.answer)

    def begin(self, connection: sa.Connection, now: dt.datetime) -> None:
        """Notes that the request is done now, and forgets old ones.

        Fails with an IntegrityError if another request with the same key has begun.
        """
        table = idempotency_keys
        connection.execute(sa.delete(table).where(table.c.created_at <= now - KEPT_FOR))
        row = {"key": self._key, "request": self._request, "created_at": now}
        made = connection.execute(sa.insert(table), row).inserted_primary_key
        assert made is not None
        connection.execute(sa.delete(table).where(table.c.id <= int(made[0]) - MOST_KEYS))

    def end(self, connection: sa.Connection, answer: Any) -> None:
        """Notes the answer, for when the request comes again."""
        table = idempotency_keys
        connection.execute(sa.update(table).where(table.c.key == self._key).values(answer=answer))

    def forget(self, connection: sa.Connection) -> None:
        """After a request that did nothing: it may come again."""
        connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.key == self._key))


def _digest(*parts: str) -> str:
    raw = [part.encode("utf-8", "surrogatepass") for part in parts]
    return hashlib.sha256(b"".join(b"%d:%s" % (len(each), each) for each in raw)).hexdigest()
