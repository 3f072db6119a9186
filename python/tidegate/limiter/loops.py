"""The bridge to asyncio: a channel tells each event loop which of its calls are finished."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import math
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Protocol
from weakref import WeakKeyDictionary

from tidegate import _core
from tidegate._core import CHARGE, CHARGE_UP_TO, FORGET, HIT, PEEK, REFUND, RELEASE, RESET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate._core import Decision

    class Limiter(Protocol):
        """The methods of a limiter that this module calls."""

        def _begin(
            self,
            op: int,
            key: str | bytes,
            cost: int,
            hit: Decision | None,
            loop: asyncio.AbstractEventLoop,
            channel: _core.Channel,
            /,
        ) -> Decision | asyncio.Future[Any] | None: ...
        def hit(self, key: str | bytes, cost: int = 1) -> Decision: ...
        def peek(self, key: str | bytes, cost: int = 1) -> Decision: ...
        def charge(self, key: str | bytes, cost: int) -> Decision: ...
        def charge_up_to(self, key: str | bytes, cost: int) -> Decision: ...
        def refund(
            self, key: str | bytes, cost: int = 1, *, decision: Decision | None = None
        ) -> None: ...
        def reset(self, key: str | bytes) -> None: ...
        def forget(self, key: str | bytes) -> None: ...
        def _release(self, key: str | bytes, cost: int, decision: Decision) -> None: ...

    Plan = _core.Plan

__all__ = ["AsyncBridge"]

log = logging.getLogger("tidegate")

_channels: WeakKeyDictionary[asyncio.AbstractEventLoop, _core.Channel] = WeakKeyDictionary()
# The last loop that made a call, with its channel: most processes have one loop. The tuple is
# replaced as a whole, so that threads may share it.
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


# In a child of fork() none of its parent's loops runs, and it must not read their channels.
os.register_at_fork(after_in_child=_forget_all)


@atexit.register
def _silence_running_loops() -> None:
    """Has no call wake a loop that runs in a daemon thread when the interpreter has ended.

    uvloop would ask for the GIL then, which crashes the process.
    """
    for loop, channel in list(_channels.items()):
        if loop.is_running():
            channel._silence()


def forget_closed() -> None:
    """Releases loops that were closed with calls in flight.

    Such a loop is kept by the futures that it never completed, and its channel keeps those.
    """
    global _last
    for reference in _channels.keyrefs():
        loop = reference()
        if loop is not None and loop.is_closed():
            _channels.pop(loop, None)
            _last = _NONE


def running_loop() -> asyncio.AbstractEventLoop:
    """The running loop of asyncio. Raises RuntimeError under another kind of loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no asyncio event loop runs here; expected one for the asynchronous calls of a limiter "
            "(under trio: await trio.to_thread.run_sync(limiter.hit, key))"
        ) from None


def begin(
    limiter: Limiter, op: int, key: str | bytes, cost: int, hit: Decision | None = None
) -> Decision | asyncio.Future[Any] | None:
    """Begins `op` on the running loop; returns its result, or a future of it.

    The result is a decision, or None for an operation that decides nothing. `hit` is the decision
    that a refund or a release gives back. A call whose task is cancelled goes on in the core, and
    its result is dropped.
    """
    loop = running_loop()
    asked, channel = _last
    if asked() is not loop or channel is None:
        channel = _channel_of(loop)
        if channel is None:
            return loop.run_in_executor(None, _blocking(limiter, op, key, cost, hit))
    return limiter._begin(op, key, cost, hit, loop, channel)


def _channel_of(loop: asyncio.AbstractEventLoop) -> _core.Channel | None:
    """The channel of `loop`; None while the process has no descriptor left for one."""
    global _last
    channel = _channels.get(loop)
    if channel is None:
        forget_closed()
        try:
            channel = _core.Channel()
            loop.add_reader(channel.fileno(), channel.drain)
        except OSError as error:
            _log_without_channel(error)
            return None
        _channels[loop] = channel
    _last = (weakref.ref(loop, _forget_last), channel)
    return channel


_logged_at = -math.inf


def _log_without_channel(error: OSError) -> None:
    """Logs at most once a minute, since each call of the loop leads here until it has a channel."""
    global _logged_at
    now = time.monotonic()
    if now - _logged_at >= 60:
        _logged_at = now
        log.error("an event loop's calls go through threads until it gets a descriptor: %s", error)


