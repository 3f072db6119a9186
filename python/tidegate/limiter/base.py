"""What all limiters have in common."""

from __future__ import annotations

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError, StorageError
from tidegate.limiter.storage.uri import open_store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from typing_extensions import Self

    from tidegate._core import Store
    from tidegate.limiter.clock import ClockLike
    from tidegate.limiter.stats import Stats
    from tidegate.limiter.storage.options import StorageLike

__all__ = ["Absent", "BaseLimiter"]


class Absent:
    """In place of a method that callers look for: an AttributeError that says what to call.

    Unlike __getattr__() it makes no other attribute slower. hasattr() returns False for it.
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name = name
        self._advice = advice

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(f"a {owner.__name__} has no {self._name}(); {self._advice}")


class BaseLimiter:
    """The base class of Limiter and RuleLimiter: a storage, counters, and an end.

    It is for code that takes any limiter, and makes none itself.
    """

    _storage: Store
    _prefix: str

    if TYPE_CHECKING:  # methods of both classes of the core
        __init__: Any

        def _now_ns(self) -> int: ...
        def _stats(self) -> dict[str, Any]: ...
        def _close(self) -> None: ...

    def _open(
        self, storage: StorageLike, prefix: str, clock: ClockLike, options: Mapping[str, Any]
    ) -> bytes:
        """Opens the storage, and returns the scope in which the limiter's keys are counted."""
        if not isinstance(prefix, str):
            raise ArgumentTypeError(
                f"the prefix is {prefix!r} of type {type(prefix).__name__}; expected a str"
            )
        self._storage = open_store(storage, options)
        if clock is not None and not self._storage.reads_clock:
            raise ConfigurationError(
                "a clock was given with a storage that uses its server's time; expected "
                "clock=client in the storage's URI"
            )
        self._prefix = prefix
        return prefix.encode("utf-8", "surrogatepass")  # any text is a key

    def __dir__(self) -> list[str]:
        """The names of its attributes, without the methods that only say what to call instead."""
        return [name for name in super().__dir__() if not _is_absent(type(self), name)]

    @property
    def _spans_processes(self) -> bool:
        return self._storage.spans_processes

    @property
    def _may_wait(self) -> bool:
        return self._storage.blocks

    @property
    def storage(self) -> Store:
        """The store, for another limiter to share."""
        return self._storage

    def ping(self) -> None:
        """Raises StorageError if the storage does not answer."""
        self._now_ns()  # raises if the limiter is closed
        problem = self._storage.ping()
        if problem is not None:
            raise StorageError(f"the storage does not answer: {problem}")

    def stats(self) -> Stats:
        """Returns the counters of this limiter's decisions and of its store's keys."""
        from tidegate.limiter.stats import Stats

        return Stats(**self._stats())

    def close(self) -> None:
        """Ends the limiter: later calls raise LimiterClosedError, waiting ones too.

        On ``mode=leased`` it gives back what this process holds, in at most half a second.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()


def _is_absent(owner: type, name: str) -> bool:
    """Whether `name` is one of the methods that `owner` does not have."""
    return any(isinstance(vars(base).get(name), Absent) for base in owner.__mro__)
