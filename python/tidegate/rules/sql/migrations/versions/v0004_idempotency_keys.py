"""Keys of requests that are done once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "idempotency_keys",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("answer", sa.JSON().with_variant(JSONB(), "postgresql")),
        sa.Index("ix_idempotency_keys_created_at", "created_at"),
    )


def downgrade() -> None:
    op.drop_table("idempotency_keys")
