"""What a response says of its limits: the header fields, and the body of a refusal.

Nothing here does I/O or reads a clock, so that every web framework can share it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tidegate._core import Decision, Limit
from tidegate._errors import ArgumentTypeError, ConfigurationError

__all__ = [
    "FAMILIES",
    "ONCE",
    "PROBLEM_TYPE",
    "FieldList",
    "Fields",
    "Problems",
    "added",
    "extend",
    "merged",
    "retry_seconds",
    "title",
]

FieldList = list[tuple[bytes, bytes]]

FAMILIES = ("x-ratelimit", "ietf")

PROBLEM_TYPE = b"application/problem+json"

# Fields with one value: where something nearer to the route has set one already, it is
# the more specific. The IETF fields are lists, which a second line extends.
ONCE = frozenset(
    (b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset", b"retry-after")
)

_SECOND_NS = 10**9


class Fields:
    """The rate-limit fields of the responses that one plan governs.

    `families` are ``"x-ratelimit"`` (X-RateLimit-Limit, -Remaining, -Reset) and ``"ietf"``
    (RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers, as RFC 9651
    lists). Retry-After is on every refusal that waiting can cure. Raises ConfigurationError
    for other families. Thread-safe.
    """

    def __init__(self, limits: Sequence[Limit], families: Iterable[str] = FAMILIES) -> None:
        chosen = _families(families)
        self._x_ratelimit = "x-ratelimit" in chosen
        self._ietf = "ietf" in chosen
        self._policy = (b"ratelimit-policy", b", ".join(map(_policy, limits)))
        self._by_name = {
            limit.name: (
                (b"x-ratelimit-limit", b"%d" % limit.capacity),
                _sf_string(limit.name).replace(b"%", b"%%") + b";r=%d;t=%d",
            )
            for limit in limits
        }
        self._only = self._by_name[limits[0].name] if len(limits) == 1 else None
        # What was told last, and of what. Replaced as a whole, so that threads may share it.
        self._last: tuple[tuple[Any, ...], FieldList] = ((), [])

    def encode(
        self, decision: Decision, decided_ns: int, now_ns: int, extra: float = 0.0
    ) -> FieldList:
        """The fields of a response that is sent at `now_ns` and was decided at `decided_ns`.

        Both are nanoseconds of one clock since the epoch. Instants and spans are whole
        seconds, rounded up; an instant that has gone by since is told as now. A refusal tells
        of `extra` seconds more than it must. Names are in lower case, as ASGI wants them. The
        list is not to be changed.
        """
        remaining = decision.remaining
        # Exact where a float carries the nanoseconds exactly, which is up to 104 days.
        reset_ns = decided_ns + round(decision.reset_after * 1e9)
        if reset_ns < now_ns:
            reset_ns = now_ns
        wait = None if decision.allowed else retry_seconds(decision, extra)
        # A refused client need not be told of a later instant than that at which it may try
        # again: Retry-After must not precede the effective window.
        window = -((now_ns - reset_ns) // _SECOND_NS) if wait is None else wait
        told = (
            decision.rule if self._only is None else "",
            remaining,
            reset_ns // -_SECOND_NS,
            window,
            wait,
        )
        # Of a flood, all refusals of one second say the same.
        last = self._last
        if last[0] == told:
            return last[1]
        limit, item = self._only or self._by_name[decision.rule]
        fields: FieldList = []
        if self._x_ratelimit:
            fields += (
                limit,
                (b"x-ratelimit-remaining", b"%d" % remaining),
                (b"x-ratelimit-reset", b"%d" % -told[2]),
            )
        if self._ietf:
            fields += (self._policy, (b"ratelimit", item % (remaining, window)))
        if wait is not None:
            fields.append((b"retry-after", b"%d" % wait))
        self._last = told, fields
        return fields


class Problems:
    """The bodies of refusals: RFC 9457 problem details of type quota-exceeded. Thread-safe."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._curable = {
            limit.name: _problem(limit, "Try again in %d s.", "%d") for limit in limits
        }
        self._incurable = {
            limit.name: _problem(limit, "It never lets through as much as this at once.", "null")
            for limit in limits
        }
        self._last: tuple[tuple[str, int | None], bytes] = (("", None), b"")  # as in Fields

    def encode(self, decision: Decision, extra: float = 0.0) -> bytes:
        """The body that goes with `decision`, which is a refusal; see Fields for `extra`."""
        wait = retry_seconds(decision, extra)
        told = decision.rule, wait
        last = self._last
        if last[0] == told:
            return last[1]
        body = (
            self._incurable[decision.rule] % ()
            if wait is None
            else self._curable[decision.rule] % (wait, wait)
        )
        self._last = told, body
        return body


