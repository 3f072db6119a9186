"""The tables of the service."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"

_json = sa.JSON().with_variant(JSONB(), "postgresql")
_TABLES = (
    "usage_hours",
    "rule_versions",
    "audit_log",
    "api_tokens",
    "upgrade_requests",
    "user_quotas",
    "quota_top_ups",
    "anomalies",
)


def _id() -> sa.Column[Any]:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", number, primary_key=True, autoincrement=True)


def _string(name: str, length: int, *, nullable: bool = False, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length), nullable=nullable, **more)


def _text(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _at(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _count(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")


def upgrade() -> None:
    op.create_table(
        "usage_hours",
        _string("user_id", 255, primary_key=True),
        _string("endpoint", 255, primary_key=True),
        sa.Column("hour", sa.DateTime(timezone=True), primary_key=True),
        _count("allowed"),
        _count("refused"),
        _count("cost"),
        sa.Index("ix_usage_hours_hour", "hour"),
    )
    _create_versions()
    _create_audit_log()
    op.create_table(
        "api_tokens",
        _id(),
        _string("name", 100),
        _string("hash", 64, unique=True),
        _string("role", 20),
        _at("created_at"),
        _at("expires_at", nullable=True),
        _at("last_used_at", nullable=True),
        _at("revoked_at", nullable=True),
    )
    _create_upgrade_requests()
    op.create_table(
        "user_quotas",
        _string("user_id", 255, primary_key=True),
        _string("name", 100, primary_key=True),
        sa.Column("document", _json, nullable=False),
        _at("updated_at"),
    )
    op.create_table(
        "quota_top_ups",
        _id(),
        _string("user_id", 255),
        _string("quota", 100),
        sa.Column("units", sa.BigInteger(), nullable=False),
        _at("expires_at", nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False, server_default="0"),
        _text("reason"),
        _at("created_at"),
        sa.Index("ix_quota_top_ups_user", "user_id", "quota"),
    )
    op.create_table(
        "anomalies",
        _id(),
        _at("time"),
        _string("caller", 255),
        _string("endpoint", 255, nullable=True),
        sa.Column("score", sa.Float(), nullable=False),
        _string("action", 20),
        _text("reason", nullable=False),
        _at("window_start"),
        _at("acknowledged_at", nullable=True),
        sa.Index("ix_anomalies_time", "time"),
        sa.Index("ix_anomalies_caller", "caller", "time"),
    )


def _create_versions() -> None:
    op.create_table(
        "rule_versions",
        _id(),
        _at("created_at"),
        _string("actor", 255),
        _text("comment"),
        _string("digest", 64),
        sa.Column("document", _json, nullable=False),
        sa.Column("in_force", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    _create_unique("uq_rule_versions_in_force", "rule_versions", "in_force", "in_force = true")


def _create_upgrade_requests() -> None:
    op.create_table(
        "upgrade_requests",
        _id(),
        _string("user_id", 255),
        _string("current_tier", 50, nullable=True),
        _string("requested_tier", 50),
        _text("reason"),
        _string("status", 10, server_default="PENDING"),
        _at("created_at"),
        _at("decided_at", nullable=True),
        _string("decided_by", 255, nullable=True),
        _text("note"),
        sa.Index("ix_upgrade_requests_status", "status", "id"),
    )
    _create_unique(
        "uq_upgrade_requests_pending", "upgrade_requests", "user_id", "status = 'PENDING'"
    )


def _create_unique(name: str, table: str, column: str, where: str) -> None:
    """An index of the rows that the condition `where` holds for."""
    condition = sa.text(where)
    op.create_index(
        name, table, [column], unique=True, sqlite_where=condition, postgresql_where=condition
    )


def _create_audit_log() -> None:
    op.create_table(
        "audit_log",
        _id(),
        _at("time"),
        _string("actor", 255),
        _string("role", 20),
        _string("action", 50),
        _string("target", 600),
        sa.Column("before", _json),
        sa.Column("after", _json),
        _string("remote", 255, nullable=True),
        sa.Index("ix_audit_log_time", "time"),
        sa.Index("ix_audit_log_target", "target"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            """
            CREATE FUNCTION tidegate_audit_log_kept() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
              RAISE EXCEPTION 'rows of audit_log are never changed or deleted';
            END $$
            """
        )
        op.execute(
            "CREATE TRIGGER audit_log_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log "
            "FOR EACH STATEMENT EXECUTE FUNCTION tidegate_audit_log_kept()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_log_kept_{change.lower()} BEFORE {change} ON audit_log BEGIN "
            "SELECT RAISE(ABORT, 'rows of audit_log are never changed or deleted'); END"
        )


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION tidegate_audit_log_kept()")
