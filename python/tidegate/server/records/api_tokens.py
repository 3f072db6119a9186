"""Makes, finds, lists and revokes tokens of the admin API."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import re
import secrets
from typing import Any, NamedTuple

import sqlalchemy as sa

from tidegate.limiter.errors import ConfigurationError
from tidegate.rules.sql.service_tables import api_tokens

__all__ = [
    "NAME",
    "PREFIX",
    "ROLES",
    "NewToken",
    "create_token",
    "find_token",
    "has_tokens",
    "hash_of",
    "list_tokens",
    "note_use",
    "revoke_token",
]

PREFIX = "tg_"
# The roles from the least to the highest. `check` is for services that call checks.
ROLES = ("viewer", "check", "operator", "admin")
# The pattern of names of tokens.
NAME = "[A-Za-z0-9][A-Za-z0-9._@ -]{0,99}"
# How often the use of a token is stored.
_NOTED_EVERY = dt.timedelta(minutes=1)


class NewToken(NamedTuple):
    """A new token. Only this object has its text."""

    id: int
    text: str


def hash_of(token: str) -> str:
    """The stored fields of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def create_token(
    connection: sa.Connection,
    name: str,
    role: str,
    *,
    expires_at: dt.datetime | None,
    now: dt.datetime,
) -> NewToken:
    """Adds a token of 256 random bits. Raises ConfigurationError."""
    if not re.fullmatch(NAME, name):
        raise ConfigurationError(
            f"the name is {name!r:.120}; expected 1 to 100 letters, digits, spaces or . _ @ -, "
            "the first a letter or a digit"
        )
    if role not in ROLES:
        raise ConfigurationError(f"the role is {role!r:.40}; expected {', '.join(ROLES)}")
    if expires_at is not None and expires_at <= now:
        raise ConfigurationError(
            f"the token expires at {expires_at.isoformat()}; expected a time to come"
        )
    text = PREFIX + secrets.token_urlsafe(32)
    row = {
        "name": name,
        "hash": hash_of(text),
        "role": role,
        "created_at": now,
        "expires_at": expires_at,
    }
    key = connection.execute(sa.insert(api_tokens), row).inserted_primary_key
    assert key is not None
    return NewToken(int(key[0]), text)


def _is_valid(now: dt.datetime) -> sa.ColumnElement[bool]:
    columns = api_tokens.c
    return sa.and_(
        columns.revoked_at.is_(None),
        sa.or_(columns.expires_at.is_(None), columns.expires_at > now),
    )


def find_token(connection: sa.Connection, token: str, now: dt.datetime) -> Any:
    """Returns the row of a token that is valid now, or None."""
    wanted = hash_of(token)
    asked = sa.select(api_tokens).where(api_tokens.c.hash == wanted, _is_valid(now))
    row = connection.execute(asked).first()
    return row if row is not None and hmac.compare_digest(row.hash, wanted) else None


def has_tokens(connection: sa.Connection, now: dt.datetime) -> bool:
    """Returns whether a token is valid now."""
    asked = sa.select(sa.exists(sa.select(api_tokens.c.id).where(_is_valid(now))))
    return bool(connection.execute(asked).scalar())


def note_use(connection: sa.Connection, row: Any, now: dt.datetime) -> bool:
    """Stores the time of the last use, once a minute at most. Returns whether it was stored."""
    if row.last_used_at is not None and now - row.last_used_at < _NOTED_EVERY:
        return False
    table = api_tokens
    connection.execute(sa.update(table).where(table.c.id == row.id).values(last_used_at=now))
    return True


def list_tokens(connection: sa.Connection) -> list[Any]:
    """Returns all tokens without their hashes, including those that have ended."""
    columns = [column for column in api_tokens.c if column.name != "hash"]
    return list(connection.execute(sa.select(*columns).order_by(api_tokens.c.id)).all())


def revoke_token(connection: sa.Connection, id: int, now: dt.datetime) -> Any:
    """Revokes a token. Returns its row as it was, or None if there is no token to revoke."""
    table = api_tokens
    asked = sa.select(table).where(table.c.id == id, table.c.revoked_at.is_(None))
    row = connection.execute(asked).first()
    if row is not None:
        connection.execute(sa.update(table).where(table.c.id == id).values(revoked_at=now))
    return row
