"""When a call to an API may go out, and when it may be sent again."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, Callable, TypedDict, Union

from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.outbound.server_wait import server_wait

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Pacing", "PacingOptions"]

Key = Union[str, bytes]
_OPTIONS = ("limiter", "key", "timeout", "retries", "max_wait", "backoff", "jitter")


class PacingOptions(TypedDict, total=False):
    """The options of all transports and adapters, which Pacing describes."""

    limiter: Limiter | None
    key: Key | Callable[[Any], Key] | None
    timeout: float | None
    retries: int
    max_wait: float
    backoff: float | None
    jitter: float


class Pacing:
    """Checks and applies the options of a transport or adapter.

    Each attempt waits for its turn at `limiter`, up to `timeout` seconds; after that
    RateLimitExceeded is raised, and nothing is sent. An attempt charges 1 to `key`, which may be a
    function of the request; None means the host. After a response of status 429 the request is sent
    again up to `retries` times, after the wait in its Retry-After, or else in its RateLimit fields.
    If it states none, the wait is `backoff` seconds, doubled each time; with a `backoff` of None
    there is no retry. Up to `jitter` seconds are added to each wait, so that callers that were
    refused together do not come back together. If the wait is longer than `max_wait` seconds, the
    caller gets the 429.
    """

    def __init__(self, host_of: Callable[[Any], Key], options: Mapping[str, Any]) -> None:
        unknown = sorted(options.keys() - set(_OPTIONS))
        if unknown:
            raise ArgumentTypeError(
                f"the unknown option {unknown[0]}= was given; expected "
                f"{', '.join(f'{name}=' for name in _OPTIONS)}"
            )
        self.retries: int = options.get("retries", 3)
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise ConfigurationError(f"retries is {self.retries!r}; expected an int from 0 up")
        self._max_wait = _seconds("max_wait", options.get("max_wait", 60.0))
        backoff = options.get("backoff", 1.0)
        self._backoff = None if backoff is None else _seconds("backoff", backoff)
        self._jitter = _seconds("jitter", options.get("jitter", 0.25))
        limiter = options.get("limiter")
        key = options.get("key")
        if limiter is None:
            if key is not None or "timeout" in options:
                raise ConfigurationError("key or timeout was given without a limiter; expected one")
            self._turns = None
            return
        if not isinstance(limiter, Limiter):
            raise ArgumentTypeError(
                f"the limiter is {limiter!r} of type {type(limiter).__name__}; "
                "expected a tidegate.Limiter"
            )
        self._key = host_of if key is None else key
        self._timeout = options.get("timeout", 5.0)
        limiter.acquired("key" if callable(self._key) else self._key, timeout=self._timeout)
        self._turns = limiter

    def wait_turn(self, request: Any) -> None:
        """Waits until the limiter lets `request` go out; raises if that takes too long."""
        if self._turns is not None:
            with self._turns.acquired(self._key_of(request), timeout=self._timeout):
                pass

    async def wait_turn_async(self, request: Any) -> None:
        """Like wait_turn(), without blocking the event loop."""
        if self._turns is not None:
            async with self._turns.acquired(self._key_of(request), timeout=self._timeout):
                pass

    def wait_for_retry(self, status: int, headers: Mapping[str, str], attempt: int) -> float | None:
        """Seconds until the request may be sent again; None to return the response to the caller.

        `attempt` counts from 0; the names of `headers` are compared without regard to case.
        """
        if status != 429 or attempt >= self.retries:
            return None
        wait = server_wait(headers)
        if wait is None and self._backoff is not None:
            wait = self._backoff * 2.0**attempt
        if wait is None or wait > self._max_wait:
            return None
        return wait + random.uniform(0.0, self._jitter)

    def _key_of(self, request: Any) -> Key:
        return self._key(request) if callable(self._key) else self._key


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(
            f"{name} is {value!r} of type {type(value).__name__}; expected seconds as int or float"
        )
    if not 0 <= value < math.inf:
        raise ConfigurationError(f"{name} is {value!r}; expected 0 or more seconds")
    return float(value)
