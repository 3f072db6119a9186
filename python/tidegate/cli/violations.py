"""``tidegate violations``: callers whose refusals rose."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidegate.cli.extras import naming_missing_package
from tidegate.cli.tables import plain
from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

__all__ = ["register"]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``violations`` to those of the command line."""
    violations = commands.add_parser("violations", help="look at refused callers")
    actions = violations.add_subparsers(metavar="ACTION", required=True)
    top = actions.add_parser("top", help="callers whose refusals rose against their own past")
    top.add_argument("database", metavar="URL", help="such as postgresql://HOST/NAME")
    top.add_argument("--period", default="1h", help="such as 10m, 1h or 1d (default: %(default)s)")
    top.add_argument(
        "--past", type=int, default=24, help="how many periods before to compare with (default: 24)"
    )
    top.add_argument("--by", default="caller", choices=("caller", "rule", "endpoint"))
    top.add_argument("--most", type=int, default=20, help="how many to show (default: 20)")
    top.set_defaults(run=_top)


def _top(arguments: argparse.Namespace) -> int:
    with naming_missing_package():
        from tidegate.rules.sql.violation_table import top_violations
    rises = top_violations(
        arguments.database,
        period=_seconds(arguments.period),
        past=arguments.past,
        by=arguments.by,
        most=arguments.most,
    )
    if not rises:
        print(f"nobody was refused in the last {arguments.period}")
        return 0
    width = max(len(arguments.by), *(len(plain(each.name)) for each in rises))
    print(f"{arguments.by:<{width}}  last {arguments.period:>5}  mean before  rise")
    for each in rises:
        rise = f"x{each.factor:.1f}"
        print(f"{plain(each.name):<{width}}  {each.recent:>10}  {each.before:>11.1f}  {rise}")
    return 0


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if found is None or int(found[1]) == 0:
        raise ConfigurationError(f"the period is {text!r}; expected one such as 10m, 1h or 1d")
    return float(int(found[1]) * _SECONDS[found[2]])
