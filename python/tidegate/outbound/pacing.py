"""When a call to an API may go out, and when it may be sent again."""

from __future__ import annotations

import inspect
import math
import random
import time
from typing import TYPE_CHECKING, Any, Callable, TypedDict, TypeVar, Union

from tidegate.limiter.checks import check_number
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.outbound.server_wait import exhausted_for, server_wait

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Pacing", "PacingOptions", "shows_options"]

Key = Union[str, bytes]
Function = TypeVar("Function", bound=Callable[..., Any])
# The most keys of which something is noted.
_MOST_LEARNED = 1000
_DEFAULTS: dict[str, Any] = {
    "limiter": None,
    "key": None,
    "timeout": 5.0,
    "retries": 3,
    "max_wait": 60.0,
    "backoff": 1.0,
    "jitter": 0.25,
    "learn": True,
}


class PacingOptions(TypedDict, total=False):
    """The options of all transports and adapters, which Pacing describes."""

    limiter: Limiter | None
    key: Key | Callable[[Any], Key] | None
    timeout: float | None
    retries: int
    max_wait: float
    backoff: float | None
    jitter: float
    learn: bool


def shows_options(function: Function) -> Function:
    """Gives `function` a signature that names the options in place of ``**options``."""
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name != "options"]
    parameters += [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_DEFAULTS[name],
            annotation=getattr(annotation, "__forward_arg__", annotation),
        )
        for name, annotation in PacingOptions.__annotations__.items()
    ]
    shown: Any = function
    shown.__signature__ = signature.replace(parameters=parameters)
    return function


class Pacing:
    """Checks and applies the options of a transport or adapter.

    Each attempt waits for its turn at `limiter`, up to `timeout` seconds; after that
    RateLimitExceeded is raised, and the attempt is not sent. An attempt charges 1 to `key`, which
    may be a function of the request; None means the host. After a response of status 429 the
    request is sent again up to `retries` times, after the wait in its Retry-After, or else in its
    RateLimit fields or those of OpenAI and Anthropic. If it states none, the wait is `backoff`
    seconds, doubled each time; with a `backoff` of None there is no retry. Up to `jitter` seconds
    are added to each wait, so that callers that were refused together do not come back together. If
    the wait is longer than `max_wait` seconds, the caller gets the 429. With `learn`, a 429 that
    states a wait, and a response of any status that says that nothing is left, make the next
    requests of the key wait so long, up to `max_wait` seconds.
    """

    def __init__(self, host_of: Callable[[Any], Key], options: Mapping[str, Any]) -> None:
        unknown = sorted(options.keys() - _DEFAULTS.keys())
        if unknown:
            raise ArgumentTypeError(
                f"the unknown option {unknown[0]}= was given; expected "
                f"{', '.join(f'{name}=' for name in _DEFAULTS)}"
            )
        given = {**_DEFAULTS, **options}
        self.retries: int = given["retries"]
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise ConfigurationError(f"retries is {self.retries!r}; expected an int from 0 up")
        self._max_wait = _seconds("max_wait", given["max_wait"])
        backoff = given["backoff"]
        self._backoff = None if backoff is None else _seconds("backoff", backoff)
        self._jitter = _seconds("jitter", given["jitter"])
        if not isinstance(given["learn"], bool):
            raise ArgumentTypeError(f"learn is {given['learn']!r}; expected True and False")
        self._learns = given["learn"]
        self._again_at: dict[Key, float] = {}
        limiter = given["limiter"]
        key = given["key"]
        self._key: Key | Callable[[Any], Key] = host_of
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
        self._timeout = given["timeout"]
        limiter.acquired("key" if callable(self._key) else self._key, timeout=self._timeout)
        self._turns = limiter

    def send(self, request: Any, send: Callable[[], Any], can_resend: Callable[[Any], bool]) -> Any:
        """Returns the response of `send`, which is called within the limits, and again after a 429
        if `can_resend` returns true for `request`."""
        attempt = 0
        while True:
            before = self.wait_before(request)
            if before > 0:
                time.sleep(before)
            self.wait_turn(request)
            response = send()
            self.learn(request, response.status_code, response.headers)
            wait = self.wait_for_retry(response.status_code, response.headers, attempt)
            if wait is None or not can_resend(request):
                return response
            response.close()
            time.sleep(wait)
            attempt += 1

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

    def wait_before(self, request: Any) -> float:
        """Seconds to wait before `request` is sent, by what earlier responses have said."""
        if not self._again_at:
            return 0.0
        again_at = self._again_at.get(self._key_of(request), 0.0)
        return min(max(0.0, again_at - time.monotonic()), self._max_wait)

    def learn(self, request: Any, status: int, headers: Mapping[str, str]) -> None:
        """Notes what a response says of the server's limits."""
        if not self._learns:
            return
        wait = exhausted_for(headers)
        if status == 429:  # nothing is left, also if only Retry-After says until when
            wait = server_wait(headers) or wait
        if wait is None:
            return
        key = self._key_of(request)
        if wait == 0.0:
            self._again_at.pop(key, None)
            return
        if len(self._again_at) >= _MOST_LEARNED:
            self._again_at.clear()
        self._again_at[key] = time.monotonic() + wait

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
    if not 0 <= check_number(name, value) < math.inf:
        raise ConfigurationError(f"{name} is {value!r}; expected 0 or more seconds")
    return float(value)
