"""What the middleware and the decorator share: from a request to a verdict.

The guard knows no framework. A request is whatever the framework calls one; the functions
that read it are given.
"""

from __future__ import annotations

import inspect
import logging
import math
import random
import time
from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from types import CoroutineType
from typing import Any, Callable, TypeVar, Union

from tidegate import _core
from tidegate._charge import Charge, Key
from tidegate._core import Decision, Limit
from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._functions import check_function
from tidegate._limiter import Limiter
from tidegate._observe import observers
from tidegate._terms import ChosenLimit, Terms

__all__ = [
    "NO_KEY_POLICIES",
    "Charge",
    "Guard",
    "Judgement",
    "Verdict",
    "check_cost",
    "finished",
    "log",
    "ready",
]

T = TypeVar("T")

# A verdict where nothing had to be awaited, else a coroutine of it; None: not to be limited.
Judgement = Union["Verdict", "CoroutineType[Any, Any, Verdict | None]", None]

log = logging.getLogger("tidegate")

NO_KEY_POLICIES = ("address", "open", "closed")

# Before the keys that stand in for one that the key function did not give. A key function
# may well return what a stranger sent, but no header, path or address holds a NUL.
_STAND_IN = "\0"

# No limit lets as much through at once.
_NEVER = 2**62

_NOT_ASKED = object()

# Seconds of jitter.
_MOST_JITTER = 86400.0

# Between two complaints of one kind: a broken key function must not flood the log as well.
_QUIET_SECONDS = 10.0


