"""The tables of the service: usage, versions of rules, audit log, tokens, requests, quotas."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tidegate.rules.sql.schema import UtcTime, id_column, json_type, metadata

__all__ = [
    "anomalies",
    "api_tokens",
    "audit_log",
    "idempotency_keys",
    "metadata",
    "quota_top_ups",
    "rule_versions",
    "upgrade_requests",
    "usage_hours",
    "user_quotas",
]


def _at(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, UtcTime(), nullable=nullable)


# Decisions of one hour, which begins at `hour`.
usage_hours = sa.Table(
    "usage_hours",
    metadata,
    sa.Column("user_id", sa.String(255), primary_key=True),
    sa.Column("endpoint", sa.String(255), primary_key=True),
    sa.Column("hour", UtcTime(), primary_key=True),
    sa.Column("allowed", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("refused", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("cost", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("ix_usage_hours_hour", "hour"),
)

# Every document of rules that was put into force.
rule_versions = sa.Table(
    "rule_versions",
    metadata,
    id_column(),
    _at("created_at"),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("comment", sa.Text),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("document", json_type, nullable=False),
    sa.Column("in_force", sa.Boolean, nullable=False, server_default=sa.false()),
)
sa.Index(
    "uq_rule_versions_in_force",
    rule_versions.c.in_force,
    unique=True,
    sqlite_where=rule_versions.c.in_force == sa.true(),
    postgresql_where=rule_versions.c.in_force == sa.true(),
)

# Each row is a change and its author. Triggers refuse to change or delete rows.
audit_log = sa.Table(
    "audit_log",
    metadata,
    id_column(),
    _at("time"),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("role", sa.String(20), nullable=False),
    sa.Column("action", sa.String(50), nullable=False),
    sa.Column("target", sa.String(600), nullable=False),
    sa.Column("before", json_type),
    sa.Column("after", json_type),
    sa.Column("remote", sa.String(255)),
    sa.Index("ix_audit_log_time", "time"),
    sa.Index("ix_audit_log_target", "target"),
)

# A token has 256 random bits, so its SHA-256 needs no salt.
api_tokens = sa.Table(
    "api_tokens",
    metadata,
    id_column(),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False, unique=True),
    sa.Column("role", sa.String(20), nullable=False),
    _at("created_at"),
    _at("expires_at", nullable=True),
    _at("last_used_at", nullable=True),
    _at("revoked_at", nullable=True),
)

# `status` is PENDING, APPROVED, REJECTED or WITHDRAWN; a user has at most one pending request.
upgrade_requests = sa.Table(
    "upgrade_requests",
    metadata,
    id_column(),
    sa.Column("user_id", sa.String(255), nullable=False),
    sa.Column("current_tier", sa.String(50)),
    sa.Column("requested_tier", sa.String(50), nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("status", sa.String(10), nullable=False, server_default="PENDING"),
    _at("created_at"),
    _at("decided_at", nullable=True),
    sa.Column("decided_by", sa.String(255)),
    sa.Column("note", sa.Text),
    sa.Index("ix_upgrade_requests_status", "status", "id"),
)
sa.Index(
    "uq_upgrade_requests_pending",
    upgrade_requests.c.user_id,
    unique=True,
    sqlite_where=upgrade_requests.c.status == "PENDING",
    postgresql_where=upgrade_requests.c.status == "PENDING",
)

user_quotas = sa.Table(
    "user_quotas",
    metadata,
    sa.Column("user_id", sa.String(255), primary_key=True),
    sa.Column("name", sa.String(100), primary_key=True),
    sa.Column("document", json_type, nullable=False),
    _at("updated_at"),
)

# Units that a user has in addition to those of the period. The lowest priority is spent first.
quota_top_ups = sa.Table(
    "quota_top_ups",
    metadata,
    id_column(),
    sa.Column("user_id", sa.String(255), nullable=False),
    sa.Column("quota", sa.String(100), nullable=False),
    sa.Column("units", sa.BigInteger, nullable=False),
    _at("expires_at", nullable=True),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
    sa.Column("reason", sa.Text),
    _at("created_at"),
    sa.Index("ix_quota_top_ups_user", "user_id", "quota"),
)

# Requests by the SHA-256 of the key that their client gave; `request` is a SHA-256 too.
# `answer` is null while a request has not ended.
idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    id_column(),
    sa.Column("key", sa.String(64), nullable=False, unique=True),
    sa.Column("request", sa.String(64), nullable=False),
    _at("created_at"),
    sa.Column("answer", json_type),
    sa.Index("ix_idempotency_keys_created_at", "created_at"),
)

anomalies = sa.Table(
    "anomalies",
    metadata,
    id_column(),
    _at("time"),
    sa.Column("caller", sa.String(255), nullable=False),
    sa.Column("endpoint", sa.String(255)),
    sa.Column("score", sa.Float, nullable=False),
    sa.Column("action", sa.String(20), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    _at("window_start"),
    _at("acknowledged_at", nullable=True),
    sa.Index("ix_anomalies_time", "time"),
    sa.Index("ix_anomalies_caller", "caller", "time"),
)
