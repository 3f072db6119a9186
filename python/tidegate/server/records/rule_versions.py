"""Keeps the documents of rules that were in force, each with its author."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tidegate.rules.sql.service_tables import rule_versions
from tidegate.rules.sql.stored_rules import etag_of

if TYPE_CHECKING:
    import datetime as dt

__all__ = ["keep_what_others_wrote", "list_versions", "put_into_force", "version_of"]

OUTSIDE = "outside of the service"


def keep_what_others_wrote(
    connection: sa.Connection, document: dict[str, Any], now: dt.datetime
) -> None:
    """Adds a version if the tables differ from the version in force.

    Rules may be changed by SQL, or may be older than the service.
    """
    table = rule_versions
    asked = sa.select(table.c.digest).where(table.c.in_force)
    if connection.execute(asked).scalar() != etag_of(document):
        put_into_force(connection, document, OUTSIDE, "found in the tables", now)


def put_into_force(
    connection: sa.Connection,
    document: dict[str, Any],
    actor: str,
    comment: str | None,
    now: dt.datetime,
) -> int:
    """Adds a version, which is in force from now on. Returns its number."""
    table = rule_versions
    connection.execute(sa.update(table).where(table.c.in_force).values(in_force=False))
    row = {
        "created_at": now,
        "actor": actor,
        "comment": comment,
        "digest": etag_of(document),
        "document": document,
        "in_force": True,
    }
    key = connection.execute(sa.insert(table), row).inserted_primary_key
    assert key is not None
    return int(key[0])


def list_versions(connection: sa.Connection, before: int | None, most: int) -> list[Any]:
    """Returns the newest versions first, without their documents."""
    table = rule_versions
    columns = [column for column in table.c if column.name != "document"]
    asked = sa.select(*columns).order_by(table.c.id.desc()).limit(most)
    if before is not None:
        asked = asked.where(table.c.id < before)
    return list(connection.execute(asked).all())


def version_of(connection: sa.Connection, id: int) -> Any:
    """Returns the row of a version, or None."""
    return connection.execute(sa.select(rule_versions).where(rule_versions.c.id == id)).first()
