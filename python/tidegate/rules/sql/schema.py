"""The tables of rules, tiers and violations."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

__all__ = [
    "NOTIFICATIONS",
    "RULE_TABLES",
    "TRIGGER",
    "UtcTime",
    "costs",
    "id_column",
    "json_type",
    "lists",
    "metadata",
    "overrides",
    "rules",
    "settings",
    "user_tiers",
    "violations",
]

# The channel on which PostgreSQL notifies of changes of RULE_TABLES.
NOTIFICATIONS = "tidegate_rules"
# The trigger on each of RULE_TABLES that sends them, and its function.
TRIGGER = "tidegate_rules_changed"


class UtcTime(sa.types.TypeDecorator[dt.datetime]):
    """An instant. SQLite stores no zones, so there it is stored as a time in UTC."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Any) -> dt.datetime | None:
        if value is None:
            return None
        value = value.astimezone(dt.timezone.utc)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: dt.datetime | None, dialect: Any) -> dt.datetime | None:
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=dt.timezone.utc)


metadata = sa.MetaData()
"""The tables, for Alembic and for programs that read them."""
json_type = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def id_column() -> sa.Column[Any]:
    # SQLite numbers rows only if the type is INTEGER.
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", number, primary_key=True, autoincrement=True)


def _times() -> tuple[sa.Column[Any], sa.Column[Any]]:
    return (
        sa.Column("created_at", UtcTime(), nullable=False, server_default=sa.func.now()),
        sa.Column("updated_at", UtcTime(), nullable=False, server_default=sa.func.now()),
    )


def _conditions() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("endpoints", json_type),
        sa.Column("methods", json_type),
        sa.Column("tiers", json_type),
        sa.Column("networks", json_type),
        sa.Column("conditions", json_type),
    )


# A row has the limits of one tier by a rule. Rows with the same rule_id are one rule.
rules = sa.Table(
    "rate_limit_rules",
    metadata,
    id_column(),
    sa.Column("rule_id", sa.String(100), index=True),
    sa.Column("tier", sa.String(50), nullable=False, server_default="*"),
    sa.Column("endpoint_pattern", sa.String(255)),
    sa.Column("limit_count", sa.Integer),
    sa.Column("window_seconds", sa.Integer),
    sa.Column("burst_capacity", sa.Integer),
    sa.Column("limits", sa.String(1000)),
    sa.Column("count_by", sa.String(255), nullable=False, server_default="user"),
    sa.Column("algorithm", sa.String(20)),
    *_conditions(),
    sa.Column("counts", sa.String(10), nullable=False, server_default="cost"),
    sa.Column("counter", sa.String(100)),
    sa.Column("replaces", json_type),
    sa.Column("shadow", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("headers", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("description", sa.Text),
    *_times(),
    sa.Column("reserve", json_type),
    sa.Column("carry_over", sa.String(12), nullable=False, server_default="as-is"),
    sa.Column("also", sa.Boolean, nullable=False, server_default=sa.false()),
)

# The other fields of a document: attributes, tiers, default_tier, algorithm, default.
settings = sa.Table(
    "rate_limit_settings",
    metadata,
    sa.Column("name", sa.String(50), primary_key=True),
    sa.Column("value", json_type, nullable=False),
)

overrides = sa.Table(
    "rate_limit_overrides",
    metadata,
    id_column(),
    sa.Column("rule_id", sa.String(100), nullable=False, index=True),
    sa.Column("key", json_type, nullable=False),
    sa.Column("limits", sa.String(1000), nullable=False),
    sa.Column("algorithm", sa.String(20)),
    sa.Column("expires_at", UtcTime()),
    sa.Column("reason", sa.Text),
    *_times(),
    sa.Column("begins_at", UtcTime()),
)

# Requests that are allowed ("allow") or refused ("block") whatever the rules say.
lists = sa.Table(
    "rate_limit_lists",
    metadata,
    id_column(),
    sa.Column("list", sa.String(5), nullable=False),
    sa.Column("name", sa.String(100)),
    *_conditions(),
    sa.Column("reason", sa.Text),
    *_times(),
    sa.Column("begins_at", UtcTime()),
    sa.Column("expires_at", UtcTime()),
)

user_tiers = sa.Table(
    "user_tiers",
    metadata,
    sa.Column("user_id", sa.String(255), primary_key=True),
    sa.Column("tier", sa.String(50), nullable=False),
    sa.Column("custom_limits", json_type),
    *_times(),
)

costs = sa.Table(
    "operation_costs",
    metadata,
    id_column(),
    sa.Column("endpoint", sa.String(255)),
    sa.Column("method", sa.String(20)),
    sa.Column("cost", sa.Integer),
    *_conditions(),
    sa.Column("priority", sa.String(10)),
    sa.Column("usage", json_type),
)

# A row counts all refusals of one caller by one rule at one endpoint within about a second.
violations = sa.Table(
    "rate_limit_violations",
    metadata,
    id_column(),
    sa.Column("user_id", sa.String(255)),
    sa.Column("endpoint", sa.String(255), nullable=False),
    sa.Column("timestamp", UtcTime(), nullable=False),
    sa.Column("attempted_count", sa.Integer, nullable=False),
    sa.Column("rule_id", sa.String(100)),
    sa.Column("caller", sa.String(255), nullable=False),
    sa.Column("attributes", json_type),
    sa.Index("ix_rate_limit_violations_caller", "caller", "timestamp"),
    sa.Index("ix_rate_limit_violations_timestamp", "timestamp"),
)

# The tables that a rule set is read from. Of user_tiers, only rows with custom limits are read.
RULE_TABLES = (rules, settings, overrides, lists, user_tiers, costs)
