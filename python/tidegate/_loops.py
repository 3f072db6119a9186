"""Which channel an event loop hears on of what the core does for it."""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import TYPE_CHECKING, Any, Callable
from weakref import WeakKeyDictionary

from tidegate import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate._core import Decision
    from tidegate._limiter import Limiter
    from tidegate._plan import Plan

__all__ = [
    "HIT",
    "PEEK",
    "REFUND",
    "RELEASE",
    "RESET",
    "ask",
    "ask_plan",
    "begin",
    "forget_closed",
]

# As enum Op in cpp/include/tidegate/store.h.
HIT, PEEK, REFUND, RELEASE, RESET = range(5)

_channels: WeakKeyDictionary[asyncio.AbstractEventLoop, _core.Channel] = WeakKeyDictionary()
# The last loop that asked, with its channel: most processes have one. Replaced as a whole, so
# that threads may share it.
_NONE: tuple[Callable[[], object], _core.Channel | None] = (lambda: None, None)
_last = _NONE


def _forget_last(reference: object) -> None:
    global _last
    if _last[0] is reference:
        _last = _NONE


def _forget_all() -> None:
    global _last
    _channels.clear()
    _last = _NONE


# A child of fork() has none of its parent's loops running, and must not hear for them.
os.register_at_fork(after_in_child=_forget_all)


def forget_closed() -> None:
    """Lets go of loops that were closed with calls in flight.

    Futures that such a loop never heard of keep it, and its channel keeps them.
    """
    global _last
    for reference in _channels.keyrefs():
        loop = reference()
        if loop is not None and loop.is_closed():
            _channels.pop(loop, None)
            _last = _NONE


def begin(
    limiter: Limiter, op: int, key: str | bytes, cost: int, admitted: Decision | None = None
) -> Decision | asyncio.Future[Any] | None:
    """Begins `op` on the running loop: what it comes to, or a future of that.

    That is a decision, or None of what decides nothing. A call whose task is cancelled goes
    on in the core, and what it comes to is dropped.
    """
    loop = asyncio.get_running_loop()
    asked, channel = _last
    if asked() is not loop or channel is None:
        channel = _channel_of(loop)
    return limiter._begin(op, key, cost, admitted, loop, channel)


def _channel_of(loop: asyncio.AbstractEventLoop) -> _core.Channel:
    global _last
    channel = _channels.get(loop)
    if channel is None:
        forget_closed()
        channel = _channels[loop] = _core.Channel()
        loop.add_reader(channel.fileno(), channel.drain)
    _last = (weakref.ref(loop, _forget_last), channel)
    return channel


async def ask(
    limiter: Limiter, op: int, key: str | bytes, cost: int, admitted: Decision | None = None
) -> Any:
    """As begin(), and waits for it."""
    answer = begin(limiter, op, key, cost, admitted)
    return answer if answer is None or type(answer) is _core.Decision else await answer


async def ask_plan(
    plan: Plan, keys: Sequence[str | bytes], costs: Sequence[int] | None
) -> Decision:
    """As ask() a hit of a plan."""
    loop = asyncio.get_running_loop()
    answer = plan._begin(keys, costs, loop, _channel_of(loop))
    return answer if type(answer) is _core.Decision else await answer
