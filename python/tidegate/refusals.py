"""A log of refusals, and the keys that are refused most.

::

    from tidegate.refusals import RefusalLog, TopKeys, watch

    top = TopKeys(capacity=1000)
    watch(RefusalLog(per_second=10), top)
    ...
    top.top(10)

An observer is any function of a Refusal. watch() has observers called for each refusal by the
middleware, decorators and dependencies of this process. Code that calls a Limiter directly may call
an observer itself: ``top(Refusal("jobs", key, decision))``.
"""

from __future__ import annotations

import hashlib
import heapq
import ipaddress
import logging
import math
import random
import secrets
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Union

from tidegate.limiter.background import renew_after_fork
from tidegate.limiter.checks import check_int, check_number
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.web.observers import Refusal, Watch

if TYPE_CHECKING:
    from tidegate.limiter.clock import ClockLike

    Key = Union[str, bytes]

__all__ = ["Refusal", "RefusalLog", "TopKey", "TopKeys", "Watch", "watch"]

KEY_POLICIES = ("addresses", "hashed", "full", "none")

# Texts that a stranger sent are cut at this length.
_LONGEST = 200


def watch(*observers: Callable[[Refusal], object]) -> Watch:
    """Calls `observers` for each refusal, until the returned Watch is closed.

    They are called in the thread that answers the request, in their order, and should be quick.
    Their exceptions are logged and reach no request. Raises ConfigurationError for an observer that
    is not a function. Thread-safe; a Watch that was made before `fork()` also works in the
    children.
    """
    for observer in observers:
        if not callable(observer):
            raise ArgumentTypeError(
                f"watch() was given {observer!r} of type {type(observer).__name__}; expected "
                "functions of a Refusal"
            )
    return Watch(observers)


class _Counting:
    """A base class with a lock, whose state is reset if a fork() interrupted a change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        raise NotImplementedError

    def _after_fork(self) -> None:
        if self._lock.locked():
            self._lock = threading.Lock()
            self._begin()


@dataclass(frozen=True)
class TopKey:
    """A key, and how often it was counted: at most `count`, at least `count - error` times."""

    key: str
    count: int
    error: int


class TopKeys(_Counting):
    """The keys that are refused most, in memory for `capacity` of them.

    This is the Space-Saving algorithm (Metwally, Agrawal and El Abbadi, 2005): a key beyond
    the capacity takes the place of one with the least count, and takes over this count as its
    `error`. With `total` the number of refusals counted:

    - for each key listed, count - error <= true number <= count;
    - error <= floor <= total / capacity, for all of them;
    - a key that is not listed was counted at most `floor` times.

    So with a capacity of 1,000 each key with more than a thousandth of all refusals is listed.
    Keys are kept as text; those longer than 200 characters as their beginning and a digest. One
    call takes constant time. Raises ConfigurationError for a capacity below 1. Thread-safe.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self.capacity = check_int("the capacity", capacity, "an int from 1 up", least=1)
        super().__init__()

    def _begin(self) -> None:
        self._total = 0
        self._counts: dict[str, int] = {}
        # Keys by count, with their errors: an eviction finds the smallest count at once.
        self._of_count: dict[int, dict[str, int]] = {}
        self._least = 0

    def __call__(self, refusal: Refusal) -> None:
        """Counts the key of `refusal`, if it has one."""
        if refusal.key is not None:
            self.add(refusal.key)

    def add(self, key: Key) -> None:
        """Counts `key` once."""
        text = _text_of(key)
        with self._lock:
            self._total += 1
            count = self._counts.get(text)
            if count is not None:
                error = self._taken(text, count)
            elif len(self._counts) < self.capacity:
                count = error = self._least = 0
            else:
                count = error = self._least
                alike = self._of_count[count]
                # The last key: finding the first would pass over all entries that were removed
                # before.
                victim, _ = alike.popitem()
                if not alike:
                    del self._of_count[count]
                del self._counts[victim]
            self._counts[text] = count + 1
            self._of_count.setdefault(count + 1, {})[text] = error
            # A key of the smallest count now has one more, so the next count is not empty.
            if self._least not in self._of_count:
                self._least += 1

    def _taken(self, key: str, count: int) -> int:
        alike = self._of_count[count]
        error = alike.pop(key)
        if not alike:
            del self._of_count[count]
        return error

    def top(self, n: int = 10) -> list[TopKey]:
        """The `n` keys that were counted most, the most counted first."""
        with self._lock:
            first = heapq.nsmallest(n, self._counts.items(), key=lambda each: (-each[1], each[0]))
            return [TopKey(key, count, self._of_count[count][key]) for key, count in first]

    @property
    def total(self) -> int:
        """How many refusals were counted."""
        with self._lock:
            return self._total

    @property
    def floor(self) -> int:
        """The most often that a key that is not listed can have been counted."""
        with self._lock:
            return self._least if len(self._counts) == self.capacity else 0

    def clear(self) -> None:
        """Forgets all counts."""
        with self._lock:
            self._begin()

    def __len__(self) -> int:
        return len(self._counts)


