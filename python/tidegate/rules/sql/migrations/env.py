"""Alembic runs this module to migrate the connection that upgrade() gives it."""

from __future__ import annotations

from alembic import context

from tidegate.rules.sql.service_tables import metadata
from tidegate.rules.sql.upgrade import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
