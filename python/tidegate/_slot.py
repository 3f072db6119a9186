"""A place among the calls in flight."""

from __future__ import annotations

from tidegate._errors import RateLimitExceeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Protocol, Union

    from tidegate._asyncio import AsyncBridge
    from tidegate._asyncio import Limiter as AsyncLimiter
    from tidegate._core import Decision
    from tidegate._wait_queue import WaitingRoom

    Key = Union[str, bytes]

    class Limiter(AsyncLimiter, Protocol):
        """What a limiter has for this module."""

        _loops: type[AsyncBridge] | None
        _room: WaitingRoom

        def acquire(self, key: Key, cost: int, timeout: float | None) -> Decision: ...
        async def acquire_async(self, key: Key, cost: int, timeout: float | None) -> Decision: ...
        def _release(self, key: Key, cost: int, decision: Decision) -> None: ...


__all__ = ["Slot"]


class Slot:
    """A place among the calls in flight; see Limiter.slot(). `decision` is what let it in.

    It may be entered again, also before it was left, by several threads or tasks: each takes
    a place of its own. A place is given back once, also after the limiter was closed.
    """

    decision: Decision

    def __init__(self, limiter: Limiter, key: Key, cost: int, timeout: float | None) -> None:
        self._limiter = limiter
        self._key = key
        self._cost = cost
        self._timeout = timeout
        self._held: list[Decision] = []

    def __enter__(self) -> Slot:
        return self._entered(self._limiter.acquire(self._key, self._cost, self._timeout))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        decision = self._left()
        if decision is not None:
            self._limiter._release(self._key, self._cost, decision)
            self._limiter._room.wake_first(self._key)

    async def __aenter__(self) -> Slot:
        return self._entered(
            await self._limiter.acquire_async(self._key, self._cost, self._timeout)
        )

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loops = self._limiter._loops
        if loops is None:
            self.__exit__(exc_type, exc, traceback)
            return
        decision = self._left()
        if decision is not None:
            await loops.ask(self._limiter, loops.RELEASE, self._key, self._cost, decision)
            self._limiter._room.wake_first(self._key)

    def _entered(self, decision: Decision) -> Slot:
        if not decision.allowed:
            raise RateLimitExceeded(decision)
        self.decision = decision
        self._held.append(decision)
        return self

    def _left(self) -> Decision | None:
        """What is to be given back. Of several the one whose lease ends first: that may have
        run out, and a place that somebody still has must not be given back for it."""
        try:
            return self._held.pop(0)
        except IndexError:
            return None
