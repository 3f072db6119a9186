"""Where rules come from that change while they are in force."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generic, Protocol, TypeVar

from tidegate._rules.document import Document
from tidegate._rules.problems import RulesError
from tidegate._rules.rule_set import RuleSet

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RuleSource", "Source"]

log = logging.getLogger("tidegate")


class HasDigest(Protocol):
    """What a source makes of a document."""

    digest: str
    """Equal for versions that say the same."""


Version = TypeVar("Version", bound=HasDigest)


class Source(Generic[Version]):
    """Rules, of whatever kind, from a place where they may change.

    The source has its `current` rules from its construction on, which raises where they cannot be
    read. While somebody subscribes, or a limiter is attached, a thread looks for newer ones. A
    version that is not valid is refused: it is counted and logged, and the rules before it
    stay in force. A place that cannot be read is logged, and looked at again. Nothing of this
    reaches a request.

    With `cache`, the path of a file, each good version is written there, and is what the source
    begins with where its place cannot be read at construction.

    Thread-safe, and safe to use after `fork()`: the child has a thread of its own.

    A subclass has `_read()` and `_compile()`, and `_wait()` where it can hear of changes.
    """

    def __init__(
        self, *, interval: float = 1.0, cache: str | os.PathLike[str] | None = None
    ) -> None:
        self._interval = interval
        self._cache = None if cache is None else Path(cache)
        # Held while the place is read, which may take long. Never taken by a fork.
        self._reading = threading.Lock()
        # Held while subscribers are called, which is quick. Never taken before `_reading`.
        self._telling = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._callbacks: list[Callable[[Version], object]] = []
        self._limiters: weakref.WeakSet[Any] = weakref.WeakSet()
        # Why the version that is there now is not in force; None where it is.
        self._refusal: Exception | None = None
        self._is_unreachable = False
        self.refused = 0
        """How many versions were refused: by the rules' checks, or by a subscriber."""
        self.failures = 0
        """How often the place could not be read."""
        self.last_error: Exception | None = None
        """Why the last version was refused, or could not be read; None after a good one."""
        self.current: Version = self._first()
        """The rules in force."""
        _sources.add(self)

    def _read(self) -> Any:
        """The document as it is now; None where it has not changed since the last call.

        Raises RulesError for one that is refused, anything else where it cannot be read.
        """
        raise NotImplementedError

    def _compile(self, document: Any) -> Version:
        """What is in force by `document`, which `_read()` returned. Raises RulesError."""
        raise NotImplementedError

    def _wait(self, stop: threading.Event) -> None:
        """Returns when there may be something new, and soon after `stop` is set."""
        stop.wait(self._interval)

    def _forget_parent(self) -> None:
        """In a child of fork(): lets go of what only the parent may use, such as connections."""

    def _release(self) -> None:
        """Closes what the source holds open."""

    def subscribe(self, callback: Callable[[Version], object]) -> Callable[[], None]:
        """Has `callback` called with each later version, on the source's thread.

        Returns a function that ends it. A callback that raises refuses the version for itself.
        """
        with self._telling:
            self._callbacks.append(callback)
            self._start()

        def unsubscribe() -> None:
            with self._telling, contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return unsubscribe

    def attach(self, limiter: Any) -> None:
        """Has `limiter` decide by these rules from now on, for as long as it lives."""
        with self._telling:
            limiter.use(self.current)
            self._limiters.add(limiter)
            self._start()

    def refresh(self) -> bool:
        """Reads now. True where that brought a new version into force. Never raises."""
        with self._reading:
            try:
                document = self._read()
            except RulesError as error:
                self._reached()
                self._refuse(error)
                return False
            except Exception as error:
                self._not_reached(error)
                return False
            self._reached()
            if document is None:
                return False
            try:
                rules = self._compile(document)
            except Exception as error:
                self._refuse(error)
                return False
            self._refusal = self.last_error = None
            if rules.digest == self.current.digest:
                return False
            self._put_into_force(rules)
            self._remember(document)
            return True

    def close(self) -> None:
        """Ends the thread. The rules stay as they are."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)
        # A thread that is stuck in a read releases by itself what it holds.
        if self._reading.acquire(timeout=_PATIENCE):
            try:
                self._release()
            finally:
                self._reading.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _first(self) -> Version:
        try:
            document = self._read()
            assert document is not None, "the first read finds something"
            rules = self._compile(document)
        except Exception as error:
            if self._cache is None or not self._cache.exists():
                raise
            if isinstance(error, RulesError):
                self._refuse(error)
            else:
                self._not_reached(error)
            log.warning("%s begins with the rules kept in %s", self, self._cache)
            return self._compile(_kept_in(self._cache))
        self._remember(document)
        return rules

    def _put_into_force(self, rules: Version) -> None:
        with self._telling:
            before, self.current = self.current, rules
            log.info("%s: rules %s follow %s", self, rules.digest, before.digest)
            for use in [*(limiter.use for limiter in self._limiters), *self._callbacks]:
                try:
                    use(rules)
                except Exception as error:
                    self.refused += 1
                    self.last_error = error
                    log.error("%s: rules %s were refused: %s", self, rules.digest, error)

    def _refuse(self, error: Exception) -> None:
        is_new = self._refusal is None or str(error) != str(self._refusal)
        self._refusal = self.last_error = error
        if is_new:  # not once for each look at the same version
            self.refused += 1
            log.error("%s: a new version of the rules was refused: %s", self, error)

    def _not_reached(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = error
        if not self._is_unreachable:
            self._is_unreachable = True
            log.warning("%s cannot be read, its last rules stay in force: %s", self, error)

    def _reached(self) -> None:
        if self._is_unreachable:
            self._is_unreachable = False
            self.last_error = self._refusal
            log.warning("%s can be read again", self)

    def _remember(self, document: Any) -> None:
        if self._cache is None:
            return
        text = json.dumps(document.data, default=str)
        unfinished = self._cache.with_name(f"{self._cache.name}.{os.getpid()}.tmp")
        try:
            with open(
                os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
            ) as file:
                file.write(text)
            unfinished.replace(self._cache)
        except OSError as error:
            log.warning("the rules cannot be kept in %s: %s", self._cache, error)

    def _start(self) -> None:
        """Starts the thread, unless it runs. Called with `_telling` held."""
        if self._thread is None or not self._thread.is_alive():
            if self._stop.is_set():
                return
            thread = threading.Thread(
                target=self._run, name=f"tidegate {type(self).__name__}", daemon=True
            )
            thread.start()
            self._thread = thread  # now, for only one that has started can be joined

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._wait(self._stop)
            except Exception as error:
                self._not_reached(error)
                self._stop.wait(self._interval)
            if self._stop.is_set() or not self._is_wanted():
                return
            self.refresh()

    def _is_wanted(self) -> bool:
        with self._telling:
            if self._callbacks or len(self._limiters):
                return True
            self._thread = None
            return False

    def _after_fork(self) -> None:
        self._reading = threading.Lock()
        self._stop = _copied(self._stop)
        self._forget_parent()
        if self._thread is not None:
            self._thread = None
            self._start()


class RuleSource(Source[RuleSet]):
    """Rules from a place where they may change. Base class of such places.

    The source has its `current` rules from its construction on, which raises where they cannot be
    read. While somebody subscribes, or a limiter is attached, a thread looks for newer ones. A
    version that is no valid RuleSet is refused: it is counted and logged, and the rules before it
    stay in force. A place that cannot be read is logged, and looked at again. Nothing of this
    reaches a request.

    With `cache`, the path of a file, each good version is written there, and is what the source
    begins with where its place cannot be read at construction.

    Thread-safe, and safe to use after `fork()`: the child has a thread of its own.

    A subclass has `_read()`, and `_wait()` where it can hear of changes.
    """

    def _compile(self, document: Document) -> RuleSet:
        return RuleSet._from(document)


# How long the end of the interpreter waits for a thread inside of a call.
_PATIENCE = 1.0
_sources: weakref.WeakSet[Source[Any]] = weakref.WeakSet()
_forking: list[Source[Any]] = []


def _kept_in(cache: Path) -> Document:
    return Document(json.loads(cache.read_text()), str(cache), lambda where: None)


def _copied(event: threading.Event) -> threading.Event:
    copy = threading.Event()
    if event.is_set():
        copy.set()
    return copy


def _before_fork() -> None:
    # A child must not begin in the middle of a change.
    for source in list(_sources):
        source._telling.acquire()
        _forking.append(source)


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop()._telling.release()


def _after_fork_in_child() -> None:
    while _forking:
        source = _forking.pop()
        source._telling.release()
        source._after_fork()


def _stop_all() -> None:
    """No thread may be inside of a driver when the interpreter goes."""
    running = [source for source in list(_sources) if source._thread is not None]
    for source in running:
        source._stop.set()
    until = time.monotonic() + _PATIENCE
    for source in running:
        thread = source._thread
        if thread is not None:
            thread.join(max(0.0, until - time.monotonic()))


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
atexit.register(_stop_all)
