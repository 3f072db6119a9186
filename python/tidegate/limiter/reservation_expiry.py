"""What becomes of reservations that nobody settles in time."""

from __future__ import annotations

import contextlib
import threading

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError, ReservationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Callable

    from typing_extensions import Literal, Protocol

    from tidegate._core import Decision

    class Reservation(Protocol):
        _id: bytes

        def __bool__(self) -> bool: ...
        def _expire(self) -> None: ...
        async def release_async(self) -> Decision: ...

    OnExit = Literal["release", "keep"]
    OnExpiry = Literal["keep", "release"]

__all__ = ["KEPT_NS", "Expiring", "OnExit", "OnExpiry", "gives_back", "life_ns", "release_late"]

_LONGEST_TTL = 366 * 86_400.0
KEPT_NS = 86_400 * 10**9
"""How much longer than its life the record of a reservation is kept that is given back after it."""


def life_ns(ttl: float, on_exit: OnExit) -> int:
    """Returns the life of a reservation in nanoseconds. Raises ConfigurationError for invalid
    arguments."""
    if on_exit not in ("release", "keep"):
        raise ConfigurationError(f"on_exit is {on_exit!r}; expected 'release' or 'keep'")
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise ArgumentTypeError(
            f"the ttl is {ttl!r} of type {type(ttl).__name__}; expected seconds as int or float"
        )
    if not 0.001 <= ttl <= _LONGEST_TTL:
        raise ConfigurationError(
            f"the ttl is {ttl!r}; expected 0.001 to {_LONGEST_TTL:.0f} seconds"
        )
    return round(ttl * 1e9)


def gives_back(on_expiry: OnExpiry) -> bool:
    """Whether a reservation is given back at the end of its life. Raises ConfigurationError for
    another text than ``keep`` and ``release``."""
    if on_expiry not in ("keep", "release"):
        raise ConfigurationError(f"on_expiry is {on_expiry!r}; expected 'keep' or 'release'")
    return on_expiry == "release"


# The loop keeps only weak references to its tasks.
_releasing: set[asyncio.Task[None]] = set()


def release_late(begun: Callable[[Decision], Reservation], done: asyncio.Future[Decision]) -> None:
    """Gives back what was reserved for a task that was cancelled before the call was done."""
    if done.cancelled() or done.exception() is not None:
        return
    reservation = begun(done.result())
    if not reservation:
        return
    import asyncio

    async def release() -> None:
        with contextlib.suppress(ReservationError):
            await reservation.release_async()

    task = asyncio.ensure_future(release())
    _releasing.add(task)
    task.add_done_callback(_releasing.discard)


class Expiring:
    """The open reservations of one limiter in memory that are given back when their lives are over.

    Redis has them itself. Thread-safe.
    """

    __slots__ = ("_first_ns", "_lock", "_open")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[bytes, tuple[int, Reservation]] = {}
        self._first_ns = 0  # not after the first end of their lives

    def add(self, ident: bytes, ends_ns: int, reservation: Reservation) -> None:
        with self._lock:
            self._first_ns = min(self._first_ns, ends_ns) if self._open else ends_ns
            self._open[ident] = ends_ns, reservation

    def remove(self, ident: bytes) -> None:
        """Forgets a reservation that was settled."""
        if self._open:
            with self._lock:
                self._open.pop(ident, None)

    def give_back(self, now_ns: int) -> None:
        """Gives back what nobody has settled in time."""
        if not self._open or now_ns < self._first_ns:
            return
        with self._lock:
            over = [each for each in self._open.values() if each[0] <= now_ns]
            for _, reservation in over:
                del self._open[reservation._id]
            self._first_ns = min((ends_ns for ends_ns, _ in self._open.values()), default=0)
        for _, reservation in over:
            with contextlib.suppress(ReservationError):  # another process has settled it
                reservation._expire()