class RefusalLog(_Counting):
    """Writes a log line for refusals: a share of them, and never more than a rate.

    `sample` is the share, from above 0.0 to 1.0, `per_second` how many lines at most. The
    lines go to `logger` ("tidegate.refusals") at `level`. The message has these fields as
    ``name=value``, and the record has them as attributes, for formatters that write JSON: `event`
    (always "rate_limit_refused"), `limiter`, `rule`, `limit`, `cost`, `retry_after` (seconds, None
    if the request can never pass), `degraded`, `key`, `method`, `path`, `route`, and `skipped`, the
    number of refusals without a line since the last line.

    `keys` says what to log of a key. ``"addresses"``: addresses as they are, and a short hash of
    any other key, since it may be a secret; ``"hashed"``: only hashes; ``"full"``: the key;
    ``"none"``: nothing; or a function of the key that returns a str. The hash is keyed by `secret`,
    random by default: give one to compare the lines of several processes and hosts. `paths` says
    whether to log paths. Texts are cut at 200 characters and their control characters escaped.
    Raises ConfigurationError at construction for invalid arguments. Thread-safe.
    """

    def __init__(
        self,
        *,
        sample: float = 1.0,
        per_second: int = 10,
        keys: str | Callable[[Key], str] = "addresses",
        secret: bytes | None = None,
        paths: bool = True,
        level: int = logging.WARNING,
        logger: str | logging.Logger = "tidegate.refusals",
        clock: ClockLike = None,
    ) -> None:
        if not 0.0 < check_number("sample", sample, "a share such as 0.1") <= 1.0:
            raise ConfigurationError(f"sample is {sample!r}; expected shares above 0 up to 1")
        if not callable(keys) and keys not in KEY_POLICIES:
            raise ConfigurationError(
                f"keys is {keys!r}; expected {', '.join(map(repr, KEY_POLICIES))}, and a "
                "function of the key"
            )
        if not isinstance(paths, bool):
            raise ArgumentTypeError(f"paths is {paths!r}; expected True and False")
        # The message never shows the value.
        if secret is not None and (not isinstance(secret, bytes) or not 16 <= len(secret) <= 64):
            raise ConfigurationError(
                f"the secret is a {type(secret).__name__}; expected 16 to 64 bytes, or None"
            )
        check_int("per_second", per_second, "an int from 1 up", least=1)
        self._limiter = Limiter(f"{per_second}/second", storage="memory://?capacity=1", clock=clock)
        self._sample = sample
        self._random = random.Random()
        self._keys = keys
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._paths = paths
        self._level = level
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        super().__init__()

    def _begin(self) -> None:
        self._skipped = 0

    def __call__(self, refusal: Refusal) -> None:
        """Writes a line for `refusal`, or counts it as skipped."""
        if not self._logger.isEnabledFor(self._level):
            return
        is_wanted = self._sample == 1.0 or self._random.random() < self._sample
        with self._lock:
            if not is_wanted or not self._limiter.allow("line"):
                self._skipped += 1
                return
            skipped, self._skipped = self._skipped, 0
        fields = self._fields(refusal, skipped)
        message = " ".join(
            f"{name}={_shown(value)}" for name, value in fields.items() if value is not None
        )
        self._logger.log(self._level, "%s", message, extra=fields)

    def _fields(self, refusal: Refusal, skipped: int) -> dict[str, Any]:
        decision = refusal.decision
        wait = decision.retry_after
        return {
            "event": "rate_limit_refused",
            "limiter": refusal.limiter,
            "rule": decision.rule,
            "limit": decision.limit,
            "cost": refusal.cost,
            "retry_after": None if wait == math.inf else wait,
            "degraded": decision.degraded,
            "key": None if refusal.key is None else self._key(refusal.key),
            "method": _bounded(refusal.method),
            "path": _bounded(refusal.path) if self._paths else None,
            "route": _bounded(refusal.route),
            "skipped": skipped,
        }

    def _key(self, key: Key) -> str | None:
        if self._keys == "none":
            return None
        if not isinstance(self._keys, str):
            return _bounded(self._keys(key))
        text = _text_of(key)
        if self._keys == "full" or (self._keys == "addresses" and _is_address(text)):
            return _bounded(text)
        raw = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
        return "#" + hashlib.blake2b(raw, key=self._secret, digest_size=8).hexdigest()


def _text_of(key: Key) -> str:
    """`key` as a text of bounded length."""
    if isinstance(key, bytes):
        key = key.decode("utf-8", "backslashreplace")
    # The key that stands in for a missing one, see RequestLimiter.
    key = key[1:] or "unknown" if key[:1] == "\0" else key
    if len(key) <= _LONGEST:
        return key
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{key[: _LONGEST - len(digest) - 1]}…{digest}"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _bounded(text: str | None) -> str | None:
    """`text` without characters that could forge another line, cut at the longest length."""
    if text is None or (len(text) <= _LONGEST and text.isprintable()):
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in text[:_LONGEST]
    )


def _shown(value: Any) -> str:
    """`value` as in a line of ``name=value``."""
    if not isinstance(value, str):
        return str(value)
    if value and not any(each in ' "=\\' for each in value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
