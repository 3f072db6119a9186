"""Times of overrides and of entries of lists, and rules that add to others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_TIMES = (
    ("rate_limit_overrides", ("begins_at",)),
    ("rate_limit_lists", ("begins_at", "expires_at")),
)


def upgrade() -> None:
    op.add_column(
        "rate_limit_rules",
        sa.Column("also", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    for table, columns in _TIMES:
        for column in columns:
            op.add_column(table, sa.Column(column, sa.DateTime(timezone=True)))


def downgrade() -> None:
    for table, columns in _TIMES:
        with op.batch_alter_table(table) as changed:
            for column in columns:
                changed.drop_column(column)
    with op.batch_alter_table("rate_limit_rules") as rules:
        rules.drop_column("also")
