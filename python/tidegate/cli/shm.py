"""``tidegate shm``: look at the shared memories of this user, and remove them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from tidegate._core import ShmStore
from tidegate.limiter.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

__all__ = ["register"]


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``shm`` to those of the command line."""
    shm = commands.add_parser("shm", help="look at shared memories, and remove them")
    actions = shm.add_subparsers(metavar="ACTION", required=True)

    names = actions.add_parser("list", help="the shared memories of this user")
    names.set_defaults(run=_list)

    show = actions.add_parser("show", help="the contents of a shared memory")
    top = actions.add_parser("top", help="its busiest keys, by fingerprint, at intervals")
    remove = actions.add_parser(
        "remove", help="remove its name; processes that have it open keep using it"
    )
    for parser, run in ((show, _show), (top, _top), (remove, _remove)):
        parser.add_argument("name", metavar="NAME", help="as in shm://NAME, or an absolute path")
        parser.set_defaults(run=run)
    top.add_argument("--keys", type=int, default=10, help="how many (default: %(default)s)")
    top.add_argument("--interval", type=float, default=1.0, help="seconds (default: %(default)s)")
    top.add_argument("--rounds", type=int, help="how often (default: until interrupted)")


def _names() -> Iterator[tuple[str, str]]:
    directory, prefix = os.path.split(ShmStore.path_of("x")[:-1])
    for entry in sorted(os.listdir(directory)):
        if entry.startswith(prefix):
            yield entry[len(prefix) :], os.path.join(directory, entry)


def _existing(name: str) -> ShmStore:
    # Opening it would create it.
    if not os.path.lexists(ShmStore.path_of(name)):
        raise ConfigurationError(
            f"there is no shared memory {name!r}; expected one that `tidegate shm list` names, "
            "or an absolute path"
        )
    return ShmStore(name)


def _list(arguments: argparse.Namespace) -> int:
    rows = [("NAME", "CAPACITY", "KEYS", "SIZE")]
    for name, path in _names():
        try:
            store = _existing(name)
        except ConfigurationError:  # removed meanwhile, or not a name of ours
            continue
        except StorageError:
            rows.append((name, "refused", "", _megabytes(os.lstat(path).st_size)))
            continue
        keys = store.counters()[0]
        rows.append((name, f"{store.capacity:,}", f"{keys:,}", _megabytes(store.bytes)))
    for row in rows:
        print(f"{row[0]:<24} {row[1]:>14} {row[2]:>14} {row[3]:>12}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    store = _existing(arguments.name)
    cells, evictions, evicted_live = store.counters()
    live, idle, claimed, _ = store.census()
    for what, value in (
        ("path", store.path),
        ("capacity", f"{store.capacity:,} keys"),
        ("size", _megabytes(store.bytes)),
        ("cells in use", f"{cells:,}"),
        ("  live", f"{live:,}"),
        ("  idle", f"{idle:,}"),
        ("  being entered", f"{claimed:,}"),
        ("idle keys reclaimed", f"{evictions:,}"),
        ("live keys evicted", f"{evicted_live:,}"),
    ):
        print(f"{what:<20} {value}")
    if evicted_live:
        print("\nThe capacity was too small for the traffic: the limits of those keys restarted.")
    return 0


def _top(arguments: argparse.Namespace) -> int:
    if arguments.keys < 1 or arguments.interval < 0:
        raise ConfigurationError(
            f"--keys {arguments.keys} --interval {arguments.interval}; expected 1 key "
            "and more, 0 seconds and more"
        )
    store = _existing(arguments.name)
    round_number = 0
    while True:
        live, idle, _, busiest = store.census(arguments.keys)
        print(f"{live:,} live, {idle:,} idle of {store.capacity:,} keys")
        print(f"{'FINGERPRINT':<28}     FULL AGAIN IN")
        for high, low, new_in_ns in busiest:
            print(f"{high >> 16:012x}{low:016x} {new_in_ns / 1e9:>16.3f} s")
        round_number += 1
        if round_number == arguments.rounds:
            return 0
        time.sleep(arguments.interval)
        print()


def _remove(arguments: argparse.Namespace) -> int:
    path = ShmStore.path_of(arguments.name)
    ShmStore.remove(arguments.name)
    print(f"{path} is removed")
    return 0


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
