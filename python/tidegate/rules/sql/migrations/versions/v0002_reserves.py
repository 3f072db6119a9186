"""Reserves, what is carried over, and priorities."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"

_json = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("rate_limit_rules", sa.Column("reserve", _json))
    op.add_column(
        "rate_limit_rules",
        sa.Column("carry_over", sa.String(12), nullable=False, server_default="as-is"),
    )
    # SQLite has no other way to say that a column may be NULL than to copy its table.
    with op.batch_alter_table("operation_costs") as costs:
        costs.alter_column("cost", existing_type=sa.Integer(), nullable=True)
        costs.add_column(sa.Column("priority", sa.String(10)))


def downgrade() -> None:
    op.execute("DELETE FROM operation_costs WHERE cost IS NULL")
    with op.batch_alter_table("operation_costs") as costs:
        costs.drop_column("priority")
        costs.alter_column("cost", existing_type=sa.Integer(), nullable=False)
    with op.batch_alter_table("rate_limit_rules") as rules:
        rules.drop_column("carry_over")
        rules.drop_column("reserve")
