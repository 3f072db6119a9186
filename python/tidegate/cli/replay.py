"""``tidegate replay``: whom would a limit have refused?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.cli import log_options, pictures, tables
from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

    from tidegate._core import Limit
    from tidegate.tuning.frame import Frame
    from tidegate.tuning.keys import Keys
    from tidegate.tuning.logs.log import Log
    from tidegate.tuning.replay import Replay

__all__ = ["register"]

_ROWS = 10
_EXAMPLES = """\
examples:
  tidegate replay access.log --limit 100/minute
  tidegate replay 'logs/*.gz' --by user --limit 10/second --limit 1000/hour --clients obey
  tidegate replay access.log --limit 100/minute --limit 50/minute --compare --output csv
  zcat access.log.gz | tidegate replay - --limit 100/minute --plot refused.png
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``replay`` to those of the command line."""
    replay = log_options.add_log_command(
        commands, "replay", help="say whom a limit would have refused of a log", epilog=_EXAMPLES
    )
    replay.add_argument(
        "--limit",
        dest="limits",
        metavar="LIMIT",
        action="append",
        required=True,
        help="such as 100/minute; several are one plan, or with --compare stand side by side",
    )
    replay.add_argument(
        "--clients",
        default="never",
        choices=("never", "obey", "back-off", "hammer"),
        help="what refused clients do: never come again, obey Retry-After, ... (default: never)",
    )
    replay.add_argument(
        "--compare",
        action="store_true",
        help="the limits side by side; of one limit, the algorithms",
    )
    replay.add_argument("--plot", metavar="FILE", help="a picture of it: .png, .svg or .pdf")
    tables.add_output(replay)
    replay.add_argument(
        "--most", type=int, help=f"clients to list (default: {_ROWS} in a table, else all)"
    )
    replay.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.most is not None and arguments.most < 0:
        raise ConfigurationError(f"--most is {arguments.most}; expected 0 and more")
    if arguments.compare and arguments.clients != "never":
        raise ConfigurationError(
            f"--compare was given with --clients {arguments.clients}; expected one of them"
        )
    if arguments.compare and arguments.algorithm and len(arguments.limits) == 1:
        raise ConfigurationError(
            f"--algorithm {arguments.algorithm} was given with --compare and one limit, which "
            "compares all algorithms; expected one of them, or several limits"
        )
    arguments.algorithm = arguments.algorithm or log_options.DEFAULT_ALGORITHM
    tuning = log_options.tuning_library()
    limits = _limits(arguments)
    pictures.check_path(arguments.plot)
    log = log_options.read(arguments)
    keys = log_options.keys_of(log, arguments.by)
    if arguments.compare:
        _compare(tuning, arguments, log, keys, limits)
    else:
        _replay(tuning, arguments, log, keys, limits)
    return 0


def _limits(arguments: argparse.Namespace) -> dict[str, list[Limit]]:
    """The limits by their texts, each of which may hold several. Before a long log is read."""
    from tidegate.limiter.limit import parse_many

    limits = {
        text: list(parse_many(text, algorithm=arguments.algorithm)) for text in arguments.limits
    }
    if len(limits) < len(arguments.limits):
        raise ConfigurationError(
            f"--limit was given as {', '.join(arguments.limits)}; expected each once"
        )
    return limits


def _replay(
    tuning: Any, arguments: argparse.Namespace, log: Log, keys: Keys, limits: dict[str, list[Limit]]
) -> None:
    result = tuning.replay(
        [limit for several in limits.values() for limit in several],
        keys,
        log.times,
        clients=arguments.clients,
        columns=["rule"],
        progress=arguments.progress,
    )
    if arguments.plot:
        pictures.save_replay(result, arguments.plot)
    totals = result.totals()
    columns = {arguments.by: list(totals["key"])}
    columns |= {name: totals[name].tolist() for name in totals.columns if name != "key"}
    if arguments.output == "csv":
        tables.print_csv({name: values[: arguments.most] for name, values in columns.items()})
    elif arguments.output == "json":
        rows = tables.rows_of(columns)[: arguments.most]
        tables.print_json({**_summary(result, totals, arguments, log), "clients_listed": rows})
    else:
        _print_summary(_summary(result, totals, arguments, log))
        refused = int((totals["refused"] > 0).sum())
        if refused:
            print()
            some = {name: values[:refused] for name, values in columns.items()}
            tables.print_table(some, _ROWS if arguments.most is None else arguments.most)


def _summary(
    result: Replay, totals: Frame, arguments: argparse.Namespace, log: Log
) -> dict[str, Any]:
    import numpy as np

    refused_keys = int(np.count_nonzero(np.asarray(totals["refused"])))
    summary: dict[str, Any] = {
        "limits": [str(limit) for limit in result.limits],
        "algorithm": result.limits[0].algorithm,
        "by": arguments.by,
        "first": _instant(log.times[0]),
        "last": _instant(log.times[-1]),
        "requests": len(result),
        "refused": result.refused,
        "refused_share": result.refused_share,
        "clients": len(totals),
        "clients_touched": refused_keys,
        "clients_touched_share": refused_keys / len(totals),
        "refused_by": _refused_by(result),
    }
    if result.waited_ns is not None:
        summary |= {
            "reaction": result.clients.reaction,
            "attempts": result.total_attempts,
            "refused_attempts": result.refused_attempts,
            "longest_wait": float(result.waited.max()),
        }
    return {**summary, "bad_lines": log.bad, "notes": [*log.notes, *result.notes]}


def _refused_by(result: Replay) -> dict[str, int]:
    import numpy as np

    rule = result.rule
    counts = np.bincount(rule.codes[~result.allowed], minlength=len(rule.names))
    return {str(name): int(count) for name, count in zip(rule.names, counts)}


def _print_summary(summary: dict[str, Any]) -> None:
    print(f"{' and '.join(summary['limits'])} ({summary['algorithm']}), by {summary['by']}")
    print(
        f"{tables.counted(summary['requests'], 'request')} of "
        f"{tables.counted(summary['clients'], 'client')}, "
        f"{summary['first']} to {summary['last']}"
    )
    if not summary["refused"]:
        print("refused: nobody")
    else:
        print(
            f"refused: {tables.counted(summary['refused'], 'request')} "
            f"({tables.percent(summary['refused_share'])}) of "
            f"{tables.counted(summary['clients_touched'], 'client')} "
            f"({tables.percent(summary['clients_touched_share'])})"
        )
    if len(summary["limits"]) > 1:
        each = (f"{count:,} by {name}" for name, count in summary["refused_by"].items())
        print(f"of them: {', '.join(each)}")
    if "attempts" in summary:
        print(
            f"attempts: {summary['attempts']:,} of clients that {_REACTIONS[summary['reaction']]}, "
            f"of which {summary['refused_attempts']:,} were refused; the longest wait was "
            f"{summary['longest_wait']:,.3g} s"
        )


_REACTIONS = {"obey": "obey Retry-After", "back-off": "back off", "hammer": "hammer"}


def _compare(
    tuning: Any, arguments: argparse.Namespace, log: Log, keys: Keys, limits: dict[str, list[Limit]]
) -> None:
    asked = limits if len(limits) > 1 else arguments.limits[0]
    comparison = tuning.compare(
        asked, keys, log.times, algorithm=arguments.algorithm, progress=arguments.progress
    )
    if arguments.plot:
        pictures.save_comparison(comparison, arguments.plot)
    columns = comparison.to_dict()
    if arguments.output == "csv":
        tables.print_csv(columns)
    elif arguments.output == "json":
        notes = [*log.notes, *comparison.notes]
        tables.print_json({"by": arguments.by, "rows": tables.rows_of(columns), "notes": notes})
    else:
        _print_comparison(columns)
        for note in comparison.notes:
            print(f"\n{note}")


def _print_comparison(columns: dict[str, list[Any]]) -> None:
    """A column for each limit: there are more answers than fit beside each other."""
    names = columns["name"]
    rows: dict[str, list[Any]] = {"": []}
    rows |= {str(name): [] for name in names}
    for answer, values in columns.items():
        if answer == "name":
            continue
        rows[""].append(answer)
        for name, value in zip(names, values):
            rows[str(name)].append(tables.shown(answer, value))
    tables.print_table(rows)


def _instant(ns: Any) -> str:
    import numpy as np

    return f"{np.datetime64(int(ns), 'ns').astype('datetime64[s]')}Z"