def _blocking(
    limiter: Limiter, op: int, key: str | bytes, cost: int, hit: Decision | None
) -> Callable[[], Any]:
    """`op` as a blocking call, for a thread."""
    if op == RELEASE:
        assert hit is not None
        return functools.partial(limiter._release, key, cost, hit)
    if op == RESET:
        return functools.partial(limiter.reset, key)
    if op == FORGET:
        return functools.partial(limiter.forget, key)
    if op == REFUND:
        return functools.partial(limiter.refund, key, cost, decision=hit)
    if op == CHARGE:
        return functools.partial(limiter.charge, key, cost)
    if op == CHARGE_UP_TO:
        return functools.partial(limiter.charge_up_to, key, cost)
    return functools.partial(limiter.hit if op == HIT else limiter.peek, key, cost)


async def run(
    limiter: Limiter, op: int, key: str | bytes, cost: int, hit: Decision | None = None
) -> Any:
    """Like begin(), and awaits the result."""
    answer = begin(limiter, op, key, cost, hit)
    return answer if answer is None or type(answer) is _core.Decision else await answer


async def run_plan(
    plan: Plan,
    keys: Sequence[str | bytes],
    costs: Sequence[int] | None,
    outcomes: bool,
    op: int = HIT,
) -> Decision:
    """Like run(), for a hit, a peek or a charge of a plan."""
    loop = running_loop()
    channel = _channel_of(loop)
    if channel is None:
        if op == CHARGE:
            assert costs is not None
            return await loop.run_in_executor(None, plan.charge, keys, costs)
        decide = plan.hit if op == HIT else plan.peek
        return await loop.run_in_executor(None, decide, keys, costs, outcomes)
    answer = plan._begin(op, keys, costs, outcomes, loop, channel)
    return answer if type(answer) is _core.Decision else await answer


async def run_reserved(
    owner: Any,
    op: int,
    whose: Any,
    units: Any,
    reservation: _core.Reservation,
    begun: Callable[[Decision], Any] | None = None,
) -> Any:
    """Like run(), for a call of a reservation. What `begun` makes of the decision is given back if
    the task is cancelled before it has it."""
    loop = running_loop()
    channel = _channel_of(loop)
    if channel is None:
        answer = loop.run_in_executor(None, owner._reserved, op, whose, units, reservation)
    else:
        answer = owner._reserved(op, whose, units, reservation, loop, channel)
        if type(answer) is _core.Decision:
            return answer
    if begun is None:
        return await answer
    import asyncio

    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        from tidegate.limiter.reservation_expiry import release_late

        answer.add_done_callback(functools.partial(release_late, begun))
        raise


async def run_rules(
    limiter: _core.RuleLimiter,
    op: int,
    attributes: dict[str, Any],
    decision: Decision | None,
) -> Any:
    """Like run(), for a limiter with rules. `attributes` include the cost."""
    loop = running_loop()
    channel = _channel_of(loop)
    if channel is None:
        blocking: Callable[[], Any] = functools.partial(limiter._reset, attributes, op)
        if op in (HIT, PEEK):
            decide = limiter._check if op == HIT else limiter._peek
            blocking = functools.partial(decide, **attributes)
        elif op == CHARGE:
            blocking = functools.partial(limiter._charge, attributes)
        elif op == REFUND:
            blocking = functools.partial(limiter._refund, attributes, decision)
        elif op == RELEASE:
            assert decision is not None
            blocking = functools.partial(limiter._release, attributes, decision)
        return await loop.run_in_executor(None, blocking)
    answer = limiter._begin(op, attributes, decision, loop, channel)
    return answer if answer is None or type(answer) is _core.Decision else await answer


class AsyncBridge:
    """The calls that keep event loops free while a store decides."""

    HIT, PEEK, REFUND, RELEASE, RESET = HIT, PEEK, REFUND, RELEASE, RESET
    CHARGE, CHARGE_UP_TO, FORGET = CHARGE, CHARGE_UP_TO, FORGET
    running_loop = staticmethod(running_loop)
    begin = staticmethod(begin)
    run = staticmethod(run)
    run_plan = staticmethod(run_plan)
    forget_closed = staticmethod(forget_closed)
