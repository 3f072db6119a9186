"""Functions of the service that change decisions and responses, and the log of their failures."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Callable

from tidegate.limiter.checks import check_number
from tidegate.limiter.errors import ConfigurationError
from tidegate.web.callables import check_function, refuse_misuse

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.web.execution import Execution

__all__ = ["HeldLogs", "Hooks", "log"]

log = logging.getLogger("tidegate")

_MOST_JITTER_SECONDS = 86400.0

# Seconds between two log lines of one kind: a broken key function must not flood the log.
_QUIET_SECONDS = 10.0


_held: ContextVar[list[Callable[[], None]] | None] = ContextVar("tidegate_held_logs", default=None)


class HeldLogs:
    """Holds back what failures of functions log in a block, until its end: it may be dropped."""

    def __enter__(self) -> HeldLogs:
        self._lines: list[Callable[[], None]] = []
        self._token = _held.set(self._lines)
        return self

    def drop(self) -> None:
        self._lines.clear()

    def __exit__(self, *exc_info: object) -> None:
        _held.reset(self._token)
        for line in self._lines:
            line()


class Hooks:
    """The functions of a service, most of which are called once a request is decided.

    `cost_after` computes the actual cost from the response, `on_refused` replaces the usual
    refusal, `retry_jitter` is added to the wait of a refused client. Raises ConfigurationError for
    invalid values. Thread-safe.
    """

    def __init__(
        self,
        *,
        cost_after: Callable[[Any, Any], Any] | None = None,
        on_refused: Callable[..., Any] | None = None,
        retry_jitter: float | Callable[[float], Any] = 0.0,
    ) -> None:
        for name, function, takes in (
            ("cost_after", cost_after, ("the request", "the response")),
            ("on_refused", on_refused, ("the request", "the decision")),
        ):
            if function is not None:
                check_function(name, function, takes)
        _check_jitter(retry_jitter)
        self.cost_after = cost_after
        self.on_refused = on_refused
        self._retry_jitter = retry_jitter
        self.adds_wait = bool(retry_jitter)
        self._quiet_until: dict[str, float] = {}

    def call_exempt(self, function: Callable[[Any], Any], request: Any) -> Any:
        """Returns what the service's `function` returns; False if the function fails."""
        try:
            return function(request)
        except Exception as exc:
            return self.not_exempt(request, exc)

    async def is_exempt(self, request: Any, found: Any, execution: Execution) -> bool:
        """Returns the result of exempt_when, whose call returned `found`; False if it fails."""
        try:
            return bool(await execution.resolve(found))
        except Exception as exc:
            return self.not_exempt(request, exc)

    def not_exempt(self, request: Any, exc: Exception) -> bool:
        """Logs that exempt_when failed, and returns False. See refuse_misuse()."""
        refuse_misuse("exempt_when", request, exc)
        self.log_throttled("exempt_when raised; the request is not exempt", exc=exc)
        return False

    def cost_of(
        self, function: Callable[[Any], Any], request: Any, execution: Execution
    ) -> int | Coroutine[Any, Any, int]:
        """Returns the cost that the service's `function` computes; 1 if the function fails.

        The result is a coroutine of it unless the function returned a valid int, as most do.
        """
        try:
            cost = function(request)
        except Exception as exc:
            return self._usual_cost(request, exc)
        return cost if type(cost) is int and cost >= 1 else self._cost_of(request, cost, execution)

    def _usual_cost(self, request: Any, exc: Exception) -> int:
        refuse_misuse("cost", request, exc)
        self.log_throttled("the cost function raised; 1 is charged", exc=exc)
        return 1

    async def _cost_of(self, request: Any, cost: Any, execution: Execution) -> int:
        try:
            cost = await execution.resolve(cost)
        except Exception as exc:
            return self._usual_cost(request, exc)
        if isinstance(cost, int) and not isinstance(cost, bool) and cost >= 1:
            return cost
        self.log_throttled(
            "the cost function returned %.50r; expected an int from 1 up; 1 is charged", cost
        )
        return 1

    async def actual_cost(
        self, request: Any, response: Any, execution: Execution, *, takes_usage: bool = False
    ) -> Any:
        """Returns what cost_after returns for the response: an int from 0 up, or with `takes_usage`
        a mapping of fields too; None if it fails."""
        assert self.cost_after is not None
        try:
            cost = await execution.resolve(self.cost_after(request, response))
        except Exception as exc:
            self.log_throttled("cost_after raised; the charge stays", exc=exc)
            return None
        is_cost = isinstance(cost, int) and not isinstance(cost, bool) and cost >= 0
        if is_cost or (takes_usage and isinstance(cost, Mapping)):
            return cost
        expected = "an int from 0 up, or a usage" if takes_usage else "an int from 0 up"
        self.log_throttled(
            f"cost_after returned %.50r; expected {expected}; the charge stays", cost
        )
        return None

    def extra_wait(self, refusal: Decision) -> float:
        """Returns the seconds that a refused client is asked to wait beyond its limit's wait."""
        jitter = self._retry_jitter
        if not callable(jitter):
            return jitter * random.random() if jitter else 0.0
        if refusal.retry_after == math.inf:
            return 0.0
        try:
            extra = float(jitter(refusal.retry_after))
        except Exception as exc:
            self.log_throttled("retry_jitter raised; none is added", exc=exc)
            return 0.0
        if 0.0 <= extra <= _MOST_JITTER_SECONDS:
            return extra
        self.log_throttled("retry_jitter returned %r; expected 0 to 86400 s; none is added", extra)
        return 0.0

    def log_throttled(
        self,
        problem: str,
        *details: object,
        exc: BaseException | None = None,
        is_expected: bool = False,
        is_doubtful: bool = False,
    ) -> None:
        """Logs a failure of the service's own code, at most one of a kind in ten seconds.

        What is expected to happen is logged once, at INFO; what may be meant once, at WARNING.

        `problem` is a format string for `details` and identifies the kind; it must be a
        constant, since each kind is remembered.
        """
        held = _held.get()
        if held is not None:
            held.append(
                lambda: self.log_throttled(
                    problem, *details, exc=exc, is_expected=is_expected, is_doubtful=is_doubtful
                )
            )
            return
        now = time.monotonic()
        if now < self._quiet_until.get(problem, 0.0):
            return
        is_once = is_expected or is_doubtful
        self._quiet_until[problem] = math.inf if is_once else now + _QUIET_SECONDS
        level = logging.INFO if is_expected else logging.WARNING if is_doubtful else logging.ERROR
        log.log(level, f"rate limiting: {problem}", *details, exc_info=exc)


def _check_jitter(jitter: object) -> None:
    """Raises ConfigurationError for an invalid retry_jitter."""
    accepted = "0 to 86400 seconds, or a function of the wait that returns them"
    if callable(jitter):
        return
    if not 0 <= check_number("retry_jitter", jitter, accepted) <= _MOST_JITTER_SECONDS:
        raise ConfigurationError(f"retry_jitter is {jitter!r}; expected {accepted}")