class Verdict(_core.Verdict):
    """A decision on one request, and what its response is to say."""

    __slots__ = ()

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What was charged, where it passed."""
        charges: Any = self._charges
        if not isinstance(charges, tuple):
            # Of most verdicts nobody asks, and so they are made of a key alone.
            charges = self._charges = (self.guard._plain(charges),)
        result: tuple[Charge, ...] = charges
        return result

    def problem(self) -> bytes:
        """The body of a refusal."""
        return self._terms.problems.encode(self.decision, self.wait)

    async def undo(self, blocking: bool = False) -> None:
        """Gives back what was charged."""
        for charge in self.charges:
            await charge.undo(blocking)

    async def settle(self, request: Any, response: Any, blocking: bool) -> None:
        """Charges what the response says that the request has cost."""
        for charge in self.charges:
            if charge.guard.cost_after is not None:
                await charge.guard._settle(charge, request, response, blocking)


class Guard(_core.Judge):
    """Judges requests by one limiter, or by the one that a function of them chooses.

    `address` reads the client's address from a request, None where it has none. `key`,
    `cost`, `cost_after` and `exempt_when` may be functions of the request that return their
    value or an awaitable of it. Nothing that they raise or return wrongly gets out of
    judge(): it is logged, and the request is judged by the policy `on_no_key`, by a cost of
    1, or as not exempt; without a limit it passes. `methods` are those of requests that
    are judged at all, all where it is None. Raises ConfigurationError at construction for
    what is not accepted. Thread-safe.
    """

    def __init__(
        self,
        limit: Limiter | ChosenLimit,
        *,
        address: Callable[[Any], str | None],
        key: Callable[[Any], Any] | None = None,
        cost: int | Callable[[Any], Any] = 1,
        cost_after: Callable[[Any, Any], Any] | None = None,
        exempt_when: Callable[[Any], Any] | None = None,
        methods: frozenset[str] | None = None,
        on_no_key: str = "address",
        on_refused: Callable[..., Any] | None = None,
        headers: Iterable[str],
        retry_jitter: float | Callable[[float], Any] = 0.0,
    ) -> None:
        _check_jitter(retry_jitter)
        self._retry_jitter = retry_jitter
        for name, function, takes in (
            ("key", key, ("the request",)),
            ("cost_after", cost_after, ("the request", "the response")),
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
            check_cost(limit.limits if isinstance(limit, Limiter) else (), cost)
        self.headers = headers = list(headers) if isinstance(headers, Iterator) else headers
        self.limiter = limit if isinstance(limit, Limiter) else None
        self.chosen = limit if isinstance(limit, ChosenLimit) else None
        terms = Terms([limit], headers) if isinstance(limit, Limiter) else None
        self._terms: Any = terms
        self.on_refused = on_refused
        self.cost_after = cost_after
        self._address = address
        self._key = key
        self.cost = cost
        self._exempt_when = exempt_when
        self._methods = methods
        self._on_no_key = on_no_key
        # What has nothing to ask but a key.
        self._is_plain = False
        if (
            terms is not None
            and isinstance(cost, int)
            and methods is None
            and exempt_when is None
            and cost_after is None
            # Of a Limiter that asks in another way, that way is taken.
            and type(terms.limiter).hit_async is Limiter.hit_async
        ):
            self._is_plain = True
            if terms.limiter._loops is None:
                self._judge_by(Verdict, terms, terms.limiter, cost, observers, key is None)
        self._quiet_until: dict[str, float] = {}

    def _judge_otherwise(self, request: Any, blocking: bool, key: Any = _NOT_ASKED) -> Judgement:
        """What judge() does of which more is to be asked than a key and what never waits."""
        if self._is_plain and not observers.times:
            if key is _NOT_ASKED:
                key = self._asked_key(request)
            if type(key) is str:
                limiter = self._terms.limiter
                # A server's decision is by the server's clock.
                decided_ns = limiter._now_ns()
                if blocking:
                    decision = limiter.hit(key, self.cost)
                else:
                    loops = limiter._loops
                    decision = loops.begin(limiter, loops.HIT, key, self.cost)
                    if type(decision) is not Decision:
                        later: Any = self._judged(request, key, decision, decided_ns)
                        waiting: Judgement = later
                        return waiting
                return self._verdict(request, key, decision, decided_ns)
        later = self._judge(request, blocking, key)
        judgement: Judgement = finished(later) if blocking else later
        return judgement

    async def _judged(
        self, request: Any, key: str, answer: Awaitable[Decision], decided_ns: int
    ) -> Verdict:
        return self._verdict(request, key, await answer, decided_ns)

    def _verdict(
        self, request: Any, key: str, decision: Decision, decided_ns: int | None
    ) -> Verdict:
        if decision.allowed:
            return Verdict(self, self._terms, decision, decided_ns, key)
        return self._refused(request, self._plain(key), decision, decided_ns)

    async def _judge(self, request: Any, blocking: bool, key: Any) -> Verdict | None:
        charge = await self.charge(request, blocking, key)
        if charge is None:
            return None
        if charge.key is None:
            return self.refusal(request, charge)
        terms = charge.terms
        # Before the decision, for charge.remember() must not take it for a later one.
        decided_ns = terms.limiter._now_ns()
        began = time.perf_counter() if observers.times else None
        if blocking:
            decision = terms.limiter.hit(charge.key, charge.cost)
        else:
            decision = await terms.limiter.hit_async(charge.key, charge.cost)
        if began is not None:
            observers.tell_time(self, terms.limiter, time.perf_counter() - began)
        if not decision.allowed:
            return self._refused(request, charge, decision, decided_ns)
        if self.cost_after is not None:
            await charge.remember(decided_ns, decision, blocking, is_alone=True)
        return Verdict(self, terms, decision, decided_ns, (charge,))

    def _plain(self, key: Key) -> Charge:
        """What is charged for a request of which nothing but its key is asked."""
        assert isinstance(self.cost, int)
        return Charge(self, self._terms, key, self.cost)

    def _refused(
        self, request: Any, charge: Charge, decision: Decision, decided_ns: int | None
    ) -> Verdict:
        if observers.refusals:
            observers.tell(request, charge, decision)
        return Verdict(self, charge.terms, decision, decided_ns, ())

    async def charge(self, request: Any, blocking: bool, key: Any = _NOT_ASKED) -> Charge | None:
        """What is to be charged for the request; None where nothing is.

        `key` is what _asked_key() gave, where that was called already.
        """
        # A WebSocket is a GET that has no name for it.
        if self._methods is not None and getattr(request, "method", "GET") not in self._methods:
            return None
        if self._exempt_when is not None and await self._is_exempt(request, blocking):
            return None
        terms = self._terms or await self._terms_of(request, blocking)
        if terms is None:
            return None
        if key is _NOT_ASKED:
            key = self._asked_key(request)
        if inspect.isawaitable(key):
            key = await self._awaited_key(request, key, blocking)
        if key is None and self._on_no_key == "open":
            return None
        cost = self.cost
        if not isinstance(cost, int):
            cost = await self._cost_of(request, blocking)
        return Charge(self, terms, key, cost)

    def refusal(self, request: Any, charge: Charge) -> Verdict:
        """The verdict on a request that is refused for having no key."""
        terms = charge.terms
        decision = terms.refuser.peek(_STAND_IN, _NEVER)
        if observers.refusals:
            observers.tell(request, charge, decision)
        return Verdict(self, terms, decision, None, ())

    def extra_wait(self, refusal: Decision) -> float:
        """Seconds that a refused client is asked to wait beyond what it must."""
        jitter = self._retry_jitter
        if not callable(jitter):
            return jitter * random.random() if jitter else 0.0
        if refusal.retry_after == math.inf:
            return 0.0
        try:
            extra = float(jitter(refusal.retry_after))
        except Exception as exc:
            self.complain("retry_jitter raised; none is added", exc=exc)
            return 0.0
        if 0.0 <= extra <= _MOST_JITTER:
            return extra
        self.complain("retry_jitter gave %r, accepted are 0 to 86400 s; none is added", extra)
        return 0.0

    def complain(self, problem: str, *details: object, exc: BaseException | None = None) -> None:
        """Logs a fault of the service's own code, at most one of a kind in ten seconds.

        `problem` is a format for `details`, and one of few: they are remembered.
        """
        now = time.monotonic()
        if now < self._quiet_until.get(problem, 0.0):
            return
        self._quiet_until[problem] = now + _QUIET_SECONDS
        log.error(f"rate limiting: {problem}", *details, exc_info=exc)

    async def _terms_of(self, request: Any, blocking: bool) -> Terms | None:
        assert self.chosen is not None
        try:
            limit = await ready(self.chosen.ask(request), blocking)
            return None if limit is None else self.chosen.terms(limit)
        except Exception as exc:
            self.complain("the limit's function failed; the request passes", exc=exc)
            return None

    async def _is_exempt(self, request: Any, blocking: bool) -> bool:
        assert self._exempt_when is not None
        try:
            return bool(await ready(self._exempt_when(request), blocking))
        except Exception as exc:
            self.complain("exempt_when raised; the request is not exempt", exc=exc)
            return False

    def _asked_key(self, request: Any) -> Key | Awaitable[Any] | None:
        """The key of the request, None where the policy is to charge nobody; or what the key
        function gave to be awaited."""
        if self._key is None:
            return self._address(request) or self._without_key(request, "the client has no address")
        try:
            key = self._key(request)
        except Exception as exc:
            return self._without_key(request, "the key function raised", exc=exc)
        if (type(key) is str and key) or inspect.isawaitable(key):
            return key
        return self._checked_key(request, key)

    async def _awaited_key(
        self, request: Any, awaitable: Awaitable[Any], blocking: bool
    ) -> Key | None:
        try:
            key = await ready(awaitable, blocking)
        except Exception as exc:
            return self._without_key(request, "the key function raised", exc=exc)
        return self._checked_key(request, key)

    def _checked_key(self, request: Any, key: Any) -> Key | None:
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
        assert callable(self.cost)
        try:
            cost = await ready(self.cost(request), blocking)
        except Exception as exc:
            self.complain("the cost function raised; 1 is charged", exc=exc)
            return 1
        if isinstance(cost, int) and not isinstance(cost, bool) and cost >= 1:
            return cost
        self.complain(
            "the cost function gave %.50r, accepted is an int from 1 up; 1 is charged", cost
        )
        return 1

    async def _settle(self, charge: Charge, request: Any, response: Any, blocking: bool) -> None:
        assert self.cost_after is not None
        try:
            cost = await ready(self.cost_after(request, response), blocking)
        except Exception as exc:
            self.complain("cost_after raised; what was charged stays", exc=exc)
            return
        if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
            self.complain(
                "cost_after gave %.50r, accepted is an int from 0 up; what was charged stays", cost
            )
            return
        if cost < charge.cost:
            await charge.give_back(charge.cost - cost, blocking)
        elif cost > charge.cost:
            await charge.charge_more(cost - charge.cost, blocking)


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


def _check_jitter(jitter: object) -> None:
    """Raises ConfigurationError for what is no retry_jitter."""
    accepted = "accepted are 0 to 86400 seconds, or a function of the wait that returns them"
    if callable(jitter):
        return
    if isinstance(jitter, bool) or not isinstance(jitter, (int, float)):
        raise ArgumentTypeError(
            f"retry_jitter is {jitter!r} of type {type(jitter).__name__}; {accepted}"
        )
    if not 0 <= jitter <= _MOST_JITTER:
        raise ConfigurationError(f"retry_jitter is {jitter!r}; {accepted}")


def check_cost(limits: Iterable[Limit], cost: object) -> None:
    """Raises ConfigurationError for a cost that is none, or that `limits` never let through."""
    accepted = "accepted is an int from 1 up, or a function of the request that returns one"
    if isinstance(cost, bool) or not isinstance(cost, int):
        raise ArgumentTypeError(f"the cost is {cost!r} of type {type(cost).__name__}; {accepted}")
    if cost < 1:
        raise ConfigurationError(f"the cost is {cost}; {accepted}")
    for limit in limits:
        if cost > limit.capacity:
            raise ConfigurationError(
                f"the cost is {cost}, which {limit} never lets through; accepted is 1 to "
                f"{limit.capacity}"
            )
