"""What Alembic runs to migrate the connection that upgrade() gives it."""

from __future__ import annotations

from alembic import context

from tidegate._database.service_tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # A service may have migrations of its own in the same database.
    version_table="tidegate_version",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
