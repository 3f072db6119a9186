"""Leases of slots, which are extended for as long as their holders live.

A lease frees the place of a holder that died. One thread of the process extends the leases of the
others when half of their time has passed. Where a ManualClock is the time, its moves do.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref

from tidegate.limiter.waiting.queue import Bell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Protocol, Union

    from tidegate._core import Decision
    from tidegate.limiter.waiting.queue import WaitingRoom

    Key = Union[str, bytes]

    class Limiter(Protocol):
        """The methods of a limiter that this module calls."""

        _room: WaitingRoom

        def _extend(self, key: Key, cost: int, decision: Decision) -> Decision | None: ...
        def _release(self, key: Key, cost: int, decision: Decision) -> None: ...


__all__ = ["Extender", "Lease", "RuleLease", "of_process"]

_NEVER = 1 << 62
# Between two tries to extend a lease, however short it is.
_LEAST_NS = 1_000_000


class Lease:
    """One entry into a slot. It is extended until it is left, or dropped."""

    __slots__ = (
        "__weakref__",
        "cost",
        "decision",
        "half_ns",
        "is_extending",
        "is_left",
        "key",
        "limiter",
        "watch",
    )

    def __init__(
        self, limiter: Limiter, key: Key, cost: int, decision: Decision, lease_ns: int
    ) -> None:
        self.limiter = limiter
        self.key = key
        self.cost = cost
        self.decision = decision  # identifies the place; another one after each extension
        self.half_ns = max(lease_ns // 2, _LEAST_NS)
        self.is_extending = False
        self.is_left = False
        self.watch: _Watch | None = None

    def extended(self) -> Decision | None:
        """Has the lease end a period from now; returns the decision that identifies it then."""
        return self.limiter._extend(self.key, self.cost, self.decision)

    def give_back(self) -> None:
        try:
            self.limiter._release(self.key, self.cost, self.decision)
        finally:
            self.limiter._room.wake_first(self.key)


class RuleLease(Lease):
    """The places that a request took by rules. `attributes` include its cost."""

    __slots__ = ()

    limiter: Any

    def __init__(self, limiter: Any, attributes: Any, decision: Decision, lease_ns: int) -> None:
        super().__init__(limiter, attributes, 1, decision, lease_ns)

    def extended(self) -> Decision | None:
        found: Decision | None = self.limiter._extend(self.key, self.decision)
        return found

    def give_back(self) -> None:
        self.limiter._release(self.key, self.decision)


class _Watch(weakref.ref[Lease]):
    """What an extender holds of a lease: a slot that is dropped unleft must lose its place."""

    __slots__ = ("after_ns", "due_ns", "extender")

    after_ns: int
    due_ns: int
    extender: Extender

    def __new__(cls, lease: Lease, *_: object) -> _Watch:
        return super().__new__(cls, lease, _drop)

    def __init__(self, lease: Lease, extender: Extender, after_ns: int, due_ns: int) -> None:
        self.extender = extender
        self.after_ns = after_ns
        self.due_ns = due_ns


class Extender:
    """Extends leases by one clock, when extend_due() is called. Thread-safe."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.forget_all()

    def forget_all(self) -> None:
        # Reentrant: a signal handler or a finalizer may leave a slot.
        self._lock = threading.RLock()
        # By the time that each waits, so that the first of each queue is due first.
        self._queues: dict[int, dict[_Watch, None]] = {}

    def hold(self, lease: Lease) -> None:
        """Extends `lease` from now on."""
        with self._lock:
            self._watch(lease, lease.half_ns)

    def leave(self, lease: Lease) -> Decision | None:
        """Ends the extensions of `lease`. Returns the decision to give back; None if it is being
        extended just now: its place is then given back afterwards, without the caller. None as well
        in a fork's child that leaves a slot of its parent, who holds the place."""
        with self._lock:
            lease.is_left = True
            watch, lease.watch = lease.watch, None
            is_own = watch is None or self._forget(watch)
            return lease.decision if is_own and not lease.is_extending else None

    def extend_due(self) -> int:
        """Extends the leases that are due; returns the instant at which the next one is."""
        while True:
            with self._lock:
                lease, due_ns = self._first_due()
                if lease is None:
                    return due_ns
            self._extend(lease)

    def _first_due(self) -> tuple[Lease | None, int]:
        """A lease that is due, marked as being extended, or None and when one will be."""
        now_ns = self._now_ns()
        next_ns = _NEVER
        for queue in list(self._queues.values()):
            watch = next(iter(queue), None)
            if watch is None:
                continue
            if watch.due_ns > now_ns:
                next_ns = min(next_ns, watch.due_ns)
                continue
            self._forget(watch)
            lease = watch()
            if lease is None:
                return self._first_due()
            lease.watch = None
            lease.is_extending = True
            return lease, now_ns
        return None, next_ns

    def _extend(self, lease: Lease) -> None:
        extended = None
        with contextlib.suppress(Exception):  # of a clock that the caller wrote
            extended = lease.extended()
        with self._lock:
            lease.is_extending = False
            if extended is not None:
                lease.decision = extended
            if not lease.is_left:
                # What a store did not extend now it may extend before the lease ends.
                again_ns = lease.half_ns if extended is not None else lease.half_ns // 8
                self._watch(lease, max(again_ns, _LEAST_NS))
                return
        with contextlib.suppress(Exception):
            lease.give_back()

    def _watch(self, lease: Lease, after_ns: int) -> None:
        lease.watch = watch = _Watch(lease, self, after_ns, self._now_ns() + after_ns)
        self._queues.setdefault(after_ns, {})[watch] = None

    def _forget(self, watch: _Watch) -> bool:
        """Returns whether the lease was one of those to extend."""
        queue = self._queues.get(watch.after_ns, {})
        if watch not in queue:
            return False
        del queue[watch]
        if not queue:
            del self._queues[watch.after_ns]
        return True


