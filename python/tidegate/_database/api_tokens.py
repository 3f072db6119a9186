"""Tokens of the admin API: made, found, listed and revoked."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import re
import secrets
from typing import Any, NamedTuple

import sqlalchemy as sa

from tidegate._database.service_tables import api_tokens
from tidegate._errors import ConfigurationError

__all__ = [
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
# From the least to the most. `check` is for services that ask for checks.
ROLES = ("viewer", "check", "operator", "admin")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@ -]{0,99}")
# How often the table learns that a token is used.
_NOTED_EVERY = dt.timedelta(minutes=1)


class NewToken(NamedTuple):
    """A token that was just made. Only here is its text."""

    id: int
    text: str


def hash_of(token: str) -> str:
    """What the table keeps of a token."""
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
    if not _NAME.fullmatch(name):
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
    """The row of a token that is valid now; None where there is none."""
    wanted = hash_of(token)
    asked = sa.select(api_tokens).where(api_tokens.c.hash == wanted, _is_valid(now))
    row = connection.execute(asked).first()
    return row if row is not None and hmac.compare_digest(row.hash, wanted) else None


def has_tokens(connection: sa.Connection, now: dt.datetime) -> bool:
    """Whether there is a token that is valid now."""
    asked = sa.select(sa.exists(sa.select(api_tokens.c.id).where(_is_valid(now))))
    return bool(connection.execute(asked).scalar())


def note_use(connection: sa.Connection, row: Any, now: dt.datetime) -> bool:
    """Writes when the token was used last, once a minute at most. Whether it wrote."""
    if row.last_used_at is not None and now - row.last_used_at < _NOTED_EVERY:
        return False
    table = api_tokens
    connection.execute(sa.update(table).where(table.c.id == row.id).values(last_used_at=now))
    return True


def list_tokens(connection: sa.Connection) -> list[Any]:
    """All tokens, those that have ended too, without their hashes."""
    columns = [column for column in api_tokens.c if column.name != "hash"]
    return list(connection.execute(sa.select(*columns).order_by(api_tokens.c.id)).all())


def revoke_token(connection: sa.Connection, id: int, now: dt.datetime) -> Any:
    """Ends a token. Its row as it was; None where there is none that was not revoked."""
    table = api_tokens
    asked = sa.select(table).where(table.c.id == id, table.c.revoked_at.is_(None))
    row = connection.execute(asked).first()
    if row is not None:
        connection.execute(sa.update(table).where(table.c.id == id).values(revoked_at=now))
    return row
