"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

_json = sa.JSON().with_variant(JSONB(), "postgresql")
_time = sa.DateTime(timezone=True)
_RULE_TABLES = (
    "rate_limit_rules",
    "rate_limit_settings",
    "rate_limit_overrides",
    "rate_limit_lists",
    "user_tiers",
    "operation_costs",
)


def _id() -> sa.Column[Any]:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", number, primary_key=True, autoincrement=True)


def _text(name: str, length: int, nullable: bool = True, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length), nullable=nullable, **more)


def _flag(name: str, default: bool) -> sa.Column[Any]:
    given = sa.true() if default else sa.false()
    return sa.Column(name, sa.Boolean(), nullable=False, server_default=given)


def _times() -> list[sa.Column[Any]]:
    return [
        sa.Column(name, _time, nullable=False, server_default=sa.func.now())
        for name in ("created_at", "updated_at")
    ]


def _conditions() -> list[sa.Column[Any]]:
    names = ("endpoints", "methods", "tiers", "networks", "conditions")
    return [sa.Column(name, _json) for name in names]


def upgrade() -> None:
    op.create_table(
        "rate_limit_rules",
        _id(),
        _text("rule_id", 100, index=True),
        _text("tier", 50, False, server_default="*"),
        _text("endpoint_pattern", 255),
        sa.Column("limit_count", sa.Integer()),
        sa.Column("window_seconds", sa.Integer()),
        sa.Column("burst_capacity", sa.Integer()),
        _text("limits", 1000),
        _text("count_by", 255, False, server_default="user"),
        _text("algorithm", 20),
        *_conditions(),
        _text("counts", 10, False, server_default="cost"),
        _text("counter", 100),
        sa.Column("replaces", _json),
        _flag("shadow", False),
        _flag("headers", True),
        _flag("enabled", True),
        sa.Column("description", sa.Text()),
        *_times(),
    )
    op.create_table(
        "rate_limit_settings",
        _text("name", 50, False, primary_key=True),
        sa.Column("value", _json, nullable=False),
    )
    op.create_table(
        "rate_limit_overrides",
        _id(),
        _text("rule_id", 100, False, index=True),
        sa.Column("key", _json, nullable=False),
        _text("limits", 1000, False),
        _text("algorithm", 20),
        sa.Column("expires_at", _time),
        sa.Column("reason", sa.Text()),
        *_times(),
    )
    op.create_table(
        "rate_limit_lists",
        _id(),
        _text("list", 5, False),
        _text("name", 100),
        *_conditions(),
        sa.Column("reason", sa.Text()),
        *_times(),
    )
    op.create_table(
        "user_tiers",
        _text("user_id", 255, False, primary_key=True),
        _text("tier", 50, False),
        sa.Column("custom_limits", _json),
        *_times(),
    )
    op.create_table(
        "operation_costs",
        _id(),
        _text("endpoint", 255),
        _text("method", 20),
        sa.Column("cost", sa.Integer(), nullable=False),
        *_conditions(),
    )
    op.create_table(
        "rate_limit_violations",
        _id(),
        _text("user_id", 255),
        _text("endpoint", 255, False),
        sa.Column("timestamp", _time, nullable=False),
        sa.Column("attempted_count", sa.Integer(), nullable=False),
        _text("rule_id", 100),
        _text("caller", 255, False),
        sa.Column("attributes", _json),
        sa.Index("ix_rate_limit_violations_caller", "caller", "timestamp"),
        sa.Index("ix_rate_limit_violations_timestamp", "timestamp"),
    )
    if op.get_bind().dialect.name == "postgresql":
        _notify_of_changes()


def _notify_of_changes() -> None:
    op.execute(
        """
        CREATE FUNCTION tidegate_rules_changed() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          PERFORM pg_notify('tidegate_rules', '');
          RETURN NULL;
        END $$
        """
    )
    for table in _RULE_TABLES:
        # Whoever moves users between tiers changes no rule.
        update = "UPDATE OF custom_limits" if table == "user_tiers" else "UPDATE"
        op.execute(
            f"CREATE TRIGGER tidegate_rules_changed AFTER INSERT OR {update} OR DELETE OR TRUNCATE "
            f"ON {table} FOR EACH STATEMENT EXECUTE FUNCTION tidegate_rules_changed()"
        )


def downgrade() -> None:
    op.drop_table("rate_limit_violations")
    for table in _RULE_TABLES:
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION tidegate_rules_changed()")
