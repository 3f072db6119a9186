"""``tidegate doctor``: whether a Redis is fit for rate limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

__all__ = ["register"]

_EXIT_CODES = """\
exit codes:
  0  fine
  1  usable, with warnings
  2  cannot be used: it does not answer, refuses the login or a command, is a replica ...
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``doctor`` to those of the command line."""
    import argparse

    doctor = commands.add_parser(
        "doctor",
        help="say whether a Redis is fit for rate limits",
        description="Says in plain words whether a Redis is fit for rate limits. It makes "
        "a few keys of its own under the prefix, and removes them.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("storage", metavar="URI", help="such as redis://user:password@host:6379/0")
    doctor.add_argument(
        "--prefix", help="the prefix of the limiters (default: tg, and a warning if it is in use)"
    )
    doctor.add_argument(
        "--limit",
        dest="limits",
        metavar="LIMIT",
        action="append",
        default=[],
        help="with mode=leased in the URI, say whether this limit is leased, and if not, why; may "
        "be given several times",
    )
    doctor.add_argument(
        "--algorithm", default="token-bucket", help="of the limits (default: %(default)s)"
    )
    doctor.add_argument(
        "--samples", type=int, default=200, help="calls to measure (default: %(default)s)"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.samples <= 100_000:
        raise ConfigurationError(f"--samples {arguments.samples}; expected 1 to 100000")
    from tidegate.cli.doctor_checks import examine
    from tidegate.limiter.limit import as_limits

    limits = as_limits(arguments.limits, arguments.algorithm) if arguments.limits else []
    report = examine(
        arguments.storage, prefix=arguments.prefix, samples=arguments.samples, limits=limits
    )
    if arguments.json:
        print(report.as_json())
    else:
        for line in report.lines():
            print(line)
    return report.code
