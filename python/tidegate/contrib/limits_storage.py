"""Storages for the `limits` package, and so for Flask-Limiter and slowapi.

Importing this module registers ``tidegate+memory://``, ``tidegate+shm://NAME``,
``tidegate+redis://HOST`` and their ``async+`` forms with `limits`: the part after ``tidegate+`` is
a storage URI of tidegate. Fixed windows are aligned to the epoch. Moving windows are sliding logs;
those that are too long for the store are decided as sliding windows, which is logged. Sliding
windows are decided in integers. None lets more through than its limit, and a refused call is not
charged. The numbers that `limits` reports are tidegate's own, except that the reset of a sliding
window is never reported as further away than one window, the longest that `limits` can express: it
is early if the next unit comes later.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import math
import re
import time
from typing import Any

from tidegate.limiter.errors import without_extra

try:
    from limits import RateLimitItem
    from limits.aio.storage import MovingWindowSupport as AsyncMovingWindowSupport
    from limits.aio.storage import SlidingWindowCounterSupport as AsyncSlidingWindowCounterSupport
    from limits.aio.storage import Storage as AsyncStorage
    from limits.limits import GRANULARITIES
    from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
except ImportError as error:
    raise without_extra("tidegate.limits", "limits", error) from None

from tidegate._core import Decision, Limit, RedisStore, ShmStore, Store
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError, TidegateError
from tidegate.limiter.limiter import Limiter
from tidegate.types import Algorithm

__all__ = ["AsyncTidegateStorage", "TidegateStorage"]

log = logging.getLogger("tidegate")

_SCHEMES = [
    f"tidegate+{scheme}"
    for scheme in (
        *("memory", "shm"),
        *("redis", "rediss", "redis+unix", "redis+cluster", "redis+sentinel"),
        *("valkey", "valkeys", "valkey+unix", "valkey+cluster", "valkey+sentinel"),
    )
]

# Limiters are cheap to make again: their counts are in the store.
_MOST_LIMITERS = 1024

# The key that counts the resets of a shared memory, whose keys cannot be listed.
_RESETS = Limit(2**32, "100 years", algorithm="fixed-window", name="resets")

# The longest sliding log of any store.
_MOST_LOG = 1_000_000


class _Limiters:
    """The limiters of one storage, by the limits that the `limits` package passes."""

    def __init__(self, uri: str | None, options: dict[str, Any]) -> None:
        scheme, _, rest = (uri or "tidegate+memory://").partition("tidegate+")
        if scheme not in ("", "async+") or not rest:
            raise ConfigurationError(
                "the storage URI does not begin with 'tidegate+' or 'async+tidegate+'; "
                "expected one that does"
            )
        self._uri = rest
        self._clock = options.pop("clock", None)
        self._prefix = _own_prefix(options.pop("prefix", "tg"))
        self._options = options
        self._open()

    def _open(self) -> None:
        limit = Limit(1, 1.0, algorithm="fixed-window")
        self.probe = Limiter(
            limit, storage=self._uri, prefix=self._prefix, clock=self._clock, **self._options
        )
        self._resets: Limiter | None = None
        if isinstance(self.probe.storage, ShmStore):
            self._resets = Limiter(
                _RESETS, storage=self.probe.storage, prefix=self._prefix, clock=self._clock
            )
        self._most_log = self._longest_log()
        self._known = functools.lru_cache(maxsize=_MOST_LIMITERS)(self._make)

    def of(self, algorithm: Algorithm, count: int, period: int) -> Limiter:
        resets = 0 if self._resets is None else _used(self._resets.peek("resets"))
        return self._known(algorithm, count, period, resets)

    def _make(self, algorithm: Algorithm, count: int, period: int, resets: int) -> Limiter:
        if algorithm == "sliding-log" and count > self._most_log:
            log.warning(
                "rate limiting: a moving window of %d is beyond %d, the most that the storage "
                "remembers of a key, and decided as a sliding-window-counter",
                *(count, self._most_log),
            )
            algorithm = "sliding-window"
        return self._limiter(count, period, algorithm, resets)

    def _longest_log(self) -> int:
        """The largest count of a sliding log that the store accepts."""
        low, high = 1, _MOST_LOG + 1
        middle = _MOST_LOG
        while low + 1 < high:
            try:
                self._limiter(middle, 1, "sliding-log")
                low = middle
            except ConfigurationError:
                high = middle
            middle = (low + high) // 2
        return low

    def _limiter(self, count: int, period: int, algorithm: Algorithm, resets: int = 0) -> Limiter:
        return Limiter(
            Limit(count, float(period), algorithm=algorithm),
            storage=self.probe.storage,
            prefix=f"{self._prefix}#{resets}" if resets else self._prefix,
            clock=self._clock,
        )

    def forget(self) -> int | None:
        """Forgets the counts of all storages of this prefix, in all processes, and nothing else;
        returns how many keys it removed, if that is known."""
        store = self.probe.storage
        if self._resets is not None:
            self._resets.hit("resets")
            return None
        if not isinstance(store, RedisStore):
            self._open()
            return None
        if "cluster" in self._uri.partition(":")[0]:
            raise NotImplementedError(
                "the keys of a Redis Cluster are on many servers and are not cleared as a whole; "
                "expected clear(key), or a storage of another scheme"
            )
        removed = _remove_keys(store, self._prefix)
        store._forget_refusals()
        return removed


def _own_prefix(prefix: Any) -> str:
    """The prefix under which only storages of this module count, short enough for Redis keys to
    begin with it unchanged."""
    if not isinstance(prefix, str):
        raise ArgumentTypeError(
            f"the prefix is {prefix!r} of type {type(prefix).__name__}; expected a str"
        )
    plain = re.fullmatch(r"[A-Za-z0-9_.:/-]{0,40}", prefix) is not None
    name = prefix if plain else hashlib.sha256(prefix.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:40]}/limits"


def _remove_keys(store: RedisStore, prefix: str) -> int:
    removed = 0
    cursor = "0"
    while True:
        cursor, keys = store.command(["SCAN", cursor, "MATCH", f"{prefix}:*", "COUNT", "1000"])
        if keys:
            removed += store.command(["UNLINK", *keys])
        if cursor == "0":
            return removed


def _read(key: str) -> tuple[int, int]:
    """The amount and seconds of the limit whose `key_for` made `key`."""
    parts = key.rsplit("/", 3)
    if len(parts) == 4 and parts[3] in GRANULARITIES:
        item: type[RateLimitItem] = GRANULARITIES[parts[3]]
        try:
            return int(parts[1]), int(parts[2]) * item.GRANULARITY.seconds
        except ValueError:
            pass
    raise ConfigurationError(
        f"the key ends in {key[-40:]!r}; expected keys of RateLimitItem.key_for(), which end "
        "in /AMOUNT/MULTIPLES/GRANULARITY"
    )


def _used(decision: Decision) -> int:
    return decision.limit - decision.remaining


def _moving(decision: Decision, next_unit: Decision, expiry: int) -> tuple[float, int]:
    return time.time() + next_unit.retry_after - expiry, _used(decision)


def _sliding(decision: Decision, next_unit: Decision, expiry: int) -> tuple[int, float, int, float]:
    # `limits` takes the time to live modulo the window.
    ttl = min(next_unit.retry_after, math.nextafter(expiry, 0.0))
    return 0, 0.0, _used(decision), ttl


class _Counting:
    """What a storage of `limits` needs besides its counts, blocking or not."""

    def __init__(
        self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)  # type: ignore[call-arg]
        self._made_with = uri, wrap_exceptions, dict(options)
        self._limiters = _Limiters(uri, options)

    def __reduce__(self) -> tuple[Any, ...]:
        # The counts of a memory store stay where they are.
        return _restored, (type(self), *self._made_with)

    @property
    def storage(self) -> Store:
        """The store that counts, as other storages of `limits` have one."""
        return self._limiters.probe.storage

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        return TidegateError


class TidegateStorage(_Counting, Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """A storage of tidegate for the synchronous strategies of `limits`.

    `uri` is ``tidegate+`` and a storage URI of tidegate; `options` are those of the storage,
    `prefix` and `clock` those of tidegate.Limiter. Raises ConfigurationError for invalid arguments,
    StorageError if the store cannot be opened. Thread-safe.
    """

    STORAGE_SCHEME = list(_SCHEMES)  # noqa: RUF012

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """The count of the window with `amount` in it; beyond the limit, nothing is charged."""
        count, _ = _read(key)
        if count < 1:
            return amount
        limiter = self._limiters.of("fixed-window", count, expiry)
        if amount < 1:
            return _used(limiter.peek(key))
        decision = limiter.hit(key, amount)
        return _used(decision) + (0 if decision.allowed else amount)

    def get(self, key: str) -> int:
        count, period = _read(key)
        return _used(self._limiters.of("fixed-window", count, period).peek(key)) if count > 0 else 0

    def get_expiry(self, key: str) -> float:
        count, period = _read(key)
        if count < 1:
            return time.time()
        decision = self._limiters.of("fixed-window", count, period).peek(key)
        return time.time() + decision.reset_after

    def check(self) -> bool:
        return not self._limiters.probe.peek("check").degraded

    def reset(self) -> int | None:
        """Forgets the counts of all storages of this prefix, in every process, and nothing else.

        For Redis it returns how many keys it removed; raises NotImplementedError for a Redis
        Cluster.
        """
        return self._limiters.forget()

    def clear(self, key: str) -> None:
        count, period = _read(key)
        if count > 0:
            for algorithm in ("fixed-window", "sliding-log"):
                self._limiters.of(algorithm, count, period).reset(key)

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self._acquire("sliding-log", key, limit, expiry, amount)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        if limit < 1:
            return time.time(), 0
        return _moving(*self._look("sliding-log", key, limit, expiry), expiry)

    def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        return self._acquire("sliding-window", key, limit, expiry, amount)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        count, _ = _read(key)
        if count < 1:
            return 0, 0.0, 0, 0.0
        return _sliding(*self._look("sliding-window", key, count, expiry), expiry)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        count, _ = _read(key)
        if count > 0:
            self._limiters.of("sliding-window", count, expiry).reset(key)

    def _acquire(
        self, algorithm: Algorithm, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        if limit < 1:
            return False
        return amount < 1 or self._limiters.of(algorithm, limit, expiry).allow(key, amount)

    def _look(
        self, algorithm: Algorithm, key: str, limit: int, expiry: int
    ) -> tuple[Decision, Decision]:
        """The units used, and the instant at which one more unit than now will be free."""
        limiter = self._limiters.of(algorithm, limit, expiry)
        decision = limiter.peek(key)
        if decision.remaining in (0, limit):
            return decision, decision
        return decision, limiter.peek(key, decision.remaining + 1)


class AsyncTidegateStorage(
    _Counting, AsyncStorage, AsyncMovingWindowSupport, AsyncSlidingWindowCounterSupport
):
    """A TidegateStorage for the strategies of `limits.aio`. Never blocks the event loop."""

    STORAGE_SCHEME = ["async+" + scheme for scheme in _SCHEMES]  # noqa: RUF012

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """The count of the window with `amount` in it; beyond the limit, nothing is charged."""
        count, _ = _read(key)
        if count < 1:
            return amount
        limiter = self._limiters.of("fixed-window", count, expiry)
        if amount < 1:
            return _used(await _peek(limiter, key))
        decision = await limiter.hit_async(key, amount)
        return _used(decision) + (0 if decision.allowed else amount)

    async def get(self, key: str) -> int:
        count, period = _read(key)
        if count < 1:
            return 0
        return _used(await _peek(self._limiters.of("fixed-window", count, period), key))

    async def get_expiry(self, key: str) -> float:
        count, period = _read(key)
        if count < 1:
            return time.time()
        decision = await _peek(self._limiters.of("fixed-window", count, period), key)
        return time.time() + decision.reset_after

    async def check(self) -> bool:
        return not (await _peek(self._limiters.probe, "check")).degraded

    async def reset(self) -> int | None:
        """Like TidegateStorage.reset()."""
        return await asyncio.get_running_loop().run_in_executor(None, self._limiters.forget)

    async def clear(self, key: str) -> None:
        count, period = _read(key)
        if count > 0:
            for algorithm in ("fixed-window", "sliding-log"):
                await _reset(self._limiters.of(algorithm, count, period), key)

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return await self._acquire("sliding-log", key, limit, expiry, amount)

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        if limit < 1:
            return time.time(), 0
        return _moving(*await self._look("sliding-log", key, limit, expiry), expiry)

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        return await self._acquire("sliding-window", key, limit, expiry, amount)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        count, _ = _read(key)
        if count < 1:
            return 0, 0.0, 0, 0.0
        return _sliding(*await self._look("sliding-window", key, count, expiry), expiry)

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        count, _ = _read(key)
        if count > 0:
            await _reset(self._limiters.of("sliding-window", count, expiry), key)

    async def _acquire(
        self, algorithm: Algorithm, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        if limit < 1:
            return False
        if amount < 1:
            return True
        return bool(await self._limiters.of(algorithm, limit, expiry).hit_async(key, amount))

    async def _look(
        self, algorithm: Algorithm, key: str, limit: int, expiry: int
    ) -> tuple[Decision, Decision]:
        limiter = self._limiters.of(algorithm, limit, expiry)
        decision = await _peek(limiter, key)
        if decision.remaining in (0, limit):
            return decision, decision
        return decision, await _peek(limiter, key, decision.remaining + 1)


def _restored(kind: Any, uri: str | None, wrap_exceptions: bool, options: dict[str, Any]) -> Any:
    return kind(uri, wrap_exceptions, **options)


async def _peek(limiter: Limiter, key: str, cost: int = 1) -> Decision:
    # A limiter whose store does no I/O need not have the async form.
    peek_async = getattr(limiter, "peek_async", None)
    if peek_async is None:
        return limiter.peek(key, cost)
    decision: Decision = await peek_async(key, cost)
    return decision


async def _reset(limiter: Limiter, key: str) -> None:
    reset_async = getattr(limiter, "reset_async", None)
    if reset_async is None:
        limiter.reset(key)
    else:
        await reset_async(key)
