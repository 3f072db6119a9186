"""Writes to a database on a separate thread, so that no request waits for it."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidegate.limiter.background import copied, renew_after_fork
from tidegate.limiter.checks import check_int
from tidegate.limiter.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from typing_extensions import Self

__all__ = ["BackgroundWriter"]

log = logging.getLogger("tidegate")

Key = TypeVar("Key", bound="Hashable")
Entry = TypeVar("Entry")

# How often a write is tried before its entries are dropped, so that nothing is lost if the database
# answers again within a few seconds.
_MOST_TRIES = 5
_PATIENCE = 1.0


class BackgroundWriter(Generic[Key, Entry]):
    """Entries by key that wait in memory, at most `capacity`, and are written every `interval`.

    Base class. A subclass adds to `_waiting` while it holds `_lock` and then calls
    `_start_if_needed()`. Thread-safe, and safe to use after `fork()`.
    """

    _what = "entries"

    def __init__(self, *, interval: float, capacity: int) -> None:
        if not isinstance(interval, (int, float)) or isinstance(interval, bool) or not interval > 0:
            raise ConfigurationError(f"the interval is {interval!r}; expected seconds above 0")
        check_int("the capacity", capacity, "1 or more", least=1)
        self._interval = interval
        self._capacity = capacity
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._waiting: dict[Key, Entry] = {}
        self._being_written: dict[Key, Entry] = {}
        self._gave_up = False
        self.written = 0
        """The number of entries that were written."""
        self.dropped = 0
        """The number of requests whose entries were dropped."""
        self.failures = 0
        """The number of failed writes."""
        self.pause: str | None = None
        """Why nothing is written for now; None if entries are written."""
        renew_after_fork(self)
        _all.add(self)

    def _write(self, waiting: dict[Key, Entry]) -> None:
        """Writes the entries. Raises if they were not stored.

        May remove those that are stored from `waiting`, while it holds the lock.
        """
        raise NotImplementedError

    def _merge(self, known: Entry, entry: Entry) -> None:
        """Adds `entry` to the entry that waits for the same key."""
        raise NotImplementedError

    def _requests_of(self, entry: Entry) -> int:
        """Returns the number of requests that an entry stands for."""
        raise NotImplementedError

    def _close(self) -> None:
        """Closes the destination of the entries."""

    def _forget_parent(self) -> None:
        """Leaves the parent's connections alone, in a child of fork()."""

    def flush(self) -> bool:
        """Writes the waiting entries now. Returns False if that failed; then they still wait."""
        with self._writing:
            with self._lock:
                waiting, self._waiting = self._waiting, {}
                self._being_written = waiting
            if not waiting:
                return True
            count = len(waiting)
            try:
                if self.pause is not None:
                    raise StorageError(self.pause)
                self._write(waiting)
            except Exception as error:
                self.written += count - len(waiting)
                self.failures += 1
                if self.failures == 1 or self.failures % 100 == 0:
                    log.warning("%s were not written: %s", self._what, error)
                self._put_back(waiting)
                return False
            with self._lock:
                self._being_written = {}
            self.written += count
            return True

    def close(self, patience: float = _PATIENCE) -> None:
        """Writes the waiting entries, and ends the thread. A write has `patience` seconds."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)
        if self._gave_up:
            return
        if thread is not None and thread.is_alive():
            self.give_up()
            return
        self.flush()
        self._drop()
        self._close()

    def give_up(self) -> None:
        """Drops all entries that are not written, including those being written. Does not wait."""
        self._stop.set()
        with self._lock:
            self._gave_up = True
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _put_back(self, waiting: dict[Key, Entry]) -> None:
        with self._lock:
            self._being_written = {}
            if self._gave_up:  # the entries were dropped
                return
            for key, entry in waiting.items():
                known = self._waiting.get(key)
                if known is not None:
                    self._merge(known, entry)
                elif len(self._waiting) < self._capacity:
                    self._waiting[key] = entry
                else:
                    self.dropped += self._requests_of(entry)

    def _drop(self) -> None:
        """Drops the waiting entries, which are counted and logged."""
        with self._lock:
            dropped = list(self._waiting.values())
            if self._gave_up:
                dropped += self._being_written.values()
                self._being_written = {}
            self._waiting = {}
            lost = sum(map(self._requests_of, dropped))
            self.dropped += lost
        if lost:
            log.error("%d requests are in no %s that were written", lost, self._what)

    def _start_if_needed(self) -> None:
        if self._thread is None and not self._stop.is_set():
            name = f"tidegate {type(self).__name__}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        tries = 0
        while not self._stop.wait(self._interval * 2**tries):
            tries = 0 if self.flush() else tries + 1
            if tries == _MOST_TRIES:
                self._drop()
                tries = 0

    def _after_fork(self) -> None:
        # The parent writes the entries that wait.
        self._waiting, self._being_written = {}, {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._stop = copied(self._stop)
        self._thread = None
        self._forget_parent()


_all: weakref.WeakSet[BackgroundWriter[Any, Any]] = weakref.WeakSet()


def _close_all() -> None:
    for each in list(_all):
        if each._thread is not None:
            each.close()


atexit.register(_close_all)