def retry_seconds(refusal: Decision, extra: float = 0.0) -> int | None:
    """Retry-After, with `extra` seconds on top; None where no wait would help."""
    wait = refusal.retry_after + extra
    return None if wait == math.inf else math.ceil(wait)


def merged(headers: Iterable[tuple[bytes, bytes]], fields: FieldList) -> FieldList:
    """`headers` as the application gave them, and those of `fields` that it left open."""
    result = list(headers)
    for name, _ in result:
        if name in ONCE:
            present = {name for name, _ in result}
            result += [f for f in fields if f[0] not in ONCE or f[0] not in present]
            return result
    result += fields
    return result


def added(headers: Iterable[tuple[str, str]], fields: FieldList) -> list[tuple[str, str]]:
    """Those of `fields` that `headers`, as the application gave them, leave open; as text."""
    present = {name.lower() for name, _ in headers}
    return [
        (title(name), value.decode())
        for name, value in fields
        # What is nearer to the route is the more specific.
        if name not in ONCE or name.decode() not in present
    ]


def extend(headers: Any, fields: FieldList) -> None:
    """Adds to `headers`, a mapping that knows no case and no repetition, what they leave open."""
    for name, value in fields:
        known = title(name)
        if known not in headers:
            headers[known] = value.decode()
        elif name not in ONCE:
            headers[known] = f"{headers[known]}, {value.decode()}"


def title(name: bytes) -> str:
    """The name of a field as it is usually written, for interfaces that take text."""
    return _TITLES.get(name) or name.decode()


_TITLES = {
    b"x-ratelimit-limit": "X-RateLimit-Limit",
    b"x-ratelimit-remaining": "X-RateLimit-Remaining",
    b"x-ratelimit-reset": "X-RateLimit-Reset",
    b"ratelimit-policy": "RateLimit-Policy",
    b"ratelimit": "RateLimit",
    b"retry-after": "Retry-After",
}


def _families(families: Iterable[str]) -> tuple[str, ...]:
    accepted = f"accepted are {', '.join(map(repr, FAMILIES))}, or several of them, or ()"
    if isinstance(families, str):
        families = (families,)
    if isinstance(families, bytes) or not isinstance(families, Iterable):
        raise ArgumentTypeError(
            f"the headers are {families!r} of type {type(families).__name__}; {accepted}"
        )
    chosen = tuple(families)
    for family in chosen:
        if family not in FAMILIES:
            raise ConfigurationError(f"the headers include {family!r}; {accepted}")
    return chosen


def _policy(limit: Limit) -> bytes:
    """One member of RateLimit-Policy.

    Quota and window are those that the limit states. A window that is no whole number of
    seconds is rounded up, since a client that paces itself by it must not be too fast.
    """
    unit = b';qu="concurrent-requests"' if limit.algorithm == "concurrency" else b""
    window = -(-limit.period_ns // _SECOND_NS)
    return _sf_string(limit.name) + b";q=%d" % limit.count + unit + b";w=%d" % window


def _sf_string(text: str) -> bytes:
    """`text`, which is printable ASCII, as a String of RFC 9651 section 4.1.6."""
    return b'"' + text.encode("ascii").replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _problem(limit: Limit, advice: str, retry_after: str) -> bytes:
    """A template of the body, for the seconds to be put into."""
    name = limit.name.replace("%", "%%")
    members = {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": f"The limit {name} refused this request. {advice}",
        "violated-policies": [name],
        "error": "rate_limit_exceeded",
    }
    text = json.dumps(members, separators=(",", ":"))
    return f'{text[:-1]},"retry_after":{retry_after}}}'.encode("ascii")