def _drop(watch: _Watch) -> None:
    with watch.extender._lock:
        watch.extender._forget(watch)


class _ThreadedExtender(Extender):
    """Extends leases by the monotonic clock, in a thread that starts with the first lease.

    It sleeps until a lease is half over, and nobody wakes it for slots that are left sooner.
    """

    def __init__(self) -> None:
        super().__init__(time.monotonic_ns)
        self._is_over = False

    def forget_all(self) -> None:
        super().forget_all()
        self._bell = Bell()
        self._thread: threading.Thread | None = None
        self._wakes_ns = _NEVER

    def hold(self, lease: Lease) -> None:
        with self._lock:
            super().hold(lease)
            if self._thread is None and not self._is_over:
                self._start()
            watch = lease.watch
            if watch is not None and watch.due_ns < self._wakes_ns:
                self._wakes_ns = watch.due_ns
                self._bell.ring()

    def stop(self) -> None:
        """Ends the thread, and waits for an extension under way: a store answers it in time."""
        self._is_over = True
        self._bell.ring()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2)

    def _start(self) -> None:
        # Made with the thread, so that both are gevent's, or neither: it may have patched threading
        # since the module was imported.
        self._bell = Bell()
        thread = threading.Thread(target=self._run, name="tidegate-leases", daemon=True)
        # Without a thread, as at the interpreter's end, leases end as if their holders had died.
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        bell = self._bell
        while not self._is_over:
            with self._lock:
                self._wakes_ns = 0  # it is awake
            self.extend_due()
            with self._lock:
                # Anew, under one lock: a lease may have come meanwhile.
                due = [next(iter(queue)).due_ns for queue in self._queues.values() if queue]
                self._wakes_ns = next_ns = min(due, default=_NEVER)
            wait = (next_ns - time.monotonic_ns()) / 1e9
            bell.wait(None if next_ns == _NEVER else min(max(wait, 0.0), 3600.0))


of_process = _ThreadedExtender()

# The parent's holders are extended by the parent.
os.register_at_fork(after_in_child=of_process.forget_all)
atexit.register(of_process.stop)
