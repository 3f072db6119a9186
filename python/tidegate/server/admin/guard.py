"""Refuses requests that no route should see: oversized, not UTF-8, not JSON, with NUL bytes."""

from __future__ import annotations

import asyncio
import collections
import json
import urllib.parse
from typing import TYPE_CHECKING, Any

from tidegate.server.admin.problems import ProblemError, problem_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "check_target", "check_text", "with_safe_headers"]

_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_BODY_TYPES = ("json", "yaml", "toml")
_DEEPEST = 64


class Guard:
    """ASGI middleware that reads the whole body, at most `most_bytes` of it within `seconds`."""

    def __init__(self, app: ASGIApp, *, most_bytes: int, seconds: float) -> None:
        self._app = app
        self._most = most_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            check_target(scope)
            body = await asyncio.wait_for(self._read(scope, receive), self._seconds)
            if body:
                _check_body(scope, body)
        except asyncio.TimeoutError:
            answer = problem_response(408, f"the body did not arrive within {self._seconds:g} s")
            await answer(scope, receive, send)
            return
        except ProblemError as error:
            answer = problem_response(error.status, error.detail, error.headers)
            await answer(scope, receive, send)
            return
        is_read = False

        async def replay() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > self._most:
                raise self._too_large()
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ProblemError(400, "the client left before its whole body had arrived")
            part = message.get("body", b"")
            size += len(part)
            if size > self._most:
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> ProblemError:
        return ProblemError(413, f"the body is too large; expected at most {self._most} bytes")


def with_safe_headers(send: Send) -> Send:
    """Adds headers that forbid to cache an answer, or to guess its type."""

    async def send_safely(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return send_safely


def check_target(scope: Scope) -> None:
    raw = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
    query: bytes = scope.get("query_string", b"")
    path = _decoded(raw.partition(b"?")[0], "path")
    _decoded(query.replace(b"+", b" "), "query")
    if any(part in (".", "..") for part in path.split("/")):
        raise ProblemError(400, "the path has the part '.' or '..'; expected a path without them")
    # Patterns of routes stop at a line feed, and skip one at the end: another id would be meant.
    if "\n" in path:
        raise ProblemError(400, "the path has a line feed; expected none")


def _decoded(raw: bytes, what: str) -> str:
    try:
        text = urllib.parse.unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise ProblemError(400, f"the {what} is not UTF-8; expected UTF-8") from None
    if "\0" in text:
        raise ProblemError(400, f"the {what} has a NUL byte; expected none")
    return text


def _check_body(scope: Scope, body: bytes) -> None:
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if not any(kind.endswith(each.encode()) for each in _BODY_TYPES):
        raise ProblemError(
            415, f"the body is of type {kind.decode('latin-1')!a:.80}; expected application/json"
        )
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ProblemError(
            400, f"byte {error.start} of the body is not UTF-8; expected UTF-8"
        ) from None
    if "\0" in text:
        raise ProblemError(400, "the body has a NUL byte; expected none")
    if kind.endswith(b"json"):
        _check_json(text)


def _check_json(text: str) -> None:
    try:
        value = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_constant)
    except RecursionError:
        raise ProblemError(400, "the body is nested too deep") from None
    except ValueError as error:
        raise ProblemError(400, f"the body is not JSON: {error!s:.200}") from None
    waiting = [(value, 0)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            check_text(value)
        elif isinstance(value, (list, dict)):
            if depth > _DEEPEST:
                raise ProblemError(400, f"the body is nested deeper than {_DEEPEST} levels")
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            waiting.extend((each, depth + 1) for each in inner)


def check_text(text: str) -> None:
    """Raises ProblemError for a text that the database cannot hold."""
    if "\0" in text:
        raise ProblemError(400, "a text of the body has a NUL character; expected none")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ProblemError(
                400, "a text of the body has half of a surrogate pair; expected Unicode"
            ) from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twin = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the field {twin!a:.80} is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
