"""Writes down who was refused, without delaying requests."""

from __future__ import annotations

import atexit
import datetime as dt
import hashlib
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Callable

from tidegate._database.violation import Violation
from tidegate._errors import ArgumentTypeError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Union

    from typing_extensions import Self

    from tidegate._core import Decision

    Value = Union[str, bytes, None]

__all__ = ["ViolationLog"]

log = logging.getLogger("tidegate")

_LONGEST = 255
# Attributes that must not be stored: a digest is stored instead.
SECRETS = frozenset({"api_key", "key", "token", "authorization", "password", "session"})
# The number of times that a write is tried before its violations are dropped. A database that comes
# back within a few seconds gets all of them.
_MOST_TRIES = 5
_PATIENCE = 1.0


class ViolationLog:
    """Writes refusals to a database, a logger or a function, on a thread of its own.

        violations = ViolationLog("postgresql://db.internal/shop")
        limiter = Limiter(rules=source, violations=violations)

    `sink` is a URL or an Engine of SQLAlchemy, a ``logging.Logger``, or a function that is called
    with lists of Violations. A request only adds one to a number in memory: refusals of one caller
    by one rule at one endpoint are one Violation, written every `interval` seconds. At most
    `capacity` Violations wait to be written; further refusals are only counted, as `dropped`. If a
    write fails, it is tried again a few times. `callers` are the attributes that may name a caller;
    the first that a request has is used. `attributes` are other attributes to keep.

    In a database, rows older than `keep` days are deleted. Thread-safe, and safe to use after
    `fork()`; call close() to write what is left, which the end of the interpreter does too.
    """

    def __init__(
        self,
        sink: Any,
        *,
        interval: float = 1.0,
        capacity: int = 10_000,
        keep: float | None = 30,
        callers: Sequence[str] = ("user", "api_key", "tenant", "ip"),
        attributes: Sequence[str] = ("user", "ip", "method", "tier", "tenant"),
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(interval, (int, float)) or isinstance(interval, bool) or not interval > 0:
            raise ConfigurationError(f"the interval is {interval!r}; expected seconds above 0")
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            raise ConfigurationError(f"the capacity is {capacity!r}; expected 1 or more")
        self._sink = _sink_of(sink, keep)
        self._interval = interval
        self._capacity = capacity
        self._callers = tuple(callers)
        self._attributes = tuple(attributes)
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # By rule, caller and endpoint: the time of the first refusal, their number, attributes.
        self._waiting: dict[tuple[str | None, str, str], list[Any]] = {}
        self.written = 0
        """The number of Violations that the sink accepted."""
        self.dropped = 0
        """The number of refusals that were not written anywhere."""
        self.failures = 0
        """The number of times that the sink raised."""
        _all.add(self)

    def record(self, decision: Decision, attributes: Mapping[str, Value]) -> None:
        """Notes a refusal. Never waits and never raises."""
        name, value = self._caller_of(attributes)
        caller = f"{name}:{value}"[:_LONGEST]
        endpoint = _text_of(attributes.get("endpoint"))
        key = (decision.rule, caller, endpoint)
        with self._lock:
            known = self._waiting.get(key)
            if known is not None:
                known[1] += 1
                return
            if len(self._waiting) >= self._capacity:
                self.dropped += 1
                return
            kept = {
                name: _shown(name, attributes[name])
                for name in self._attributes
                if attributes.get(name) is not None
            }
            self._waiting[key] = [self._clock(), 1, kept]
            if self._thread is None and not self._stop.is_set():
                self._start()

    def flush(self) -> bool:
        """Writes the waiting violations now. False if the sink raised; then they keep waiting."""
        with self._writing:
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            if not waiting:
                return True
            batch = [_violation(key, *noted) for key, noted in waiting.items()]
            try:
                self._sink(batch)
            except Exception as error:
                self.failures += 1
                if self.failures == 1 or self.failures % 100 == 0:
                    log.warning("violations were not written: %s", error)
                self._put_back(waiting)
                return False
            self.written += len(batch)
            return True

    def close(self) -> None:
        """Writes the waiting violations, and ends the thread."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)
        if thread is None or not thread.is_alive():
            self.flush()
            with self._lock:
                left, self._waiting = self._waiting, {}
                self.dropped += sum(noted[1] for noted in left.values())
            close = getattr(self._sink, "close", None)
            if close is not None:
                close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _caller_of(self, attributes: Mapping[str, Value]) -> tuple[str, str]:
        for name in self._callers:
            value = attributes.get(name)
            if value is not None:
                return name, _shown(name, value)
        return "anyone", ""

    def _put_back(self, waiting: dict[tuple[str | None, str, str], list[Any]]) -> None:
        with self._lock:
            for key, noted in waiting.items():
                known = self._waiting.get(key)
                if known is not None:
                    known[0] = min(known[0], noted[0])
                    known[1] += noted[1]
                elif len(self._waiting) < self._capacity:
                    self._waiting[key] = noted
                else:
                    self.dropped += noted[1]

    def _drop(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            lost = sum(noted[1] for noted in waiting.values())
            self.dropped += lost
        log.error("%d violations were dropped: they could not be written", lost)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="tidegate ViolationLog", daemon=True)
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
        # The parent writes the violations that are waiting.
        self._waiting = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        is_closed, self._stop = self._stop.is_set(), threading.Event()
        if is_closed:
            self._stop.set()
        self._thread = None
        forget = getattr(self._sink, "forget_parent", None)
        if forget is not None:
            forget()


def _violation(
    key: tuple[str | None, str, str], first: float, attempted: int, attributes: dict[str, str]
) -> Violation:
    rule, caller, endpoint = key
    at = dt.datetime.fromtimestamp(first, dt.timezone.utc)
    return Violation(at, rule, caller, endpoint, attempted, attributes)


def _text_of(value: Value) -> str:
    """The text as a database accepts it: no NUL, no half of a surrogate pair, not too long."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else value[: 4 * _LONGEST].decode("utf-8", "replace")
    text = text[:_LONGEST]
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace("\0", "�")


def _shown(name: str, value: Value) -> str:
    if name in SECRETS and value is not None:
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        return f"sha256-{hashlib.sha256(raw).hexdigest()[:16]}"
    return _text_of(value)


def _sink_of(sink: Any, keep: float | None) -> Callable[[list[Violation]], object]:
    if isinstance(sink, logging.Logger):
        return _LoggerSink(sink)
    if callable(sink):
        return sink  # type: ignore[no-any-return]
    if isinstance(sink, str) or hasattr(sink, "dialect") or hasattr(sink, "get_backend_name"):
        from tidegate._database.violation_table import ViolationTable

        return ViolationTable(sink, keep=keep)
    raise ArgumentTypeError(
        f"the sink is {sink!r:.80} of type {type(sink).__name__}; expected a URL of a database, a "
        "logger or a function"
    )


class _LoggerSink:
    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __call__(self, violations: list[Violation]) -> None:
        for each in violations:
            self._logger.warning(
                "%r was refused %d times by %s at %r",
                each.caller,
                each.attempted,
                each.rule,
                each.endpoint,
                extra={"violation": each._asdict()},
            )


_all: weakref.WeakSet[ViolationLog] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_all):
        each._after_fork()


def _close_all() -> None:
    for each in list(_all):
        if each._thread is not None:
            each.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_all)
