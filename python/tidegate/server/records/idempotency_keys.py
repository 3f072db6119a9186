"""Keeps the keys of requests that clients may send again, so that each request is done once."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from tidegate.rules.sql.service_tables import idempotency_keys

if TYPE_CHECKING:
    from tidegate.server.records.audit import Actor

__all__ = ["KEPT_FOR", "MOST_KEYS", "KnownRequest", "OnceKey"]

KEPT_FOR = dt.timedelta(days=7)
MOST_KEYS = 100_000


class KnownRequest(NamedTuple):
    """The stored state of an earlier request with the same key."""

    is_same: bool
    """Whether the earlier request was the same."""
    answer: Any
    """The answer, or None while the request has not ended."""


class OnceKey:
    """The key that a client gave to a request, which the database stores as a digest.

    Equal keys of different clients are different.
    """

    def __init__(self, actor: Actor, key: str, request: str) -> None:
        self._key = _digest(actor.name, key)
        self._request = _digest(request)

    def known(self, connection: sa.Connection, now: dt.datetime) -> KnownRequest | None:
        """Returns the earlier request with this key, or None."""
        table = idempotency_keys
        row = connection.execute(
            sa.select(table.c.request, table.c.answer).where(
                table.c.key == self._key, table.c.created_at > now - KEPT_FOR
            )
        ).first()
        return None if row is None else KnownRequest(row.request == self._request, row.answer)

    def begin(self, connection: sa.Connection, now: dt.datetime) -> None:
        """Records that the request has begun, and forgets old requests.

        Fails with an IntegrityError if another request with the same key has begun.
        """
        table = idempotency_keys
        connection.execute(sa.delete(table).where(table.c.created_at <= now - KEPT_FOR))
        row = {"key": self._key, "request": self._request, "created_at": now}
        made = connection.execute(sa.insert(table), row).inserted_primary_key
        assert made is not None
        connection.execute(sa.delete(table).where(table.c.id <= int(made[0]) - MOST_KEYS))

    def end(self, connection: sa.Connection, answer: Any) -> None:
        """Stores the answer, for the case that the request is sent again."""
        table = idempotency_keys
        connection.execute(sa.update(table).where(table.c.key == self._key).values(answer=answer))

    def forget(self, connection: sa.Connection) -> None:
        """Forgets a request that did nothing, so that it may be sent again."""
        connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.key == self._key))


def _digest(*parts: str) -> str:
    raw = [part.encode("utf-8", "surrogatepass") for part in parts]
    return hashlib.sha256(b"".join(b"%d:%s" % (len(each), each) for each in raw)).hexdigest()
