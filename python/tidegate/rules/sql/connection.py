"""A connection to the database of rules that never waits longer than its timeout."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import socket
from typing import TYPE_CHECKING, Any

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError, StorageError
from tidegate.rules.sql.deadlines import within

try:
    import sqlalchemy as sa
except ModuleNotFoundError:
    raise ImportError(
        "rules in a database need the package SQLAlchemy; expected "
        "`pip install 'tidegate[sql]'`, or 'tidegate[postgres]'"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Union

    DatabaseLike = Union[str, sa.URL, sa.Engine]

__all__ = ["Database", "engine_of", "has_file", "name_of"]

# Options of URLs whose values may be shown. All others are hidden: the name of one that has a
# password may be misspelled.
_NO_SECRETS = (
    "application_name|channel_binding|client_encoding|connect_timeout|dbname|gssencmode|host|hostaddr"
    "|keepalives(?:_[a-z]+)?|load_balance_hosts|mode|port|sslcert|sslcrl|sslmode|sslrootcert"
    "|target_session_attrs|tcp_user_timeout|timeout|uri|user"
)
# Connections that belong to the process that forked this one. Freeing them would close them there.
_of_parents: list[Any] = []


def engine_of(database: DatabaseLike, timeout: float = 5.0, *, creates: bool = False) -> sa.Engine:
    """The engine of a database. It has no pool: each use opens and closes a connection."""
    if isinstance(database, sa.Engine):
        return database
    if not isinstance(database, (str, sa.URL)):
        raise ArgumentTypeError(
            f"the database is of type {type(database).__name__}; expected a URL such as "
            "postgresql://host/name or sqlite:///path, or an Engine of SQLAlchemy"
        )
    if isinstance(database, str) and database.startswith("postgres://"):
        database = "postgresql" + database[len("postgres") :]
    try:
        url = sa.make_url(database)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        arguments: dict[str, Any] = {}
        if url.get_backend_name() == "sqlite":
            arguments = {"check_same_thread": False, "timeout": timeout}
        elif url.get_driver_name() == "psycopg":
            arguments = {"connect_timeout": max(2, math.ceil(timeout))}
        engine = sa.create_engine(
            url, poolclass=sa.NullPool, connect_args=arguments, json_deserializer=_json_or_text
        )
    except sa.exc.ArgumentError as error:
        raise ConfigurationError(
            f"the database {_shown(database)!r} is not accepted: {error}; expected a URL such as "
            "postgresql://host/name or sqlite:///path"
        ) from None
    except ValueError:  # its text may be a part of a password
        raise ConfigurationError(
            f"the database {_shown(database)!r} has a port that is no number; expected a URL such "
            "as postgresql://host/name or sqlite:///path"
        ) from None
    except ModuleNotFoundError as error:
        is_postgres = url.get_backend_name() == "postgresql"
        expected = "`pip install 'tidegate[postgres]'`" if is_postgres else "SQLite or PostgreSQL"
        raise ConfigurationError(
            f"the database {_shown(database)!r} needs the package {error.name}; expected {expected}"
        ) from None
    if not creates and not has_file(engine):
        raise StorageError(
            f"there is no file {url.database!r}; expected a database with tables of rules"
        )
    return engine


def _shown(database: str | sa.URL) -> str:
    """Returns a URL, which may be malformed, without its password."""
    # A password ends at a sign that is, or would be if it were normalized, an @.
    hidden = re.sub(r"(?s)^([A-Za-z][\w+]*:?/+)?.*[@\ufe6b\uff20]", r"\1***@", str(database))
    return _without_secrets(hidden)


def _without_secrets(url: str) -> str:
    """Hides the values of all options of a URL but those that are no secrets."""
    return re.sub(rf"(?is)([?&])(?!(?:{_NO_SECRETS})=)([^=&]*=)[^&]*", r"\1\2***", url)


def has_file(engine: sa.Engine) -> bool:
    """Returns whether the file of an SQLite exists; other databases always count as existing."""
    file = engine.url.database
    return (
        engine.dialect.name != "sqlite"
        or not file
        or file == ":memory:"
        or file.startswith("file:")
        or os.path.exists(file)
    )


def name_of(engine: sa.Engine) -> str:
    """Returns the URL of a database without the password."""
    return _without_secrets(engine.url.render_as_string(hide_password=True))


def _json_or_text(text: str) -> Any:
    """Reads a value of JSON; returns what is not JSON, as SQLite stores too, as it stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class Database:
    """One connection, opened on first use and again after a failure. Not thread-safe."""

    def __init__(self, database: DatabaseLike, timeout: float) -> None:
        if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
            raise ConfigurationError(f"the timeout is {timeout!r}; expected seconds above 0")
        self._timeout = timeout
        self.engine = engine_of(database, timeout)
        self._connection: sa.Connection | None = None
        # The file of an SQLite that the connection has open.
        self._file: tuple[int, int] | None = None
        self.opened = 0
        """The number of connections that were opened."""

    @property
    def name(self) -> str:
        """The database's URL without the password."""
        return name_of(self.engine)

    @contextlib.contextmanager
    def use(self, *, isolation: str | None = None) -> Iterator[sa.Connection]:
        """Yields the connection. If the block raises, the connection is closed.

        Raises StorageError if the database fails, or does not answer in time.
        """
        try:
            file = self._file_of_now()
            if file != self._file:  # it was replaced, and the connection reads the one before
                self.close()
                self._file = file
            if self._connection is None:
                self._connection = self.engine.connect()
                self.opened += 1
                if isolation is not None and self.engine.dialect.name != "sqlite":
                    self._connection = self._connection.execution_options(isolation_level=isolation)
            with _within(self._timeout, self._connection):
                try:
                    yield self._connection
                finally:
                    self._connection.rollback()
        except ConfigurationError:  # the data is wrong; the connection is fine
            raise
        except BaseException as error:
            self.close()
            if isinstance(error, (sa.exc.SQLAlchemyError, OSError)):
                advice = ""
                if re.search("no such (table|column)|Undefined(Table|Column)", repr(error)):
                    advice = "; expected the tables that `tidegate rules migrate URL` makes"
                raise StorageError(
                    f"the database {self.name} failed: {_cause(error)}{advice}"
                ) from error
            raise

    def _file_of_now(self) -> tuple[int, int] | None:
        """The device and inode of an SQLite's file. Raises StorageError if the file is gone."""
        if self.engine.dialect.name != "sqlite":
            return None
        if not has_file(self.engine):  # to connect would make an empty database
            raise StorageError(f"there is no file {self.engine.url.database!r}")
        try:
            status = os.stat(self.engine.url.database or "")
        except OSError:  # one in memory
            return None
        return status.st_dev, status.st_ino

    def close(self) -> None:
        """Closes the connection; the next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception), _within(self._timeout, connection):
                connection.invalidate()
            with contextlib.suppress(Exception):
                connection.close()

    def forget_parent(self) -> None:
        """Leaves the connection to the parent, in a child of fork()."""
        if self._connection is not None:
            _of_parents.append(self._connection)
            self._connection = None
        self.engine.dispose(close=False)


def _cause(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@contextlib.contextmanager
def _within(seconds: float, connection: sa.Connection) -> Iterator[None]:
    """Ends the connection if the block takes longer: a broken network may never report it."""
    if connection.invalidated:
        yield
        return
    raw = connection.connection.driver_connection
    with within(seconds, functools.partial(_end, raw)):
        yield


def _end(raw: Any) -> None:
    with contextlib.suppress(Exception):
        if hasattr(raw, "interrupt"):  # SQLite's
            raw.interrupt()
        else:
            # Closing the copy leaves the driver's own descriptor open.
            with socket.socket(fileno=os.dup(raw.fileno())) as copy:
                copy.shutdown(socket.SHUT_RDWR)
