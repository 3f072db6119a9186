"""The class of faults, and the list of all faults."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaos.stage import Stage

# Provokes the fault, yields for how many seconds it lasts, and ends it when it is resumed. One that
# has stages yields more than once.
Act = Callable[["Stage"], Iterator[float]]

# How many calls the servers may not decide.
NONE = "none"  # not one
SOME = "some"  # at least one, else the fault did not bite
ANY = "any"

GROUPS = {
    "server": "The server",
    "network": "The network",
    "sentinel": "Sentinels",
    "cluster": "A cluster",
    "tls": "TLS",
    "client": "The client's process",
    "host": "The host",
}


@dataclass(frozen=True)
class Fault:
    name: str
    group: str
    says: str
    act: Act
    topology: str
    degraded: str = SOME
    forgets: int = 0
    """How often the server may lose its counts: each time a limit may start from zero."""
    clock_seconds: float = 0.0
    """How far the server's clock steps: limits refill by so much, or by so much less."""
    processes: int = 1
    shared_fallback: int = 0
    """If all processes have one shared memory for their fallback: how many files it is in turn."""
    recovers: bool = True
    """False if the fault has no end: then nothing is checked after it."""
    script_errors: bool = False
    """Replies that no script of ours gives may be counted as mistakes in them."""
    opens_breaker: bool = False
    """The fault lasts long enough, for all keys, that the servers are asked no longer."""
    loses_calls: bool = False
    """Calls end with the process that made them, so that counts of its own are lost with it."""
    blocks_loops: float = 0.0
    """For how long the fault itself keeps the loops, or the whole process, from running."""
    slack: float = 0.0
    """Seconds by which the fault itself may delay any call, by taking the processors or the GIL."""
    reconnects: float = 0.0
    """Seconds that the servers themselves need after the fault, before they serve again."""
    options: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)


_all: dict[str, Fault] = {}


def fault(topology: str, *, group: str = "", **attributes: Any) -> Callable[[Act], Act]:
    """Adds the decorated function to the list of faults, with dashes in its name.

    What the fault does is the docstring of the function.
    """

    def add(act: Act) -> Act:
        name = act.__name__.replace("_", "-")
        if name in _all:
            raise ValueError(f"two faults are called {name}")
        own_group = group or act.__module__.rpartition(".")[2].removesuffix("_faults")
        says = " ".join((act.__doc__ or "").split()).removesuffix(".")
        _all[name] = Fault(name, own_group, says, act, topology, **attributes)
        return act

    return add


def all_faults() -> dict[str, Fault]:
    for group in GROUPS:
        importlib.import_module(f"chaos.{group}_faults")
    order = list(GROUPS)
    return dict(sorted(_all.items(), key=lambda item: order.index(item[1].group)))
