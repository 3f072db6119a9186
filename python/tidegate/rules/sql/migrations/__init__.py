"""The Alembic migrations of the tables."""
