"""Records who was refused, without delaying requests."""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import time
from typing import TYPE_CHECKING, Any, Callable, Union

from tidegate.limiter.errors import ArgumentTypeError
from tidegate.rules.background_writer import BackgroundWriter
from tidegate.rules.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidegate._core import Decision

    Value = Union[str, bytes, None]

__all__ = ["SECRETS", "ViolationLog", "text_of"]

_LONGEST = 255
# Attributes that must not be stored: a digest is stored instead.
SECRETS = frozenset({"api_key", "key", "token", "authorization", "password", "session"})

# The key of an entry: rule, caller and endpoint.
_Key = tuple[Union[str, None], str, str]


class ViolationLog(BackgroundWriter[_Key, list[Any]]):
    """Writes refusals to a database, a logger or a function, on a thread of its own.

        violations = ViolationLog("postgresql://db.internal/shop")
        limiter = Limiter(rules=source, violations=violations)

    `sink` is a URL or an Engine of SQLAlchemy, a ``logging.Logger``, or a function that is called
    with lists of Violations. A request only adds one to a number in memory: refusals of one caller
    by one rule at one endpoint are one Violation, written every `interval` seconds. At most
    `capacity` Violations wait to be written; further refusals are only counted, as `dropped`. If a
    write fails, it is tried again a few times. `callers` are the attributes that may name a caller;
    the first that a request has is used. `attributes` are other attributes to keep.

    In a database, rows older than `keep` days are deleted, and the table has at most `most_rows`
    rows and about `most_bytes` bytes; None means no bound. Where an hour has more than a 24th of
    the room that is left, only the callers with the most refusals have rows of their own.
    Thread-safe, and safe to use after `fork()`; call close() to write what is left, which the end
    of the interpreter does too.
    """

    _what = "violations"

    def __init__(
        self,
        sink: Any,
        *,
        interval: float = 1.0,
        capacity: int = 10_000,
        keep: float | None = 30,
        most_rows: int | None = None,
        most_bytes: int | None = None,
        callers: Sequence[str] = ("user", "api_key", "tenant", "ip"),
        attributes: Sequence[str] = ("user", "ip", "method", "tier", "tenant"),
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(interval=interval, capacity=capacity)
        self._sink = _sink_of(
            sink, keep=keep, most_rows=most_rows, most_bytes=most_bytes, clock=clock
        )
        self._callers = tuple(callers)
        self._attributes = tuple(attributes)
        self._clock = clock

    def record(self, decision: Decision, attributes: Mapping[str, Value]) -> None:
        """Records a refusal. Does not wait, and raises nothing."""
        self.note(decision.rule, attributes)

    def note(
        self,
        rule: str | None,
        attributes: Mapping[str, Value],
        refused: int = 1,
        at: float | None = None,
    ) -> None:
        """Records `refused` refusals by `rule` at a time, or now if that is None. Does not wait."""
        name, value = self._caller_of(attributes)
        caller = f"{name}:{value}"[:_LONGEST]
        endpoint = text_of(attributes.get("endpoint"))
        key = (rule, caller, endpoint)
        with self._lock:
            known = self._waiting.get(key)
            if known is not None:
                known[1] += refused
                return
            if len(self._waiting) >= self._capacity:
                self.dropped += refused
                return
            kept = {
                name: _shown(name, attributes[name])
                for name in self._attributes
                if attributes.get(name) is not None
            }
            self._waiting[key] = [self._clock() if at is None else at, refused, kept]
            self._start_if_needed()

    def _caller_of(self, attributes: Mapping[str, Value]) -> tuple[str, str]:
        for name in self._callers:
            value = attributes.get(name)
            if value is not None:
                return name, _shown(name, value)
        return "anyone", ""

    # An entry has the time of the first refusal, the number of refusals, and attributes.

    def _write(self, waiting: dict[_Key, list[Any]]) -> None:
        self._sink([_violation(key, *entry) for key, entry in waiting.items()])

    def _merge(self, known: list[Any], entry: list[Any]) -> None:
        known[0] = min(known[0], entry[0])
        known[1] += entry[1]

    def _requests_of(self, entry: list[Any]) -> int:
        return int(entry[1])

    def _close(self) -> None:
        close = getattr(self._sink, "close", None)
        if close is not None:
            close()

    def _forget_parent(self) -> None:
        forget = getattr(self._sink, "forget_parent", None)
        if forget is not None:
            forget()


def _violation(
    key: tuple[str | None, str, str], first: float, attempted: int, attributes: dict[str, str]
) -> Violation:
    rule, caller, endpoint = key
    at = dt.datetime.fromtimestamp(first, dt.timezone.utc)
    return Violation(at, rule, caller, endpoint, attempted, attributes)


def text_of(value: Value) -> str:
    """Returns text as a database accepts it: no NUL, no half of a surrogate pair, not too long."""
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
    return text_of(value)


def _sink_of(sink: Any, **options: Any) -> Callable[[list[Violation]], object]:
    if isinstance(sink, logging.Logger):
        return _LoggerSink(sink)
    if callable(sink):
        return sink  # type: ignore[no-any-return]
    if isinstance(sink, str) or hasattr(sink, "dialect") or hasattr(sink, "get_backend_name"):
        from tidegate.rules.sql.violation_table import ViolationTable

        return ViolationTable(sink, **options)
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
