"""The audit log: who changed what, when, and from where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from tidegate.rules.sql.service_tables import audit_log

if TYPE_CHECKING:
    import datetime as dt

__all__ = ["Actor", "AuditFilter", "audit_entries", "record"]

_MOST_OF_TARGET = 600


class Actor(NamedTuple):
    """The author of a change."""

    name: str
    role: str
    remote: str | None
    user: str | None = None
    """The user who owns the issuer's token."""


def record(
    connection: sa.Connection,
    actor: Actor,
    action: str,
    target: str,
    *,
    before: Any = None,
    after: Any = None,
    now: dt.datetime,
) -> None:
    """Adds an entry, in the transaction of the change that it records."""
    row = {
        "time": now,
        "actor": actor.name[:255],
        "role": actor.role,
        "action": action,
        "target": target[:_MOST_OF_TARGET],
        "before": before,
        "after": after,
        "remote": actor.remote and actor.remote[:255],
    }
    connection.execute(sa.insert(audit_log), row)


class AuditFilter(NamedTuple):
    """The wanted entries: those that agree with each given value."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None


def audit_entries(
    connection: sa.Connection, wanted: AuditFilter, *, before: int | None = None, most: int
) -> list[Any]:
    """Returns the newest entries first, with ids below `before`."""
    table = audit_log
    asked = sa.select(table).order_by(table.c.id.desc()).limit(most)
    conditions = {
        table.c.actor: wanted.actor,
        table.c.action: wanted.action,
        table.c.target: wanted.target,
    }
    for column, value in conditions.items():
        if value is not None:
            asked = asked.where(column == value)
    if wanted.since is not None:
        asked = asked.where(table.c.time >= wanted.since)
    if wanted.until is not None:
        asked = asked.where(table.c.time < wanted.until)
    if before is not None:
        asked = asked.where(table.c.id < before)
    return list(connection.execute(asked).all())
