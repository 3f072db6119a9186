"""Creates the tables, and migrates them to the newest version."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tidegate.limiter.errors import ConfigurationError, StorageError
from tidegate.rules.sql.connection import engine_of, has_file, name_of

if TYPE_CHECKING:
    from alembic.config import Config

    from tidegate.rules.sql.connection import DatabaseLike

__all__ = ["VERSION_TABLE", "missing_tables", "unknown_version", "upgrade"]

# The number of a lock that one process holds while it migrates, because several workers may start
# at once. The number is arbitrary.
_LOCK = 0x7469646567617465
# A service may have its own migrations in the same database.
VERSION_TABLE = "tidegate_version"
_MIGRATIONS = Path(__file__).with_name("migrations")


def upgrade(database: DatabaseLike, revision: str = "head") -> None:
    """Creates the tables of rules in a database, or migrates them to the newest version.

    `database` is a URL or an Engine of SQLAlchemy. Does nothing if the tables are up to date.
    A file of SQLite is made for its owner alone, since it has hashes of tokens and the history.
    Several processes may call it at once. Raises StorageError if the database cannot be reached.
    """
    engine = engine_of(database, creates=True)
    # A service starts more often than it migrates, and importing Alembic takes a tenth of a second.
    if revision == "head" and has_file(engine) and _is_newest(engine):
        return
    config = _config()
    from alembic import command
    from alembic.util import CommandError

    _make_private(engine)
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            else:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    except sa.exc.DBAPIError as error:
        raise _not_made(engine, error) from error
    except CommandError as error:
        raise StorageError(
            f"the tables of {name_of(engine)} are not known: {error}; expected those of this "
            "version of tidegate, or of an earlier one"
        ) from None


def _make_private(engine: sa.Engine) -> None:
    """Makes the file of an SQLite that does not exist, with mode 0600."""
    if not has_file(engine):
        with contextlib.suppress(OSError):  # SQLite itself says what is wrong with the path
            os.close(os.open(str(engine.url.database), os.O_CREAT | os.O_EXCL, 0o600))


def missing_tables(database: DatabaseLike) -> str | None:
    """Returns what upgrade() would do, in words; None if it would do nothing. Changes nothing.

    Raises StorageError if the database cannot be reached.
    """
    engine = engine_of(database, creates=True)
    if not has_file(engine):
        return "makes the file and its tables"
    try:
        with engine.connect() as connection:
            known = _version_of(connection)
    except sa.exc.DBAPIError as error:
        raise StorageError(f"the database {name_of(engine)} failed: {error.orig}") from error
    if known == max(_versions()):
        return None
    return "makes its tables" if known is None else f"migrates its tables from version {known}"


def unknown_version(connection: sa.Connection) -> str | None:
    """The version of the tables, if it is not one that this package can make; else None."""
    version = _version_of(connection)
    return None if version is None or version in _versions() else version


def _is_newest(engine: sa.Engine) -> bool:
    try:
        with engine.connect() as connection:
            return _version_of(connection) == max(_versions())
    except sa.exc.DBAPIError as error:
        raise _not_made(engine, error) from error


def _version_of(connection: sa.Connection) -> str | None:
    """The version of the tables; None if there are none, or they were made by other means."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    version = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if version is None else str(version)


def _versions() -> set[str]:
    """The versions that this package can make."""
    return {path.name[1:5] for path in (_MIGRATIONS / "versions").glob("v*.py")}


def _not_made(engine: sa.Engine, error: sa.exc.DBAPIError) -> StorageError:
    return StorageError(f"the tables of {name_of(engine)} were not made: {error.orig}")


def _config() -> Config:
    try:
        from alembic.config import Config
    except ModuleNotFoundError:
        raise ConfigurationError(
            "to make tables takes the package alembic; expected `pip install 'tidegate[sql]'`"
        ) from None
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
