"""Costs that are known from a usage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    json = sa.JSON().with_variant(JSONB(), "postgresql")
    op.add_column("operation_costs", sa.Column("usage", json))


def downgrade() -> None:
    with op.batch_alter_table("operation_costs") as costs:
        costs.drop_column("usage")
