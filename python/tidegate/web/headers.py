"""Encodes the state of limits in responses: the header fields, and the body of a refusal.

Nothing here does I/O or reads a clock, so that every web framework can share it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidegate._core import Decision, HeaderFields, Limit
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

if TYPE_CHECKING:
    from tidegate._core import RequestDecision
    from tidegate.limiter.limiter import Limiter
    from tidegate.limiter.rule_limiter import RuleLimiter

__all__ = [
    "FAMILIES",
    "OPENAI",
    "PROBLEM_TYPE",
    "SHADOW",
    "FieldList",
    "Problems",
    "check_families",
    "extend",
    "fields_for",
    "retry_seconds",
]

FieldList = list[tuple[bytes, bytes]]

FAMILIES = ("x-ratelimit", "ietf")
# The revisions of the draft by which "ietf" may be named. A later revision, with fields of another
# form, gets a family of its own.
_REVISIONS = {"ietf-11": "ietf"}
# Those that clients of OpenAI read, of the limits on requests and on tokens.
OPENAI = "openai"
# Only for rules: names the rules in shadow that would have refused the request.
SHADOW = "shadow"

PROBLEM_TYPE = b"application/problem+json"


def fields_for(
    limiter: Limiter | RuleLimiter, limits: Sequence[Limit], families: Iterable[str] = FAMILIES
) -> HeaderFields:
    """Returns an encoder of the rate-limit fields of the responses that one plan governs.

    `families` are ``"x-ratelimit"`` (X-RateLimit-Limit, -Remaining, -Reset), ``"ietf"``
    (RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers, as RFC 9651
    lists) and ``"openai"`` (x-ratelimit-limit-requests and so on). Retry-After is on every
    refusal after which waiting helps. Limits in shadow are not shown. `limiter` has the clock.
    Raises ConfigurationError for other families.
    """
    chosen = check_families(families)
    enforced = [limit for limit in limits if not limit.shadow]
    if not enforced:
        chosen = ()
    return HeaderFields(
        limiter,
        enforced or list(limits),
        "x-ratelimit" in chosen,
        "ietf" in chosen,
        OPENAI in chosen,
    )


class Problems:
    """The bodies of refusals: RFC 9457 problem details of type quota-exceeded. Thread-safe."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._curable = {
            limit.name: _problem(limit, "Try again in %d s.", "%d") for limit in limits
        }
        self._incurable = {
            limit.name: _problem(
                limit,
                "It never lets through as much as this at once."
                if limit.capacity
                else "It lets nothing through.",
                "null",
            )
            for limit in limits
        }
        # The last body: in a flood, all refusals of one second are equal. Threads may share the
        # tuple, since it is replaced as a whole.
        self._last: tuple[tuple[str, int | None], bytes] = (("", None), b"")

    def encode(self, decision: Decision, wait: int | None) -> bytes:
        """Returns the body of a refusal. Waiting `wait` seconds helps; None: no wait does."""
        policy = decision._policy
        told = policy, wait
        last = self._last
        if last[0] == told:
            return last[1]
        body = (
            self._incurable[policy] % () if wait is None else self._curable[policy] % (wait, wait)
        )
        self._last = told, body
        return body


def retry_seconds(refusal: Decision) -> int | None:
    """Returns the whole seconds after which the request would pass, or None if it never would."""
    wait = refusal.retry_after
    return None if wait == math.inf else math.ceil(wait)


def extend(headers: Any, outcome: RequestDecision) -> None:
    """Adds to `headers`, a mapping without regard to case or repetition, the fields it lacks."""
    for name, value in outcome.merged_text(list(headers.items())):
        if headers.get(name) != value:
            headers[name] = value


def check_families(families: Iterable[str], *, of_rules: bool = False) -> tuple[str, ...]:
    """Returns the families of fields, "ietf" for its revisions. Raises ConfigurationError for
    unknown ones."""
    known = (*FAMILIES, OPENAI, *_REVISIONS, *([SHADOW] if of_rules else []))
    accepted = f"expected {', '.join(map(repr, known))}, or several of them, or ()"
    if isinstance(families, str):
        families = (families,)
    if isinstance(families, bytes) or not isinstance(families, Iterable):
        raise ArgumentTypeError(
            f"the headers are {families!r} of type {type(families).__name__}; {accepted}"
        )
    chosen = tuple(families)
    for family in chosen:
        if family not in known:
            if family == SHADOW:
                accepted += "; 'shadow' is for rules"
            raise ConfigurationError(f"the headers include {family!r}; {accepted}")
    return tuple(_REVISIONS.get(family, family) for family in chosen)


def _problem(limit: Limit, advice: str, retry_after: str) -> bytes:
    """Returns a template of the body, with a place for the seconds."""
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
