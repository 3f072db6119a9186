"""``tidegate rules migrate``: the tables of rules in a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.cli.extras import naming_missing_package

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
    with naming_missing_package():
        from tidegate.rules.sql.upgrade import upgrade
    upgrade(arguments.database)
    print("the tables are up to date")
    return 0
