"""The base class of places that rules come from and may change in."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generic, NamedTuple, Protocol, TypeVar

from tidegate.limiter.background import copied, end_at_exit
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.rules.advice import say
from tidegate.rules.document import Document, read_text
from tidegate.rules.problems import RulesError
from tidegate.rules.reading import (
    CannotReadApart,
    ClosedMeanwhile,
    ReaderWasKilled,
    Version,
    read_apart,
    read_here,
)
from tidegate.rules.rule_set import RuleSet

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ChangedMeanwhile", "Reading", "RefusedError", "RuleSource", "Source"]

log = logging.getLogger("tidegate")


class HasDigest(Protocol):
    """The result that a source makes of a document."""

    digest: str
    """Equal for versions with the same content."""


Held = TypeVar("Held", bound=HasDigest)


class RefusedError(Exception):
    """A version that could be read and is not accepted, for the given `reason`."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class LosesAllRulesError(ConfigurationError):
    """A version without any rule in force, after one that had rules."""


class ChangedMeanwhile(Exception):
    """The place changed while it was read, so what was read may be half of a version."""


class Source(Generic[Held]):
    """A place that holds rules of some kind, which may change.

    The constructor reads what is `current`, and raises if it cannot. While there are subscribers or
    attached limiters, a thread looks for newer versions. A version that is not valid is refused: it
    is counted and logged, and the one before it stays in force. If the place cannot be read, the
    source logs that and tries again. No request ever fails or waits because of this.

    Thread-safe, and safe to use after `fork()`: the child has a thread of its own.

    A subclass implements `_next()`, and `_wait()` if it is notified of changes.
    """

    _what = "rules"
    """What it holds, in the log."""

    def __init__(self, *, interval: float = 1.0) -> None:
        if not isinstance(interval, (int, float)) or isinstance(interval, bool) or not interval > 0:
            raise ConfigurationError(f"the interval is {interval!r}; expected seconds above 0")
        self._interval = interval
        # Held while the place is read, which may take long. Never taken by a fork.
        self._reading = threading.Lock()
        # Held while subscribers are called, which is quick. Never taken before `_reading`.
        self._notifying = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._callbacks: list[Callable[[Held], object]] = []
        self._limiters: weakref.WeakSet[Any] = weakref.WeakSet()
        # Why the newest version is not in force; None if it is.
        self._refusal: Exception | None = None
        self._is_unreachable = False
        self.refused = 0
        """The number of versions that were refused: as not valid, or by a subscriber."""
        self.failures = 0
        """The number of times that the place could not be read."""
        self.last_error: Exception | None = None
        """Why the last version was refused, or could not be read; None after a good one."""
        self.current: Held = self._first()
        """The rules in force."""
        self.since: float = time.time()
        """The Unix time at which the rules in force were put into force."""
        _sources.add(self)
        end_at_exit(self)

    def _next(self) -> Held | None:
        """Reads. Returns the version of now; None if it is the one of the last call.

        Raises RefusedError for a version that is not valid, ClosedMeanwhile, ChangedMeanwhile, and
        any other exception if the place cannot be read.
        """
        raise NotImplementedError

    def _first(self) -> Held:
        """The version to begin with. Raises why there is none."""
        try:
            version = self._next()
        except RefusedError as error:
            raise error.reason from None
        assert version is not None, "the first look finds something"
        return version

    def _took_effect(self) -> None:
        """Called after a version that _next() returned has come into force."""

    def _wait(self, stop: threading.Event) -> None:
        """Returns when the rules may have changed, and soon after `stop` is set."""
        stop.wait(self._interval)

    def _forget_parent(self) -> None:
        """In a child of fork(): drops what only the parent may use, such as connections."""

    def _release(self) -> None:
        """Closes what the source holds open."""

    def subscribe(self, callback: Callable[[Held], object]) -> Callable[[], None]:
        """Calls `callback` with each later version, on the source's thread.

        Returns a function that ends the subscription. If the callback raises, the version counts as
        refused, but stays in force for other subscribers.
        """
        with self._notifying:
            self._callbacks.append(callback)
            self._start()

        def unsubscribe() -> None:
            with self._notifying, contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return unsubscribe

    def attach(self, limiter: Any) -> None:
        """Makes `limiter` decide by these rules from now on, for as long as it lives."""
        with self._notifying:
            limiter.use(self.current)
            self._limiters.add(limiter)
            self._start()

    def refresh(self) -> bool:
        """Reads the rules now. True if a new version came into force. Never raises."""
        with self._reading:
            try:
                version = self._next()
            except (ClosedMeanwhile, ChangedMeanwhile):
                return False
            except RefusedError as error:
                self._reached()
                self._refuse(error.reason)
                return False
            except Exception as error:
                self._not_reached(error)
                return False
            self._reached()
            return version is not None and self._accept(version)

    def _accept(self, version: Held) -> bool:
        """Puts a good version into force, unless it is there. Called with `_reading` held."""
        self._refusal = self.last_error = None
        if version.digest == self.current.digest:
            return False
        self._put_into_force(version)
        self._took_effect()
        return True

    def close(self) -> None:
        """Ends the thread. The current rules stay in force."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)
        # A thread that is stuck in a read releases what it holds by itself.
        if self._reading.acquire(timeout=_PATIENCE):
            try:
                self._release()
            finally:
                self._reading.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _put_into_force(self, rules: Held) -> None:
        with self._notifying:
            before, self.current = self.current, rules
            self.since = time.time()
            log.info("%s: %s %s follow %s", self, self._what, rules.digest, before.digest)
            for use in [*(limiter.use for limiter in self._limiters), *self._callbacks]:
                try:
                    use(rules)
                except Exception as error:
                    self.refused += 1
                    self.last_error = error
                    log.error("%s: %s %s were refused: %s", self, self._what, rules.digest, error)

    def _refuse(self, error: Exception) -> None:
        is_new = self._refusal is None or str(error) != str(self._refusal)
        self._refusal = self.last_error = error
        if is_new:  # logged once, not at each look
            self.refused += 1
            # A mistake in the rules is an error; rules that are gone may be in the making.
            level = logging.WARNING if isinstance(error, LosesAllRulesError) else logging.ERROR
            log.log(level, "%s: a new version of the %s was refused: %s", self, self._what, error)

    def _not_reached(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = error
        if not self._is_unreachable:
            self._is_unreachable = True
            log.warning("%s cannot be read, its last %s stay in force: %s", self, self._what, error)

    def _reached(self) -> None:
        if self._is_unreachable:
            self._is_unreachable = False
            self.last_error = self._refusal
            log.warning("%s can be read again", self)

    def _start(self) -> None:
        """Starts the thread, unless it runs. Called with `_notifying` held."""
        if self._thread is None or not self._thread.is_alive():
            if self._stop.is_set():
                return
            thread = threading.Thread(
                target=self._run, name=f"tidegate {type(self).__name__}", daemon=True
            )
            thread.start()
            self._thread = thread  # not before it started: join() needs a started thread

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

    def _has_users(self) -> bool:
        """Whether a limiter or a subscriber follows it."""
        return bool(self._callbacks or len(self._limiters))

    def _is_wanted(self) -> bool:
        with self._notifying:
            if self._has_users():
                return True
            self._thread = None
            return False

    def _after_fork(self) -> None:
        self._reading = threading.Lock()
        self._stop = copied(self._stop)
        self._forget_parent()
        if self._thread is not None:
            self._thread = None
            self._start()


class Reading(NamedTuple):
    """How to read the version that a place has now."""

    read: Callable[[], Document]
    """Raises RulesError for a version that is refused, anything else where it cannot be read."""
    takes_long: bool
    """Whether to read it in a process of its own, to which `read` is pickled."""


class RuleSource(Source[RuleSet]):
    """Rules from a place where they may change, such as a file or a database.

    The constructor reads the `current` rules, and raises if it cannot. While there are subscribers
    or attached limiters, a thread looks for newer rules. A version that is not a valid RuleSet is
    refused: it is counted and logged, and the rules before it stay in force. If the place cannot be
    read, the source logs that and tries again. No request ever fails or waits because of this.

    A version in which no rule is in force takes all limits away, as an emptied table does: after
    one that had rules it is refused too, unless `allow_empty` is true.

    With `cache`, the path of a file, each good version is written there. If the place cannot be
    read at construction, the source begins with the version in that file.

    Thread-safe, and safe to use after `fork()`: the child has a thread of its own.

    A subclass implements `_reading_of_now()` and `_look_again()`, and `_wait()` if it is notified
    of changes.
    """

    def __init__(
        self,
        *,
        interval: float = 1.0,
        cache: str | os.PathLike[str] | None = None,
        allow_empty: bool = False,
    ) -> None:
        if not isinstance(allow_empty, bool):
            raise ArgumentTypeError(f"allow_empty is {allow_empty!r}; expected True or False")
        self._allows_empty = allow_empty
        self._cache = None if cache is None else Path(cache)
        self._reads_apart = True
        # The text that the cache gets when the rules are in force.
        self._text: str | None = None
        super().__init__(interval=interval)

    def _reading_of_now(self) -> Reading | None:
        """How to read the rules; None if they have not changed since the last call.

        Raises where the place does not answer.
        """
        raise NotImplementedError

    def _look_again(self) -> None:
        """Called where the version of the last _reading_of_now() was not read after all."""

    def _next(self) -> RuleSet | None:
        reading = self._reading_of_now()
        if reading is None:
            return None
        rules = self._rules_of(reading)
        self._check_that_rules_stay(self.current, rules)
        return rules

    def _rules_of(self, reading: Reading) -> RuleSet:
        version = self._version(reading)
        if version.refusal is not None:
            raise RefusedError(version.refusal)
        self._text = version.text
        rules: RuleSet = version.rules
        # That the whole limits nothing is said at the start, where it is not meant.
        say(each for each in rules.advice if each.where)
        if rules.skipped:
            log.warning(
                "%s: %d overrides were left out, the rest of the rules is in force: %s%s",
                self, len(rules.skipped), rules.skipped[0],
                "" if len(rules.skipped) == 1 else ", and others",
            )  # fmt: skip
        return rules

    def _accept(self, version: RuleSet) -> bool:
        if version.digest == self.current.digest:
            # The rows that were left out may be others, of the same rules.
            self.current.skipped = version.skipped
            self.current._overrides_mark = version._overrides_mark
        return super()._accept(version)

    def _check_that_rules_stay(self, before: RuleSet, after: RuleSet) -> None:
        """Raises RefusedError for a version that takes all rules, or all that is left, away."""
        if self._allows_empty:
            return
        if before.in_force and not after.in_force:
            lost = f"no rule is in force, and {before.in_force} were before"
        elif before.blocked and not (after.in_force or after.blocked):
            lost = f"it has no entry, and `block` had {before.blocked} before"
        else:
            return
        raise RefusedError(
            LosesAllRulesError(
                f"{after.source}: {lost}; expected at least one, or a source with allow_empty=True"
            )
        )

    def _version(self, reading: Reading) -> Version:
        """Reads. Raises where the rules cannot be read."""
        keeps_text = self._cache is not None
        try:
            if reading.takes_long and self._reads_apart and not self._stop.is_set():
                try:
                    return self._apart(reading, keeps_text)
                except CannotReadApart as error:
                    # One that was killed, perhaps for its memory, says nothing of the next.
                    self._reads_apart = isinstance(error, ReaderWasKilled)
                    log.warning(
                        "%s: its rules are read within this process%s, where requests may wait "
                        "for it: there is no process for it: %s",
                        self, "" if self._reads_apart else " from now on", error,
                    )  # fmt: skip
            return read_here(reading.read, keeps_text=keeps_text)
        except BaseException:
            self._look_again()
            raise

    def _apart(self, reading: Reading, keeps_text: bool) -> Version:
        """Reads in another process; if that is killed, once more in its successor."""
        try:
            return read_apart(reading.read, keeps_text=keeps_text, stop=self._stop)
        except ReaderWasKilled:
            return read_apart(reading.read, keeps_text=keeps_text, stop=self._stop)

    def _first(self) -> RuleSet:
        try:
            reading = self._reading_of_now()
            assert reading is not None, "the first look finds something"
            # Nobody decides by them yet.
            rules = self._rules_of(reading._replace(takes_long=False))
            if not (rules.in_force or self._allows_empty):
                kept = self._kept()
                if kept is not None:
                    self._check_that_rules_stay(kept, rules)
                log.warning(
                    "%s begins without a rule in force, so that no request is limited; expected "
                    "at least one rule, or allow_empty=True", self,
                )  # fmt: skip
        except Exception as error:
            reason = error.reason if isinstance(error, RefusedError) else error
            kept = self._kept()
            if kept is None:
                raise reason from None
            if isinstance(reason, (RulesError, LosesAllRulesError)):
                self._refuse(reason)
            else:
                self._not_reached(reason)
            log.warning("%s begins with the rules kept in %s", self, self._cache)
            return kept
        self._took_effect()
        return rules

    def _kept(self) -> RuleSet | None:
        """The rules in the cache; None without one. One that is damaged is logged, and is none."""
        cache = self._cache
        if cache is None or not cache.exists():
            return None
        try:
            text = cache.read_text(encoding="utf-8")
            return RuleSet._from(read_text(text, "json", str(cache)))
        except (OSError, ValueError, RulesError) as error:
            log.warning("%s: the rules kept in %s cannot be used: %s", self, cache, error)
            return None

    def _took_effect(self) -> None:
        """Keeps the version in the cache."""
        if self._cache is None or self._text is None:
            return
        unfinished = self._cache.with_name(f"{self._cache.name}.{os.getpid()}.tmp")
        try:
            with open(
                os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
            ) as file:
                file.write(self._text)
            unfinished.replace(self._cache)
        except OSError as error:
            log.warning("the rules cannot be kept in %s: %s", self._cache, error)


# The most seconds that closing a source waits for a read under way.
_PATIENCE = 1.0
_sources: weakref.WeakSet[Source[Any]] = weakref.WeakSet()
_forking: list[Source[Any]] = []


def _before_fork() -> None:
    # Otherwise a child could begin in the middle of a change.
    for source in list(_sources):
        source._notifying.acquire()
        _forking.append(source)


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop()._notifying.release()


def _after_fork_in_child() -> None:
    while _forking:
        source = _forking.pop()
        source._notifying.release()
        source._after_fork()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
