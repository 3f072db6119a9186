"""What the middleware and the decorator share: from a request to a verdict.

The guard knows no framework. A request is whatever the framework calls one; the functions
that read it are given.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Callable, TypeVar, Union

from tidegate._core import Decision
from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._functions import check_function
from tidegate._headers import FieldList, Fields, Problems
from tidegate._limiter import Limiter

__all__ = ["NO_KEY_POLICIES", "Guard", "Verdict", "finished", "log", "ready"]

Key = Union[str, bytes]
T = TypeVar("T")

log = logging.getLogger("tidegate")

NO_KEY_POLICIES = ("address", "open", "closed")

# Before the keys that stand in for one that the key function did not give. A key function
# may well return what a stranger sent, but no header, path or address holds a NUL.
_STAND_IN = "\0"

# No limit lets as much through at once.
_NEVER = 2**62

# Between two complaints of one kind: a broken key function must not flood the log as well.
_QUIET_SECONDS = 10.0


class Verdict:
    """A decision on one request, and what its response is to say."""

    __slots__ = ("_cost", "_decided_ns", "_guard", "_key", "decision")

    def __init__(
        self, guard: Guard, decision: Decision, decided_ns: int, key: Key, cost: int
    ) -> None:
        self._guard = guard
        self._decided_ns = decided_ns
        self._key = key
        self._cost = cost
        self.decision = decision

    def fields(self) -> FieldList:
        """The header fields of a response that is sent now."""
        guard = self._guard
        return guard._encode(self.decision, self._decided_ns, guard._now_ns())

    def problem(self) -> bytes:
        """The body of a refusal."""
        return self._guard._problems.encode(self.decision)

    async def undo(self) -> None:
        """Gives back what was charged."""
        if self.decision.allowed:
            await self._guard.limiter.refund_async(self._key, self._cost)


class Guard:
    """Judges requests by one limiter.

    `address` reads the client's address from a request, None where it has none. `key`,
    `cost` and `exempt_when` may be functions of the request that return their value or an
    awaitable of it. Nothing that they raise or return wrongly gets out of judge(): it is
    logged, and the request is judged by the policy `on_no_key`, by a cost of 1, or as not
    exempt. Raises ConfigurationError at construction for what is not accepted. Thread-safe.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        address: Callable[[Any], str | None],
        key: Callable[[Any], Any] | None = None,
        cost: int | Callable[[Any], Any] = 1,
        exempt_when: Callable[[Any], Any] | None = None,
        on_no_key: str = "address",
        on_refused: Callable[..., Any] | None = None,
        headers: Iterable[str],
    ) -> None:
        for name, function, takes in (
            ("key", key, ("the request",)),
            ("exempt_when", exempt_when, ("the request",)),
            ("on_refused", on_refused, ("the request", "the decision")),
        ):
            if function is not None:
                check_function(name, function, takes)
        if on_no_key not in NO_KEY_POLICIES:
            raise ConfigurationError(
                f"on_no_key is {on_no_key!r}; accepted are {', '.join(map(repr, NO_KEY_POLICIES))}"
            )
        if callable(cost):
            check_function("cost", cost, ("the request",))
        else:
            _check_cost(limiter, cost)
        for limit in limiter.limits:
            if limit.algorithm == "concurrency":
                raise ConfigurationError(
                    f"the limit {limit} counts what is in flight; accepted are limits on a rate "
                    "(hold a Limiter.slot() in the route for this one)"
                )
        self.limiter = limiter
        self.on_refused = on_refused
        self._address = address
        self._key = key
        self._cost = cost
        self._exempt_when = exempt_when
        self._on_no_key = on_no_key
        self._encode = Fields(limiter.limits, headers).encode
        self._now_ns = limiter._now_ns
        # Where a hit cannot wait for anything, a coroutine round it is only cost.
        self._is_local = limiter._loops is None
        self._problems = Problems(limiter.limits)
        self._quiet_until: dict[str, float] = {}

    async def judge(self, request: Any, *, blocking: bool = False) -> Verdict | None:
        """Charges the request; None where it is none of the limiter's business.

        With `blocking` it never suspends, see finished(), and awaitables are not accepted.
        """
        if self._exempt_when is not None and await self._is_exempt(request, blocking):
            return None
        if self._key is None:
            key: Key | None = self._address(request)
            if not key:
                key = self._without_key(request, "the client has no address")
        else:
            key = await self._key_of(request, blocking)
        if key is None:
            if self._on_no_key == "open":
                return None
            refusal = self.limiter.peek(_STAND_IN, _NEVER)
            return Verdict(self, refusal, self._now_ns(), _STAND_IN, _NEVER)
        cost = self._cost
        if not isinstance(cost, int):
            cost = await self._cost_of(request, blocking)
        # Read before the decision's own reading of the clock, so that the end of a window
        # that is aligned to whole seconds does not round up to the second after it.
        now_ns = self._now_ns()
        if blocking or self._is_local:
            return Verdict(self, self.limiter.hit(key, cost), now_ns, key, cost)
        return Verdict(self, await self.limiter.hit_async(key, cost), now_ns, key, cost)

    def complain(self, problem: str, *details: object, exc: BaseException | None = None) -> None:
        """Logs a fault of the service's own code, at most one of a kind in ten seconds.

        `problem` is a format for `details`, and one of few: they are remembered.
        """
        now = time.monotonic()
        if now < self._quiet_until.get(problem, 0.0):
            return
        self._quiet_until[problem] = now + _QUIET_SECONDS
        log.error(f"rate limiting: {problem}", *details, exc_info=exc)

    async def _is_exempt(self, request: Any, blocking: bool) -> bool:
        assert self._exempt_when is not None
        try:
            return bool(await ready(self._exempt_when(request), blocking))
        except Exception as exc:
            self.complain("exempt_when raised; the request is not exempt", exc=exc)
            return False

    async def _key_of(self, request: Any, blocking: bool) -> Key | None:
        assert self._key is not None
        try:
            key = await ready(self._key(request), blocking)
        except Exception as exc:
            return self._without_key(request, "the key function raised", exc=exc)
        if isinstance(key, (str, bytes)) and key:
            return key
        if key is None or key in ("", b""):
            return self._without_key(request, "the key function gave no key")
        return self._without_key(
            request, "the key function gave a %s, accepted is a str or bytes", type(key).__name__
        )

    def _without_key(
        self,
        request: Any,
        problem: str,
        *details: object,
        exc: BaseException | None = None,
    ) -> str | None:
        """What to charge instead; None where the policy is to charge nobody."""
        address = None
        if self._on_no_key == "open":
            outcome = "the request is let through"
        elif self._on_no_key == "closed":
            outcome = "the request is refused"
        else:
            address = self._address(request)
            outcome = "the client's address is charged" if address else "all such share one limit"
        self.complain(f"{problem}; {outcome}", *details, exc=exc)
        return None if self._on_no_key != "address" else _STAND_IN + (address or "")

    async def _cost_of(self, request: Any, blocking: bool) -> int:
        assert callable(self._cost)
        try:
            cost = await ready(self._cost(request), blocking)
        except Exception as exc:
            self.complain("the cost function raised; 1 is charged", exc=exc)
            return 1
        if isinstance(cost, int) and not isinstance(cost, bool) and cost >= 1:
            return cost
        self.complain(
            "the cost function gave %.50r, accepted is an int from 1 up; 1 is charged", cost
        )
        return 1


async def ready(value: Any, blocking: bool) -> Any:
    """`value`, or what it comes to when awaited."""
    if not inspect.isawaitable(value):
        return value
    if blocking:
        if inspect.iscoroutine(value):
            value.close()
        raise ArgumentTypeError("an async function was given for a route that is not async")
    return await value


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that never suspends returns."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine that must not suspend did")


def _check_cost(limiter: Limiter, cost: object) -> None:
    accepted = "accepted is an int from 1 up, or a function of the request that returns one"
    if isinstance(cost, bool) or not isinstance(cost, int):
        raise ArgumentTypeError(f"the cost is {cost!r} of type {type(cost).__name__}; {accepted}")
    if cost < 1:
        raise ConfigurationError(f"the cost is {cost}; {accepted}")
    for limit in limiter.limits:
        if cost > limit.capacity:
            raise ConfigurationError(
                f"the cost is {cost}, which {limit} never lets through; accepted is 1 to "
                f"{limit.capacity}"
            )
