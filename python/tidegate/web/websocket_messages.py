"""Limits on the messages of an open WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Callable, Union

from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.web.active_limits import ActiveLimits, refuse_places
from tidegate.web.charge import Charge
from tidegate.web.execution import AWAITING
from tidegate.web.headers import retry_seconds
from tidegate.web.refusal import USUAL, service_answer
from tidegate.web.request_limiter import check_cost

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.limiter.limit import LimitLike
    from tidegate.types import Algorithm
    from tidegate.web.asgi_types import Message, Receive, Scope, Send
    from tidegate.web.hooks import Hooks

__all__ = ["MessageLimit"]

_POLICIES = ("close", "drop")

# Codes of RFC 6455, section 7.4.1: policy violation; message too big, here for any wait.
_POLICY_VIOLATION = 1008
_TOO_BIG = 1009

Reply = Union[str, bytes]


class MessageLimit:
    """Charges each message that a client sends; see `messages` of the ASGI middleware.

    Messages are counted separately from requests, in the store of `limiter`. Raises
    ConfigurationError for invalid arguments. Thread-safe.
    """

    def __init__(
        self,
        limit: LimitLike | Limiter,
        limiter: Limiter,
        *,
        algorithm: Algorithm,
        prefix: str,
        cost: int | Callable[[Reply], Any],
        on_refused: str | Callable[..., Any],
    ) -> None:
        if not callable(on_refused) and on_refused not in _POLICIES:
            raise ConfigurationError(
                f"on_message_refused is {on_refused!r}; expected "
                f"{', '.join(map(repr, _POLICIES))}, or a function of scope and decision"
            )
        if not isinstance(limit, Limiter):
            limit = Limiter(
                limit,
                storage=limiter.storage,
                algorithm=algorithm,
                prefix=f"{prefix}:messages",
                clock=limiter._clock,
            )
        refuse_places(limit.limits, "messages")
        self._limits = ActiveLimits([limit], ())
        if not callable(cost):
            check_cost(limit.limits, cost)
        self.limiter = limit
        self._cost = cost
        self._on_refused = on_refused

    def between(
        self, scope: Scope, key: str | bytes, hooks: Hooks, receive: Receive, send: Send
    ) -> tuple[Receive, Send]:
        """Returns a `receive` that leaves out refused messages, and the `send` of the WebSocket."""
        ended: Message | None = None

        async def receive_charged() -> Message:
            nonlocal ended
            while True:
                if ended is not None:
                    return ended
                message = await receive()
                if message["type"] != "websocket.receive":
                    return message
                charge = Charge(hooks, self._limits, key, await self._cost_of(message, hooks))
                decision = await self.limiter.hit_async(key, charge.cost)
                if decision.allowed:
                    return message
                charge.notify_refusal(scope, decision)
                # A flood in the server's queue must not keep the loop from other tasks.
                await asyncio.sleep(0)
                reply = await self._reply(scope, decision, hooks)
                if isinstance(reply, (str, bytes)):
                    kind = "text" if isinstance(reply, str) else "bytes"
                    await _send_if_open(send, {"type": "websocket.send", kind: reply})
                elif reply is _CLOSE:
                    end = _end(decision)
                    ended = {"type": "websocket.disconnect", **end}
                    await _send_if_open(send, {"type": "websocket.close", **end})

        async def send_while_open(message: Message) -> None:
            if ended is None:
                await send(message)
            elif message["type"] != "websocket.close":
                # Servers raise this if a client has disconnected.
                raise ConnectionError(f"the WebSocket is closed: {ended['reason']}")

        return receive_charged, send_while_open

    async def _cost_of(self, message: Message, hooks: Hooks) -> int:
        if not callable(self._cost):
            return self._cost
        text = message.get("text")
        payload = message.get("bytes") or b"" if text is None else text
        try:
            cost = await AWAITING.resolve(self._cost(payload))
        except Exception as exc:
            hooks.log_throttled("message_cost raised; 1 is charged", exc=exc)
            return 1
        if isinstance(cost, int) and not isinstance(cost, bool) and cost >= 0:
            # An empty message is a message too.
            return max(cost, 1)
        hooks.log_throttled(
            "message_cost returned %.50r; expected an int from 0 up; 1 is charged", cost
        )
        return 1

    async def _reply(self, scope: Scope, decision: Decision, hooks: Hooks) -> Any:
        """Returns the reply to a refused message: a payload, None, or _CLOSE."""
        if not callable(self._on_refused):
            return _CLOSE if self._on_refused == "close" else None
        reply = await service_answer(
            hooks,
            self._on_refused,
            scope,
            decision,
            AWAITING,
            accepts=lambda reply: reply is None or isinstance(reply, (str, bytes)),
            expected="a str or bytes to send, or None",
            name="on_message_refused",
            usual="the WebSocket is closed",
        )
        return _CLOSE if reply is USUAL else reply


# A mark that is neither a payload nor None.
_CLOSE = object()


def _end(decision: Decision) -> dict[str, Any]:
    wait = retry_seconds(decision)
    if wait is None:
        return {"code": _TOO_BIG, "reason": "message above the rate limit"}
    return {"code": _POLICY_VIOLATION, "reason": f"rate limit exceeded, try again in {wait} s"}


async def _send_if_open(send: Send, message: Message) -> None:
    # If the client has disconnected meanwhile, the next message received says so.
    with contextlib.suppress(Exception):
        await send(message)
