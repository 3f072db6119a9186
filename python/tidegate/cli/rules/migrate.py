"""``tidegate rules migrate``: the tables of rules in a database."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tidegate.limiter.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    import argparse

__all__ = ["register"]


def register(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the action ``migrate`` to those of ``tidegate rules``."""
    migrate = actions.add_parser(
        "migrate", help="make the tables of rules, or bring them up to date"
    )
    migrate.add_argument(
        "database", metavar="URL", help="such as postgresql://HOST/NAME or sqlite:///PATH"
    )
    migrate.set_defaults(run=_migrate)


def _migrate(arguments: argparse.Namespace) -> int:
    try:
        from tidegate.rules.sql.upgrade import upgrade
    except ImportError as error:
        raise ConfigurationError(str(error)) from None
    try:
        upgrade(arguments.database)
    except StorageError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    print("the tables are up to date")
    return 0
