"""``tidegate tokens``: makes, lists and revokes tokens of the admin API."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

from tidegate.cli.tables import add_output, print_csv, print_json, print_table, rows_of
from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

    from tidegate.rules.sql.connection import Database

__all__ = ["register"]

_DATABASE = "such as postgresql://HOST/NAME or sqlite:///PATH"
_HOURS = {"h": 1, "d": 24, "w": 168}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``tokens`` to those of the command line."""
    tokens = commands.add_parser("tokens", help="make, list and revoke tokens of the admin API")
    actions = tokens.add_subparsers(metavar="ACTION", required=True)

    create = actions.add_parser("create", help="make a token, and print it this once")
    create.add_argument("database", metavar="URL", help=_DATABASE)
    create.add_argument("name", metavar="NAME", help="what the audit log calls its holder")
    create.add_argument(
        "--role",
        default="viewer",
        choices=("viewer", "check", "operator", "admin"),
        help="default: %(default)s",
    )
    create.add_argument(
        "--expires", metavar="TIME", help="how long it is good, such as 12h, 90d or 52w"
    )
    create.set_defaults(run=_create)

    listing = actions.add_parser("list", help="all tokens, without what they are known by")
    listing.add_argument("database", metavar="URL", help=_DATABASE)
    add_output(listing)
    listing.set_defaults(run=_list)

    revoke = actions.add_parser("revoke", help="end a token, from its next request on")
    revoke.add_argument("database", metavar="URL", help=_DATABASE)
    revoke.add_argument("id", metavar="ID", type=int, help="its number in the list")
    revoke.set_defaults(run=_revoke)


def _open(url: str) -> Database:
    try:
        from tidegate.rules.sql.connection import Database
    except ImportError:
        raise ConfigurationError(
            "`tidegate tokens` needs the package SQLAlchemy; expected "
            "`pip install 'tidegate[server]'`"
        ) from None
    return Database(url, 30.0)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)


def _create(arguments: argparse.Namespace) -> int:
    database = _open(arguments.database)
    from tidegate.server.records.api_tokens import create_token

    now = _now()
    expires_at = None if arguments.expires is None else now + _span(arguments.expires)
    with database.use() as connection:
        made = create_token(
            connection, arguments.name, arguments.role, expires_at=expires_at, now=now
        )
        after = {
            "name": arguments.name,
            "role": arguments.role,
            "expires_at": expires_at and expires_at.isoformat(),
        }
        _record(connection, "token.create", made.id, after=after, now=now)
        connection.commit()
    database.close()
    print(made.text)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    database = _open(arguments.database)
    from tidegate.server.records.api_tokens import list_tokens

    with database.use() as connection:
        rows = list_tokens(connection)
    database.close()
    columns: dict[str, list[Any]] = {
        name: [getattr(row, name) for row in rows] for name in ("id", "name", "role")
    }
    for name in ("created_at", "expires_at", "last_used_at", "revoked_at"):
        times = [getattr(row, name) for row in rows]
        columns[name] = ["" if time is None else f"{time:%Y-%m-%d %H:%M}" for time in times]
    if arguments.output == "json":
        print_json(rows_of(columns))
    elif arguments.output == "csv":
        print_csv(columns)
    elif rows:
        print_table(columns)
    else:
        print("there is no token; `tidegate tokens create` makes one")
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    database = _open(arguments.database)
    from tidegate.server.records.api_tokens import revoke_token

    now = _now()
    with database.use() as connection:
        is_number = 0 < arguments.id < 2**63
        row = revoke_token(connection, arguments.id, now) if is_number else None
        if row is None:
            raise ConfigurationError(
                f"there is no token {arguments.id} that is not revoked; expected one of "
                "`tidegate tokens list`"
            )
        before = {"name": row.name, "role": row.role}
        _record(connection, "token.revoke", arguments.id, before=before, now=now)
        connection.commit()
    database.close()
    print(f"token {arguments.id} ({row.name}) is revoked")
    return 0


def _record(connection: Any, action: str, id: int, **more: Any) -> None:
    from tidegate.server.records.audit import Actor, record

    record(connection, Actor("command line", "admin", None), action, f"token:{id}", **more)


def _span(text: str) -> dt.timedelta:
    found = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if found is None or int(found[1]) == 0:
        raise ConfigurationError(f"--expires is {text!r}; expected one such as 12h, 90d or 52w")
    return dt.timedelta(hours=int(found[1]) * _HOURS[found[2]])
