"""``tidegate key``: shows the usage of one client, and resets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate._core import RedisStore
from tidegate.limiter.errors import StorageError
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.storage.visible import check_visible

if TYPE_CHECKING:
    import argparse

__all__ = ["register"]


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``key`` to those of the command line."""
    key = commands.add_parser("key", help="look at what one client has used, and reset it")
    actions = key.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("show", help="what a key has left, and when it has more")
    reset = actions.add_parser("reset", help="forget what a key has used")
    for parser, run in ((show, _show), (reset, _reset)):
        parser.add_argument("storage", metavar="STORAGE", help="such as redis://HOST, shm://NAME")
        parser.add_argument("limit", metavar="LIMIT", help="as in the service: '100/minute'")
        parser.add_argument(
            "key", metavar="KEY", help="the key, as the service's key function returns it"
        )
        parser.add_argument("--algorithm", default="token-bucket", help="default: %(default)s")
        parser.add_argument("--prefix", default="tg", help="default: %(default)s")
        parser.add_argument(
            "--scope",
            help="of a route: its scope=, or MODULE.FUNCTION; of limits for all of Flask and "
            "Django 'app' and 'project'; none for other middleware",
        )
        parser.set_defaults(run=run)
    reset.add_argument(
        "--everything",
        action="store_true",
        help="of a quota, delete top-ups and carried units too, which stay otherwise",
    )


def _show(arguments: argparse.Namespace) -> int:
    decision = _reached(arguments).peek(arguments.key)
    if _is_unreachable(decision.degraded):
        return 1
    print(f"{arguments.key}: {decision.remaining} of {decision.limit} left of {decision.rule}")
    if not decision.allowed:
        print(f"refused for {decision.retry_after:g} s")
    if decision.reset_after:
        print(f"full again in {decision.reset_after:g} s")
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    limiter = _reached(arguments)
    had = _units(limiter, arguments.key)
    if arguments.everything:
        limiter.forget(arguments.key)
    else:
        limiter.reset(arguments.key)
    if _is_unreachable(limiter.peek(arguments.key).degraded):
        return 1
    print(f"{arguments.key} is reset{had}")
    return 0


def _units(limiter: Limiter, key: str) -> str:
    """What the key has of its quota, as a remark; empty if the limit is not a quota."""
    if limiter.limits[0].algorithm != "quota":
        return ""
    try:
        status = limiter.quota_status(key)
    except StorageError:  # the caller reports it
        return ""
    return (
        f"; before, it had {status.available} units left of {status.base} and {status.carried} "
        f"carried and {status.topped_up} topped up, and {status.used} used"
    )


def _reached(arguments: argparse.Namespace) -> Limiter:
    storage: str = arguments.storage
    check_visible(storage)
    prefix = arguments.prefix
    limiter = Limiter(
        arguments.limit,
        storage=storage,
        algorithm=arguments.algorithm,
        prefix=f"{prefix}:{arguments.scope}" if arguments.scope else prefix,
    )
    if isinstance(limiter.storage, RedisStore):
        limiter.storage.ping()  # the first call would not wait for the connection
    return limiter


def _is_unreachable(degraded: bool) -> bool:
    if degraded:
        import sys

        print("tidegate: the server does not answer", file=sys.stderr)
    return degraded
