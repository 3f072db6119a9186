"""Decides on requests by limits, for all middleware, decorators and dependencies.

A RequestLimiter does not depend on a framework. A request is an object of the framework; the
functions that read it are arguments.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Awaitable, Coroutine, Iterable
from types import CoroutineType
from typing import Any, Callable, Protocol, Union, overload
from uuid import UUID

from tidegate import _core
from tidegate._core import Decision, Limit
from tidegate.keys import peer
from tidegate.limiter.checks import check_int, check_number
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.waiting.turn import Turn
from tidegate.web.active_limits import ActiveLimits, refuse_places
from tidegate.web.callables import check_function, check_result, refuse_misuse, wrong_result
from tidegate.web.charge import Charge, Key
from tidegate.web.dynamic_limit import DynamicLimit
from tidegate.web.execution import AWAITING, Awaiting, Blocking, Execution
from tidegate.web.headers import check_families
from tidegate.web.hooks import Hooks
from tidegate.web.observers import observers
from tidegate.web.refusal import service_answer
from tidegate.web.switch import switch

__all__ = [
    "NOT_READY",
    "NO_KEY_POLICIES",
    "Checked",
    "Checks",
    "RequestDecision",
    "RequestLimiter",
    "check_cost",
    "check_wait",
]

# A decision if nothing had to be awaited, else a coroutine of it; None: not limited.
Checked = Union["RequestDecision", "CoroutineType[Any, Any, RequestDecision | None]", None]

NO_KEY_POLICIES = ("address", "open", "closed")

# The prefix of keys that replace a missing one. A key function may return text from a stranger,
# but no header, path or address contains a NUL.
_STAND_IN = "\0"

# No limit lets through as much as this at once.
_NEVER = 2**62

_NOT_ASKED: Any = object()

NOT_READY: Any = object()
"""The result of check_when() for a request that is not decided yet."""


class RequestDecision(_core.RequestDecision):
    """A decision on one request, and the content of its response."""

    __slots__ = ()

    limiter: RequestLimiter
    limits: ActiveLimits

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The charges, if the request passed."""
        charges: Any = self._charges
        if not isinstance(charges, tuple):
            # Most requests never need them, so only the key is kept at first.
            charge = self.limiter._charge_of(charges, self._cost, self.decision)
            charges = self._charges = (charge,)
        result: tuple[Charge, ...] = charges
        return result

    def problem(self) -> bytes:
        """Returns the body of a refusal."""
        return self.limits.problems.encode(self.decision, self.wait)

    async def service_answer(
        self,
        request: Any,
        execution: Execution,
        *,
        accepts: Callable[[Any], bool],
        expected: str,
        convert: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Returns the service's own answer to a refusal, or USUAL; see refusal.service_answer()."""
        hooks = self.limiter.hooks
        return await service_answer(
            hooks,
            hooks.on_refused,
            request,
            self.decision,
            execution,
            accepts=accepts,
            expected=expected,
            convert=convert,
        )

    def hold(self) -> None:
        """Keeps the places that the request has taken of concurrency limits until leave(), and
        what its cost is settled by."""
        if self.limits.lease_ns or self.limiter.hooks.cost_after is not None:
            for charge in self.charges:
                charge.hold()

    async def leave(self, execution: Execution) -> None:
        """Gives the places back that hold() keeps, once; the response has ended."""
        if self.limits.lease_ns:
            for charge in self.charges:
                await charge.leave(execution)

    async def undo(self, execution: Execution) -> None:
        """Gives back what was charged."""
        for charge in self.charges:
            await charge.undo(execution)

    async def standing(self, execution: Execution) -> RequestDecision:
        """Returns a decision with the present state of the limits, after charges and refunds."""
        if not self.charges:  # the decision is a refusal, or its charges were given back before
            return self
        standings = [await charge.standing(execution) for charge in self.charges]
        binding = min(standings, key=lambda standing: standing.remaining)
        if self.limits.shows_all:
            binding = binding._among(standings)
        now_ns = self.limits.limiter._now_ns()
        return self.limiter.decide(self.limits, binding, now_ns, ())

    async def settle(self, request: Any, response: Any, execution: Execution) -> RequestDecision:
        """Corrects the charge to the actual cost, once the response is known.

        Returns a decision that shows the corrected state.
        """
        charges = self.charges
        found = [await charge.settle(request, response, execution) for charge in charges]
        if all(each is None for each in found):
            return self
        # The limit that binds may be another one now.
        standings = [
            await charge.standing(execution) if each is None else each
            for charge, each in zip(charges, found)
        ]
        binding = min(standings, key=lambda standing: standing.remaining)
        if self.limits.shows_all:
            binding = binding._among(standings)
        now_ns = self.limits.limiter._now_ns()
        return self.limiter.decide(self.limits, binding, now_ns, charges)


# Bound once, since it is called for many requests.
_decision = RequestDecision._make


class Checks(Protocol):
    """The interface for deciding on requests, by one limiter or several combined."""

    @overload
    def check(self, request: Any, execution: Blocking) -> RequestDecision | None: ...
    @overload
    def check(self, request: Any, execution: Awaiting = ...) -> Checked: ...
    @property
    def asks_functions(self) -> bool: ...
    def check_when(
        self, request: Any, execution: Execution, is_ready: Callable[[], bool]
    ) -> Any: ...


class RequestLimiter:
    """Decides on requests by one limiter, or by the one that a function of them chooses.

    `address` reads the client's address from a request, None if it has none. `key`,
    `cost`, `cost_after` and `exempt_when` may be functions of the request that return their
    value or an awaitable of it. Their exceptions and invalid results never leave check(), but for
    the ArgumentTypeError of a key of another type: they are logged, and the request is decided by
    the policy `on_no_key`, with a cost of 1, or as not exempt. If a limit function fails, the
    policy of its DynamicLimit applies. `methods` are the methods of requests that are charged, None
    for all. A request waits up to `wait` seconds for its turn before it is refused. No request is
    charged if `enabled` is false, or the switch of the process is off.
    Raises ConfigurationError at construction for invalid arguments. Thread-safe.
    """

    def __init__(
        self,
        limit: Limiter | DynamicLimit,
        *,
        address: Callable[[Any], str | None] = peer,
        key: Callable[[Any], Any] | None = None,
        cost: int | Callable[[Any], Any] = 1,
        cost_after: Callable[[Any, Any], Any] | None = None,
        exempt_when: Callable[[Any], Any] | None = None,
        methods: frozenset[str] | None = None,
        enabled: bool = True,
        on_no_key: str = "address",
        on_refused: Callable[..., Any] | None = None,
        headers: Iterable[str],
        retry_jitter: float | Callable[[float], Any] = 0.0,
        wait: float | None = None,
    ) -> None:
        self.wait = check_wait(wait)
        self.hooks = Hooks(cost_after=cost_after, on_refused=on_refused, retry_jitter=retry_jitter)
        for name, function in (("key", key), ("exempt_when", exempt_when)):
            if function is not None:
                check_function(name, function, ("the request",))
        check_result("key", key)
        if not isinstance(enabled, bool):
            raise ArgumentTypeError(f"enabled is {enabled!r}; expected True and False")
        if on_no_key not in NO_KEY_POLICIES:
            raise ConfigurationError(
                f"on_no_key is {on_no_key!r}; expected {', '.join(map(repr, NO_KEY_POLICIES))}"
            )
        if callable(cost):
            check_function("cost", cost, ("the request",))
        else:
            check_cost(limit.limits if isinstance(limit, Limiter) else (), cost)
        self.headers = headers = check_families(headers)
        self.limiter = limit if isinstance(limit, Limiter) else None
        self.dynamic_limit = limit if isinstance(limit, DynamicLimit) else None
        limits = ActiveLimits([limit], headers) if isinstance(limit, Limiter) else None
        if cost_after is not None and isinstance(limit, Limiter):
            refuse_places(limit.limits, "a limit with cost_after")
        self._limits: Any = limits
        self._address = address
        self._key = key
        self.cost: Any = cost
        self._exempt_when = exempt_when
        self._methods = methods
        self._enabled = enabled
        self._on_no_key = on_no_key
        # Whether a charge needs nothing of a request but what check() asks.
        self._is_plain = (
            limits is not None
            and methods is None
            and enabled
            and cost_after is None
            and not self.wait
            and not limits.shows_all
        )
        # Charges a key where a plain charge never waits, by one call of the core.
        self._charge_at_once: Any = None
        if (
            self._is_plain
            and limits is not None
            and limits.limiter._loops is None
            # Subclasses may override either.
            and type(limits.limiter).hit is Limiter.hit
            and type(limits.limiter).hit_async is Limiter.hit_async
        ):
            watching = None if self.hooks.adds_wait else observers
            self._charge_at_once = _core.KeyChecker(
                RequestDecision, limits.limiter, self, watching, limits.fields, limits
            )
        self._core_reads_key = key is None and address is peer and self._charge_at_once is not None
        # Whether the core decides without a function of the service, or once the key is known.
        asks_key_alone = exempt_when is None and type(cost) is int
        self._core_decides = self._core_reads_key and asks_key_alone
        self._key_decides = self._charge_at_once is not None and asks_key_alone

    @overload
    def check(self, request: Any, execution: Blocking) -> RequestDecision | None: ...
    @overload
    def check(self, request: Any, execution: Awaiting = ...) -> Checked: ...
    def check(self, request: Any, execution: Execution = AWAITING) -> Checked:
        """Charges the request; returns None if it is not limited.

        If something must be awaited, the result is a coroutine; never under BLOCKING.
        """
        exempt: Any = _NOT_ASKED
        key: Any = _NOT_ASKED
        cost: Any = _NOT_ASKED
        if self._is_plain and switch.on and not observers.times:
            if self._core_decides:
                found: Checked = self._charge_at_once(request, None, self.cost)
                if found is not None:
                    return found
                key = self._key_of(request)
            elif self._key_decides:
                key = self._key_of(request)
                if type(key) is str:
                    found = self._charge_at_once(request, key, self.cost)
                    if found is not None:
                        return found
                exempt = None  # nobody is asked; the rest must be awaited
            exempt_when = self._exempt_when
            if exempt_when is not None:
                try:
                    exempt = exempt_when(request)
                except Exception as exc:
                    exempt = self.hooks.not_exempt(request, exc)
                if exempt is True:
                    return None
            if exempt is False or exempt is _NOT_ASKED:
                if key is _NOT_ASKED and not self._core_reads_key:
                    key = self._key_of(request)
                if type(key) is str or key is _NOT_ASKED:
                    cost = self.cost
                    if type(cost) is not int:
                        cost = self.hooks.cost_of(cost, request, execution)
                    if type(cost) is int:
                        charge_at_once = self._charge_at_once
                        if charge_at_once is None:
                            charge = self._charge_of(key, cost)
                            begun: Any = self._begin(request, charge, execution)
                            if type(begun) is not RequestDecision:
                                begun = execution.run(begun)
                            started: Checked = begun
                            return started
                        found = None
                        if key is _NOT_ASKED:
                            found = charge_at_once(request, None, cost)
                            if found is None:
                                key = self._key_of(request)
                        if type(key) is str:
                            found = charge_at_once(request, key, cost)
                        if found is not None:
                            return found
        later: Any = execution.run(self._check_later(request, execution, exempt, key, cost))
        waiting: Checked = later
        return waiting

    @property
    def asks_functions(self) -> bool:
        """Whether functions of the service say whether and how a request is charged."""
        return (
            self._key is not None
            or not isinstance(self.cost, int)
            or self._exempt_when is not None
            or self.dynamic_limit is not None
        )

    def check_when(self, request: Any, execution: Execution, is_ready: Callable[[], bool]) -> Any:
        """Does what check() does, always as execution.run() does, if `is_ready` returns true after
        all functions of the service were asked; else charges nothing and returns NOT_READY."""
        return execution.run(self._check_later(request, execution, is_ready=is_ready))

    async def _check_later(
        self,
        request: Any,
        execution: Execution,
        exempt: Any = _NOT_ASKED,
        key: Any = _NOT_ASKED,
        cost: Any = _NOT_ASKED,
        is_ready: Callable[[], bool] | None = None,
    ) -> RequestDecision | None:
        """Does what check() does. The answers of functions that it has asked are arguments."""
        charge = await self.charge(request, execution, exempt, key, cost)
        if is_ready is not None and not is_ready():
            undecided: RequestDecision | None = NOT_READY
            return undecided
        if charge is None:
            return None
        if charge.key is None:
            return self.refuse_without_key(request, charge)
        begun = self._begin(request, charge, execution)
        return begun if isinstance(begun, RequestDecision) else await begun

    def _begin(
        self, request: Any, charge: Charge, execution: Execution
    ) -> RequestDecision | Coroutine[Any, Any, RequestDecision]:
        """Charges the key of a charge. Returns a coroutine if something must be awaited."""
        assert charge.key is not None
        limiter = charge.limits.limiter
        # Then the decision needs the outcome of each limit, as that of a plan has.
        is_plan = len(limiter.limits) > 1 and (
            self.hooks.cost_after is not None or charge.limits.shows_all
        )
        if self.wait:
            return self._wait_for_turn(request, charge, execution, is_plan=is_plan)
        # Read before the decision; a server's decision is by the server's clock.
        decided_ns = limiter._now_ns()
        began = time.perf_counter() if observers.times else None
        started: Any
        if is_plan:
            started = execution.hit_plan(charge.limits.plan, [charge.key], [charge.cost], True)
        else:
            started = execution.start_hit(limiter, charge.key, charge.cost)
        if type(started) is Decision and began is None:
            return self._finish(request, charge, started, decided_ns)
        return self._finish_later(request, charge, started, decided_ns, began)

    async def _wait_for_turn(
        self, request: Any, charge: Charge, execution: Execution, *, is_plan: bool
    ) -> RequestDecision:
        assert charge.key is not None
        limits = charge.limits
        turn: Turn
        if is_plan:
            turn = limits.plan._turn([charge.key], [charge.cost], self.wait)
        else:
            turn = limits.limiter._turn(charge.key, charge.cost, self.wait)
        decision = await execution.take(turn)
        return self._finish(request, charge, decision, turn.charged_ns)

    async def _finish_later(
        self,
        request: Any,
        charge: Charge,
        started: Any,
        decided_ns: int,
        began: float | None,
    ) -> RequestDecision:
        decision = started if type(started) is Decision else await started
        if began is not None:
            observers.notify_time(charge.limits.limiter, time.perf_counter() - began, self.hooks)
        return self._finish(request, charge, decision, decided_ns)

    def _finish(
        self, request: Any, charge: Charge, decision: Decision, decided_ns: int
    ) -> RequestDecision:
        if not decision.allowed:
            return self._refused(request, charge, decision, decided_ns)
        charge.admitted = decision
        if self.hooks.cost_after is not None:
            charge.reserve(decision)
        return self.decide(charge.limits, decision, decided_ns, (charge,))

    def _charge_of(self, key: Key, cost: int, admitted: Decision | None = None) -> Charge:
        """Returns the charge of a request that needs only its key and its cost."""
        return Charge(self.hooks, self._limits, key, cost, admitted)

    def _refuse(self, request: Any, key: Key, cost: int, decision: Decision) -> RequestDecision:
        """Returns the decision on a request that `_charge_at_once` refused, which calls this."""
        return self._refused(request, self._charge_of(key, cost), decision, None)

    def _refused(
        self, request: Any, charge: Charge, decision: Decision, decided_ns: int | None
    ) -> RequestDecision:
        charge.notify_refusal(request, decision)
        return self.decide(charge.limits, decision, decided_ns, ())

    def decide(
        self,
        limits: ActiveLimits,
        decision: Decision,
        decided_ns: int | None,
        charges: tuple[Charge, ...],
    ) -> RequestDecision:
        """Returns a decision of this limiter. `decided_ns`: None stands for the decision's time."""
        extra = 0.0 if decision.allowed else self.hooks.extra_wait(decision)
        return _decision(limits.fields, decision, decided_ns, extra, self, limits, charges)

    def charges(self, method: str) -> bool:
        """Returns whether requests of this method are charged at all."""
        return self._enabled and (self._methods is None or method in self._methods)

    def exempts(self, request: Any, method: str = "") -> bool:
        """Returns whether a request with an exempt method or path passes uncounted, which is always
        so: only rules have lists that block."""
        return True

    async def charge(
        self,
        request: Any,
        execution: Execution,
        exempt: Any = _NOT_ASKED,
        key: Any = _NOT_ASKED,
        cost: Any = _NOT_ASKED,
    ) -> Charge | None:
        """Returns the charge of the request, or None if nothing is charged.

        `exempt`, `key` and `cost` are what the functions returned, if they were called already.
        """
        if not (switch.on and self._enabled):
            return None
        # A WebSocket request is a GET, though its scope has no method.
        if self._methods is not None and getattr(request, "method", "GET") not in self._methods:
            return None
        exempt_when = self._exempt_when
        if exempt_when is not None:
            if exempt is _NOT_ASKED:
                exempt = self.hooks.call_exempt(exempt_when, request)
            if exempt is True or (
                exempt is not False and await self.hooks.is_exempt(request, exempt, execution)
            ):
                return None
        limits = self._limits
        if limits is None:
            assert self.dynamic_limit is not None
            limits = await self.dynamic_limit.limits_of(request, execution, self.hooks)
        if limits is None:
            return None
        if key is _NOT_ASKED:
            key = self._key_of(request)
        if type(key) is not str and inspect.isawaitable(key):
            key = await self._awaited_key(request, key, execution)
        if key is None and self._on_no_key == "open":
            return None
        if cost is _NOT_ASKED:
            cost = self.cost
            if not isinstance(cost, int):
                cost = self.hooks.cost_of(cost, request, execution)
        if not isinstance(cost, int):
            cost = await cost
        return Charge(self.hooks, limits, key, cost)

    def refuse_without_key(self, request: Any, charge: Charge) -> RequestDecision:
        """Returns the decision on a request that is refused because it has no key."""
        decision = charge.limits.offline_limiter.peek(_STAND_IN, _NEVER)
        return self._refused(request, charge, decision, None)

    def _key_of(self, request: Any) -> Key | Awaitable[Any] | None:
        """Returns the key of the request, None if the policy is to charge nobody, or the awaitable
        that the key function returned."""
        if self._key is None:
            return self._address(request) or self._without_key(request, "the client has no address")
        try:
            key = self._key(request)
        except Exception as exc:
            refuse_misuse("key", request, exc)
            return self._without_key(request, "the key function raised", exc=exc)
        if (type(key) is str and key) or inspect.isawaitable(key):
            return key
        return self._checked_key(request, key)

    async def _awaited_key(
        self, request: Any, awaitable: Awaitable[Any], execution: Execution
    ) -> Key | None:
        try:
            key = await execution.resolve(awaitable)
        except Exception as exc:
            refuse_misuse("key", request, exc)
            return self._without_key(request, "the key function raised", exc=exc)
        return self._checked_key(request, key)

    def _checked_key(self, request: Any, key: Any) -> Key | None:
        if isinstance(key, (str, bytes)) and key:
            return key
        if isinstance(key, (int, UUID)) and not isinstance(key, bool):
            return str(key)  # ids of users are often such
        if key is None or key in ("", b""):
            # Visitors without a key are usual where the service chose what becomes of them, and for
            # functions such as keys.api_key().
            is_expected = (
                self._on_no_key != "address"
                or getattr(self._key, "__module__", None) == "tidegate.keys"
            )
            problem = "the key function returned no key"
            return self._without_key(request, problem, is_expected=is_expected)
        # A mistake of every request, and not the lack of a key.
        raise wrong_result("the key function", key)

    def _without_key(
        self,
        request: Any,
        problem: str,
        *details: object,
        exc: BaseException | None = None,
        is_expected: bool = False,
    ) -> str | None:
        """Returns the key to charge instead, or None if the policy is to charge nobody."""
        address = None
        if self._on_no_key == "open":
            outcome = "the request is let through"
        elif self._on_no_key == "closed":
            outcome = "the request is refused"
        else:
            address = self._address(request)
            outcome = (
                "the client's address is charged" if address else "all such clients share one limit"
            )
        text = f"{problem}; {outcome}"
        self.hooks.log_throttled(text, *details, exc=exc, is_expected=is_expected)
        return None if self._on_no_key != "address" else _STAND_IN + (address or "")


def check_wait(wait: object) -> float:
    """Returns the seconds that a request may wait for its turn. Raises ConfigurationError for
    invalid ones."""
    if wait is None:
        return 0.0
    seconds = check_number("wait", wait)
    if not 0 <= seconds < math.inf:
        raise ConfigurationError(f"wait is {wait!r}; expected 0 or more seconds, and a bound")
    return float(seconds)


def check_cost(limits: Iterable[Limit], cost: object) -> None:
    """Raises ConfigurationError for an invalid cost, or one that `limits` never let through."""
    accepted = "an int from 1 up, or a function of the request that returns one"
    units = check_int("the cost", cost, accepted, least=1)
    for limit in limits:
        # A limit of 0 refuses every cost on purpose.
        if units > limit.capacity > 0:
            raise ConfigurationError(
                f"the cost is {cost}, which {limit} never lets through; expected 1 to "
                f"{limit.capacity}"
            )
