"""Creates the tables, and migrates them to the newest version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tidegate._database.connection import engine_of
from tidegate._errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from alembic.config import Config

    from tidegate._database.connection import DatabaseLike

__all__ = ["upgrade"]

# The number of a lock that one process holds while it migrates, because several workers may start
# at once. The number is arbitrary.
_LOCK = 0x7469646567617465


def upgrade(database: DatabaseLike, revision: str = "head") -> None:
    """Creates the tables of rules in a database, or migrates them to the newest version.

    `database` is a URL or an Engine of SQLAlchemy. Does nothing if the tables are up to date.
    Several processes may call it at once. Raises StorageError if the database cannot be reached.
    """
    try:
        from alembic import command
    except ModuleNotFoundError:
        raise ConfigurationError(
            "to make tables takes the package alembic; expected `pip install 'tidegate[sql]'`"
        ) from None
    engine = engine_of(database, creates=True)
    config = _config()
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            else:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    except sa.exc.DBAPIError as error:
        raise StorageError(f"the tables were not made: {error.orig}") from error


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    folder = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
