"""The log of a command: which files, in which format, counted by what."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

from tidegate.cli.extras import naming_missing_package
from tidegate.cli.tables import plain, print_anything
from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

    from tidegate.tuning.keys import Keys
    from tidegate.tuning.logs.log import Log
    from tidegate.tuning.progress import Progress

__all__ = ["DEFAULT_ALGORITHM", "add_log_command", "keys_of", "read", "tuning_library"]

DEFAULT_ALGORITHM = "token-bucket"
_WORTH_A_BAR = 50_000_000  # bytes, about a third of a second


def add_log_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    *,
    help: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """Adds a command that reads a log, with the options that all of these take."""
    import argparse

    parser = commands.add_parser(
        name, help=help, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        help="files or globs, also compressed; - is standard input",
    )
    parser.add_argument(
        "--by",
        default="ip",
        metavar="COLUMN",
        help="who is counted: ip, user, path, ..., or several as ip+path (default: %(default)s)",
    )
    parser.add_argument("--format", help="that of the log, such as combined, json or csv; detected")
    parser.add_argument(
        "--column",
        metavar="NAME=FIELD",
        action="append",
        default=[],
        help="which field of the log fills a column: time=ts; may be given several times",
    )
    parser.add_argument("--time-zone", metavar="ZONE", help="of times without one (default: UTC)")
    parser.add_argument("--algorithm", help=f"default: {DEFAULT_ALGORITHM}")
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="a bar (default: where the log is long, tqdm is installed and it is a terminal)",
    )
    return parser


def tuning_library() -> Any:
    """The package tidegate.tuning. Raises ConfigurationError where what it needs is missing."""
    with naming_missing_package():
        from tidegate import tuning
    return tuning


def read(arguments: argparse.Namespace) -> Log:
    """Reads the log, and says on standard error what is to be known of it."""
    print_anything()
    columns = {}
    for text in arguments.column:
        name, equals, field = text.partition("=")
        if not (name and equals and field):
            raise ConfigurationError(f"--column is {text!r}; expected NAME=FIELD, such as time=ts")
        columns[name] = int(field) if field.isdecimal() else field
    if arguments.progress and importlib.util.find_spec("tqdm") is None:
        raise ConfigurationError("--progress needs tqdm; expected `pip install tqdm`")
    if arguments.logs.count("-") > 1:
        raise ConfigurationError("standard input was given twice; expected - once")
    tuning = tuning_library()
    try:
        with contextlib.ExitStack() as opened:
            log: Log = tuning.read_log(
                _counted(arguments, opened),
                format=arguments.format,
                columns=columns,
                time_zone=arguments.time_zone,
            )
    except (OSError, ImportError) as error:
        raise ConfigurationError(str(error)) from None
    _print_notes(log)
    return log


def keys_of(log: Log, by: str, option: str = "--by") -> Keys:
    """The column, or the columns joined by +, that a command counts by, as `option` names them."""
    from tidegate.tuning.keys import Keys, as_keys

    columns = []
    for name in by.split("+"):
        if name not in log or name == "time":
            raise ConfigurationError(
                f"{option} is {by!r}, and the log has no column {name!r}; expected one of "
                f"{', '.join(log.columns)}, or several joined by +"
            )
        columns.append(as_keys(log[name]))
        _note_missing(name, columns[-1])
    joined = columns[0]
    for column in columns[1:]:
        pairs = joined.codes.astype("uint64") * max(len(column.names), 1) + column.codes
        numbered = as_keys(pairs)
        joined = Keys(
            numbered.codes,
            [
                f"{plain(joined.names[int(pair) // len(column.names)])}"
                f"+{plain(column.names[int(pair) % len(column.names)])}"
                for pair in numbered.names
            ],
        )
    return joined


def _counted(arguments: argparse.Namespace, opened: contextlib.ExitStack) -> Any:
    """The logs, with a bar for how much of them was read where that is worth one."""
    from tidegate.tuning.logs.sources import sources_of
    from tidegate.tuning.progress import Progress

    paths = [each.path() for each in sources_of([name for name in arguments.logs if name != "-"])]
    total = sum(os.path.getsize(path) for path in paths if path is not None)
    if arguments.progress is False or "-" in arguments.logs or arguments.format == "parquet":
        return arguments.logs
    if not arguments.progress and (total < _WORTH_A_BAR or any(map(_is_parquet, paths))):
        return arguments.logs
    bar = opened.enter_context(Progress(arguments.progress, total, "read", long=True))
    streams = []
    before = 0
    for path in filter(None, paths):
        file = opened.enter_context(open(path, "rb", buffering=0))  # noqa: SIM115
        streams.append(_Counted(file, bar, before))
        before += os.path.getsize(path)
    return streams


class _Counted:
    """A file that tells a bar how much of it was read."""

    def __init__(self, file: Any, bar: Progress, before: int) -> None:
        self.name = file.name
        self._file = file
        self._bar = bar
        self._done = before

    def read(self, size: int) -> bytes:
        chunk: bytes = self._file.read(size)
        self._done += len(chunk)
        self._bar.reached(self._done)
        return chunk


def _is_parquet(path: str | None) -> bool:
    return path is not None and path.endswith((".parquet", ".pq"))


def _print_notes(log: Log) -> None:
    for note in log.notes:
        print(f"note: {plain(note)}", file=sys.stderr)
    for bad in log.bad_lines:
        where = f"{plain(bad.source)}:{bad.line}"
        print(f"{where}: {plain(bad.reason)}: {plain(bad.text[:80])}", file=sys.stderr)
    if not len(log):
        raise ConfigurationError("the log has no requests; expected at least one")


def _note_missing(name: str, column: Keys) -> None:
    names = list(column.names)
    missing = [number for number, each in enumerate(names) if each in ("-", b"-")]
    if not missing:
        return
    count = int((column.codes == missing[0]).sum())
    print(
        f"note: {count:,} of {len(column):,} requests have no {name}; they count as one client, "
        f"named -.",
        file=sys.stderr,
    )
