"""``tidegate recommend``: the least limit that would have refused so few."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tidegate.cli import log_options, pictures, tables
from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

    from tidegate.tuning.keys import Keys
    from tidegate.tuning.logs.log import Log

__all__ = ["register"]

_SPLIT = 0.5
_EXAMPLES = """\
examples:
  tidegate recommend access.log --refuse-clients 0.1%
  tidegate recommend access.log --refuse-requests 1% --period hour --backtest
  tidegate recommend access.log --by user --per path --output csv

exit codes:
  0  there is a recommendation, and with --backtest it kept its promise
  1  with --backtest: it did not
  2  the log cannot be read, or an option is not understood
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``recommend`` to those of the command line."""
    recommend = log_options.add_log_command(
        commands,
        "recommend",
        help="find the least limit that refuses few of a log",
        epilog=_EXAMPLES,
    )
    promise = recommend.add_mutually_exclusive_group()
    promise.add_argument(
        "--refuse-clients",
        metavar="SHARE",
        help="how many clients may be refused anything, such as 0.1%% (default)",
    )
    promise.add_argument(
        "--refuse-requests", metavar="SHARE", help="how many requests may be refused, such as 1%%"
    )
    recommend.add_argument("--period", default="minute", help="of the limit (default: %(default)s)")
    recommend.add_argument("--per", metavar="COLUMN", help="a limit for each value of a column")
    recommend.add_argument(
        "--backtest",
        action="store_true",
        help="recommend by the first part of the log, and count refusals in the rest",
    )
    recommend.add_argument(
        "--split", type=float, help=f"how much is the first part (default: {_SPLIT})"
    )
    recommend.add_argument("--plot", metavar="FILE", help="a picture of it: .png, .svg or .pdf")
    tables.add_output(recommend)
    recommend.set_defaults(run=_run)


def share_of(text: str, option: str) -> float:
    """``0.1%`` as 0.001. Raises ConfigurationError."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", text)
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    # Whether 1 is meant as 1 % cannot be known.
    if not found or value > 1 or (value == 1 and not found[2]):
        raise ConfigurationError(f"{option} is {text!r}; expected a share such as 0.1% or 0.001")
    return value


def _run(arguments: argparse.Namespace) -> int:
    if arguments.per and (arguments.backtest or arguments.plot):
        other = "--backtest" if arguments.backtest else "--plot"
        raise ConfigurationError(f"--per was given with {other}; expected one of them")
    if arguments.split is not None and not arguments.backtest:
        raise ConfigurationError("--split was given without --backtest; expected both or neither")
    arguments.algorithm = arguments.algorithm or log_options.DEFAULT_ALGORITHM
    tuning = log_options.tuning_library()
    options: dict[str, Any] = {
        "period": _period(arguments.period),
        "algorithm": arguments.algorithm,
    }
    for name in ("refuse_clients", "refuse_requests"):
        given = getattr(arguments, name)
        if given is not None:
            options[name] = share_of(given, f"--{name.replace('_', '-')}")
    _check(arguments)
    pictures.check_path(arguments.plot)
    log = log_options.read(arguments)
    keys = log_options.keys_of(log, arguments.by)
    if "status" in log:
        options["status"] = log["status"]
    if arguments.backtest:
        return _backtest(tuning, arguments, log, keys, options)
    if arguments.per:
        options["by"] = log_options.keys_of(log, arguments.per, "--per")
    found = tuning.recommend(keys, log.times, **options, progress=arguments.progress)
    if arguments.plot:
        pictures.save_recommendation(found, keys, log.times, arguments.plot)
    _print(found, arguments, log)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Before a long log is read for nothing."""
    from tidegate.limiter.limit import Limit

    Limit(1, _period(arguments.period), algorithm=arguments.algorithm)


def _period(text: str) -> str | float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text


def _backtest(
    tuning: Any, arguments: argparse.Namespace, log: Log, keys: Keys, options: dict[str, Any]
) -> int:
    split = _SPLIT if arguments.split is None else arguments.split
    tested = tuning.backtest(keys, log.times, split=split, **options)
    if arguments.output == "table":
        print(tables.plain_lines(str(tested)))
    else:
        columns = tested.frame.to_dict()
        if arguments.output == "csv":
            tables.print_csv(columns)
        else:
            tables.print_json(
                {
                    "by": arguments.by,
                    "kept": bool(tested.kept),
                    "split_at": str(tested.split_at),
                    "parts": tables.rows_of(columns),
                    "recommendation": tested.recommendation.to_dict(),
                    "log_notes": log.notes,
                }
            )
    return 0 if tested.kept else 1


def _print(found: Any, arguments: argparse.Namespace, log: Log) -> None:
    if arguments.output == "csv":
        tables.print_csv(found.frame.to_dict())
    elif arguments.output == "json":
        answer = (
            {"per": arguments.per, "groups": found.to_dict()} if arguments.per else found.to_dict()
        )
        tables.print_json({"by": arguments.by, **answer, "log_notes": log.notes})
    else:
        print(tables.plain_lines(str(found)))
