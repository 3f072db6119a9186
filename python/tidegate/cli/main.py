"""The command ``tidegate``."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from tidegate._core import __version__
from tidegate.limiter.components import built
from tidegate.limiter.errors import ConfigurationError, StorageError
from tidegate.limiter.limit import parse_many

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns the exit code: 2 for invalid arguments, 1 if the output
    cannot be written or a storage does not answer."""
    _open_streams()
    try:
        code = _run(argv)
        print(end="", flush=True)  # here, where a broken pipe is caught
    except BrokenPipeError:
        _drop_output()
        return 1
    except ConfigurationError as exc:
        print(f"tidegate: {exc}", file=sys.stderr)
        return 2
    except StorageError as exc:
        print(f"tidegate: {exc}", file=sys.stderr)
        return 1
    except OSError as exc:
        _drop_output()
        print(f"tidegate: {exc.filename or 'the output'}: {exc.strerror or exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit:  # argparse has printed the help, or the version
        print(end="", flush=True)
        raise
    code: int = arguments.run(arguments)
    return code


def _open_streams() -> None:
    """Has a stream that the caller closed read as empty, and drop what is written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _drop_output() -> None:
    """Keeps the interpreter from writing the rest again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate", description="Rate limiting for services.")
    parser.add_argument("--version", action="version", version=f"tidegate {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo", help="show a FastAPI service that refuses the right requests"
    )
    demo.add_argument("--fast", action="store_true", help="move the service's clock, do not wait")
    demo.add_argument("--lines", type=_count, help="how much of the log to replay (default: all)")
    demo.set_defaults(run=_demo)

    version = commands.add_parser("version", help="print the version and what was built")
    version.set_defaults(run=_version)

    check = commands.add_parser("check", help="say what a limit means and how it treats a burst")
    check.add_argument("limit", metavar="LIMIT", help="such as '100/minute' or '10/s; 1000/hour'")
    check.add_argument("--algorithm", default="token-bucket", help="default: %(default)s")
    check.set_defaults(run=_check)

    from tidegate.cli import doctor, key, recommend, replay, serve, shm, tokens, violations
    from tidegate.cli.rules import commands as rules

    doctor.register(commands)
    key.register(commands)
    recommend.register(commands)
    replay.register(commands)
    rules.register(commands)
    serve.register(commands)
    shm.register(commands)
    tokens.register(commands)
    violations.register(commands)
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def _version(arguments: argparse.Namespace) -> int:
    print(f"{__version__}\ncomponents: {', '.join(built())}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from tidegate.cli.explain import burst_chart, in_words

    limits = parse_many(arguments.limit, algorithm=arguments.algorithm)
    for limit in limits:
        print(f"{limit}  ({limit.algorithm})\n")
        for line in in_words(limit):
            print(f"  {line}")
        print()
    for line in burst_chart(limits, plain=not _prints("█░")):
        print(f"  {line}".rstrip())
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from tidegate.cli.demo.run import run

    return run(fast=arguments.fast, lines=arguments.lines)


def _prints(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
