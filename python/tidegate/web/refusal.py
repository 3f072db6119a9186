"""The answer to a refused request: the service's own if it has one, else the usual body."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.web.execution import Execution
    from tidegate.web.hooks import Hooks

__all__ = [
    "PLAIN",
    "USUAL",
    "is_application_or_plain",
    "plain_body",
    "service_answer",
    "with_plain_body",
]

USUAL: Any = object()
"""Stands for the usual answer, if the service has no other."""

PLAIN = (str, bytes, dict, list)
"""The types of answers that every adapter sends as the body of a 429."""


def plain_body(answer: str | bytes | dict[Any, Any] | list[Any]) -> tuple[bytes, str]:
    """Returns the body of a plain answer and its content type; raises if it cannot be encoded."""
    if isinstance(answer, bytes):
        return answer, "application/octet-stream"
    if isinstance(answer, str):
        return answer.encode(), "text/plain; charset=utf-8"
    return json.dumps(answer, allow_nan=False).encode(), "application/json"


def is_application_or_plain(answer: Any) -> bool:
    """Returns whether middleware of ASGI or WSGI can answer with it."""
    return isinstance(answer, PLAIN) or (callable(answer) and not isinstance(answer, type))


def with_plain_body(answer: Any) -> Any:
    """Returns the plain_body() of a plain answer, and an application as it is."""
    return plain_body(answer) if isinstance(answer, PLAIN) else answer


async def service_answer(
    hooks: Hooks,
    function: Callable[..., Any] | None,
    request: Any,
    decision: Decision,
    execution: Execution,
    *,
    accepts: Callable[[Any], bool],
    expected: str,
    convert: Callable[[Any], Any] | None = None,
    name: str = "on_refused",
    usual: str = "the usual body is sent",
) -> Any:
    """Returns the answer of `function`, the service's option `name`, to a refusal, or USUAL.

    The result is USUAL if there is no function, or if the function raises or returns a value that
    `accepts` rejects. Such failures are logged: `expected` describes accepted values, `usual` the
    usual answer. An exception of HTTP that it raises is taken as if it were returned. `convert`
    makes the result of an accepted answer other than an exception; if it raises, that is a failure
    too.
    """
    if function is None:
        return USUAL
    try:
        answer = await execution.resolve(function(request, decision))
    except Exception as exc:
        # As frameworks let views do: abort(429), raise HTTPException(429).
        if _is_http(exc) and accepts(exc):
            return exc
        hooks.log_throttled(f"{name} raised; {usual}", exc=exc)
        return USUAL
    if not accepts(answer):
        hooks.log_throttled(
            f"{name} returned a %s; expected {expected}; {usual}", type(answer).__name__
        )
        return USUAL
    status = getattr(answer, "status_code", None)
    if isinstance(status, int) and 200 <= status < 300:
        hooks.log_throttled(
            f"{name} returned a response of status %d, which clients take for a success; expected "
            "one with 429, or a dict, list or text, which is sent with it",
            status,
            is_doubtful=True,
        )
    if convert is None or isinstance(answer, Exception):
        return answer
    try:
        return convert(answer)
    except Exception as exc:
        hooks.log_throttled(
            f"{name} returned a %s that cannot be sent; {usual}", type(answer).__name__, exc=exc
        )
        return USUAL


def _is_http(exc: Exception) -> bool:
    """Whether an exception is an answer: of Starlette it has a status, of Werkzeug a response."""
    return hasattr(exc, "status_code") or hasattr(exc, "get_response")
