"""Sends the field that names the rules in shadow which would have refused a request."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate._core import policy_member
from tidegate.web.request_limiter import RequestDecision

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.web.headers import FieldList

__all__ = ["FIELD", "ShadowDecision", "refused_in_shadow"]

FIELD = "X-RateLimit-Shadow"
_RAW_FIELD = FIELD.lower().encode()


def refused_in_shadow(decision: Decision) -> list[Decision]:
    """Returns the outcomes that would have refused, of rules that responses may name."""
    hidden: frozenset[str] = getattr(decision._owner, "hidden", frozenset())
    return [
        outcome
        for outcome in decision.outcomes
        if not outcome.allowed and outcome._limit.shadow and outcome.rule not in hidden
    ]


class ShadowDecision(RequestDecision):
    """A decision on a request that rules in shadow would have refused; its response names them.

    The value of the field is a list of RFC 9651 with the members of RateLimit-Policy, and `t`, the
    seconds after which the rule would let the same request pass.
    """

    __slots__ = ()

    @property
    def shadow_field(self) -> tuple[bytes, bytes]:
        """Returns the field as ASGI requires it."""
        return _RAW_FIELD, b", ".join(map(_member, refused_in_shadow(self.decision)))

    def fields(self) -> FieldList:
        return [*super().fields(), self.shadow_field]

    def merged(self, headers: Iterable[tuple[bytes, bytes]], /) -> FieldList:
        return [*super().merged(headers), self.shadow_field]

    def put(self, headers: list[tuple[bytes, bytes]], /) -> None:
        super().put(headers)
        headers[:] = [*(each for each in headers if each[0] != _RAW_FIELD), self.shadow_field]

    def text_fields(self) -> list[tuple[str, str]]:
        return [*super().text_fields(), self._text_field()]

    def merged_text(self, headers: Iterable[tuple[str, str]], /) -> list[tuple[str, str]]:
        return [*super().merged_text(headers), self._text_field()]

    def sending(self, send: Any) -> Any:
        """Returns a `send` of ASGI that adds the field to the message with headers."""

        async def send_with_field(message: Any) -> None:
            if message["type"] in _STARTS:
                message = {
                    **message,
                    "headers": [*message.get("headers", ()), self.shadow_field],
                }
            await send(message)

        return send_with_field

    def _text_field(self) -> tuple[str, str]:
        return FIELD, self.shadow_field[1].decode("ascii")


_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


def _member(outcome: Decision) -> bytes:
    member = policy_member(outcome._limit)
    wait = outcome.retry_after
    return member if wait == math.inf else member + b";t=%d" % math.ceil(wait)
