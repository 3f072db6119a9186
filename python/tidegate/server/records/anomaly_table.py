"""Reads and acknowledges rows of the table of anomalies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tidegate.rules.sql.service_tables import anomalies

if TYPE_CHECKING:
    import datetime as dt

__all__ = ["acknowledge", "list_anomalies", "open_anomalies"]


def list_anomalies(connection: sa.Connection, *, only_open: bool, most: int) -> list[Any]:
    """Returns the newest anomalies first; with `only_open` those that nobody has acknowledged."""
    asked = sa.select(anomalies).order_by(anomalies.c.id.desc()).limit(most)
    if only_open:
        asked = asked.where(anomalies.c.acknowledged_at.is_(None))
    return list(connection.execute(asked).all())


def open_anomalies(connection: sa.Connection) -> int:
    """Returns the number of anomalies that nobody has acknowledged."""
    asked = sa.select(sa.func.count()).where(anomalies.c.acknowledged_at.is_(None))
    return int(connection.execute(asked).scalar_one())


def acknowledge(connection: sa.Connection, id: int, now: dt.datetime) -> Any:
    """Acknowledges an anomaly. Returns its row as it was, or None if there is no open one."""
    row = connection.execute(
        sa.select(anomalies).where(anomalies.c.id == id, anomalies.c.acknowledged_at.is_(None))
    ).first()
    if row is not None:
        connection.execute(
            sa.update(anomalies).where(anomalies.c.id == id).values(acknowledged_at=now)
        )
    return row
