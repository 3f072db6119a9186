"""Sockets that listen already when the process starts: of systemd, or of the process before."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping
    from pathlib import Path

    from tidegate.server.settings import Address

__all__ = ["HANDED_OVER", "InheritedSockets", "inherited_sockets"]

# The variable of a process that takes the place of another, such as "checks=5,checks=6,admin=8".
# "late" is a file.
HANDED_OVER = "TIDEGATE_HANDED_OVER"
_FIRST_OF_SYSTEMD = 3
_PURPOSES = ("checks", "admin")


class InheritedSockets:
    """Sockets with what they are for: "checks", "admin", or None if only the address says it.

    If they are `required`, close() raises ConfigurationError for those that nothing took.
    """

    def __init__(
        self,
        sockets: Iterable[tuple[str | None, socket.socket]],
        *,
        required: bool = False,
        late: int | None = None,
    ) -> None:
        self._left = list(sockets)
        self._required = required
        self.late = late
        """The descriptor of changes that the database has not taken from the process before."""

    def take(self, purpose: str, place: Address | Path) -> list[socket.socket]:
        """Removes and returns those for `purpose` whose address is `place`, which its user closes.

        A socket at another address is not taken, since the settings say who may reach the service.
        Raises ConfigurationError for a host that has no address.
        """
        if not self._left:
            return []
        wanted = _addresses_of(place)
        found = [
            (name, each)
            for name, each in self._left
            if name in (None, purpose) and _is_at(each, place, wanted)
        ]
        self._left = [each for each in self._left if each not in found]
        return [each for _, each in found]

    def close(self) -> None:
        """Closes the sockets that nothing took."""
        places = [str(each.getsockname()) for _, each in self._left]
        for _, each in self._left:
            each.close()
        self._left = []
        if places and self._required:
            raise ConfigurationError(
                f"systemd passed sockets at {' and '.join(places)}, which no setting names; "
                "expected the addresses of checks.listen, checks.unix and admin.listen"
            )


def _addresses_of(place: Address | Path) -> set[object]:
    if isinstance(place, os.PathLike):
        return {os.fspath(place), os.path.abspath(place)}
    try:
        found = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"the host {place.host!r} has no address ({error}); expected one of this machine"
        ) from None
    return {address[0] for *_, address in found}


def _is_at(each: socket.socket, place: Address | Path, wanted: set[object]) -> bool:
    name = each.getsockname()
    if isinstance(place, os.PathLike) or not isinstance(name, tuple):
        return name in wanted
    return name[0] in wanted and place.port in (0, name[1])


def inherited_sockets(environment: MutableMapping[str, str]) -> InheritedSockets:
    """Takes the sockets that `environment` names, and removes the names from it.

    Raises ConfigurationError for variables that name none.
    """
    handed_over = environment.pop(HANDED_OVER, "")
    process = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "0")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    named: list[tuple[str | None, int]] = []
    files: dict[str | None, int] = {}
    try:
        if handed_over:
            pairs = (each.split("=") for each in handed_over.split(","))
            named = [(purpose, int(number)) for purpose, number in pairs]
            files = {purpose: number for purpose, number in named if purpose == "late"}
            named = [each for each in named if each[0] not in files]
        elif process == str(os.getpid()):
            numbers = range(_FIRST_OF_SYSTEMD, _FIRST_OF_SYSTEMD + int(count))
            named = [
                (name if name in _PURPOSES else None, number)
                for name, number in zip(names + [""] * len(numbers), numbers)
            ]
        sockets = [(purpose, socket.socket(fileno=number)) for purpose, number in named]
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the sockets that this process was passed are {handed_over or count!r} ({error}); "
            "expected the descriptors of sockets that listen"
        ) from None
    return InheritedSockets(sockets, required=not handed_over, late=files.get("late"))
