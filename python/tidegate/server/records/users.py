"""Stores the tiers of single users, and their requests for other tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tidegate.rules.sql.rows import rows_as_shown
from tidegate.rules.sql.schema import user_tiers
from tidegate.rules.sql.service_tables import upgrade_requests

if TYPE_CHECKING:
    import datetime as dt

__all__ = [
    "decide_request",
    "delete_user",
    "list_requests",
    "list_users",
    "request_of",
    "set_tier",
    "user_of",
]


def user_of(connection: sa.Connection, id: str) -> Any:
    """Returns the row of a user, or None. Damaged values are texts, so that it can be mended."""
    rows = rows_as_shown(connection, user_tiers, user_tiers.c.user_id == id, 1)
    return rows[0] if rows else None


def list_users(
    connection: sa.Connection, *, tier: str | None, after: str | None, most: int
) -> list[Any]:
    """Returns users in the order of their ids, beginning after `after`."""
    asked: sa.ColumnElement[bool] = sa.true()
    if tier is not None:
        asked = sa.and_(asked, user_tiers.c.tier == tier)
    if after is not None:
        asked = sa.and_(asked, user_tiers.c.user_id > after)
    return rows_as_shown(connection, user_tiers, asked, most)


def set_tier(connection: sa.Connection, id: str, tier: str, now: dt.datetime, **more: Any) -> None:
    """Sets the tier of a user, and `custom_limits` if they are given."""
    changed = sa.update(user_tiers).where(user_tiers.c.user_id == id)
    values = {"tier": tier, "updated_at": now, **more}
    if connection.execute(changed, values).rowcount == 0:
        connection.execute(sa.insert(user_tiers), {"user_id": id, "created_at": now, **values})


def delete_user(connection: sa.Connection, id: str) -> None:
    """Gives a user the default tier, and removes the user's own limits."""
    connection.execute(sa.delete(user_tiers).where(user_tiers.c.user_id == id))


def list_requests(
    connection: sa.Connection,
    *,
    status: str | None,
    user: str | None,
    before: int | None,
    most: int,
) -> list[Any]:
    """Returns requests for other tiers, the newest first."""
    table = upgrade_requests
    asked: sa.ColumnElement[bool] = sa.true()
    if status is not None:
        asked = sa.and_(asked, table.c.status == status)
    if user is not None:
        asked = sa.and_(asked, table.c.user_id == user)
    if before is not None:
        asked = sa.and_(asked, table.c.id < before)
    return rows_as_shown(connection, table, asked, most, newest_first=True)


def request_of(connection: sa.Connection, id: int) -> Any:
    """Returns the row of a request, or None."""
    rows = rows_as_shown(connection, upgrade_requests, upgrade_requests.c.id == id, 1)
    return rows[0] if rows else None


def decide_request(
    connection: sa.Connection,
    id: int,
    status: str,
    *,
    decided_by: str,
    note: str | None,
    now: dt.datetime,
) -> bool:
    """Decides a pending request. Returns False if it is not pending."""
    table = upgrade_requests
    changed = sa.update(table).where(table.c.id == id, table.c.status == "PENDING")
    values = {"status": status, "decided_at": now, "decided_by": decided_by[:255], "note": note}
    return connection.execute(changed, values).rowcount == 1
