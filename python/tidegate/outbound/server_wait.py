"""The wait that a 429 asks for, and what other responses say of a server's limits.

The fields come from a stranger: those that cannot be read are ignored.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["exhausted_for", "server_wait"]

# Longer fields are ignored.
_LONGEST = 2000
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_DELAY = re.compile(r"[0-9]{1,40}(\.[0-9]{1,9})?", re.ASCII)
_INSTANT = re.compile(r"[0-9]{10,11}", re.ASCII)  # in seconds since the epoch
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SPAN = re.compile(rf"(?:{_PART.pattern}){{1,5}}", re.ASCII)
_OF_ANTHROPIC = ("requests", "tokens", "input-tokens", "output-tokens")
_FAMILIES = (
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    *((f"x-ratelimit-remaining-{each}", f"x-ratelimit-reset-{each}") for each in _OF_ANTHROPIC[:2]),
    *(
        (f"anthropic-ratelimit-{each}-remaining", f"anthropic-ratelimit-{each}-reset")
        for each in _OF_ANTHROPIC
    ),
)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def server_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a 429 with these header fields asks its client to wait; None if it does not say.

    Retry-After goes before RateLimit, as the IETF's draft asks; then the older forms of that
    field, RateLimit-Reset, and the reset of a limit of which nothing is left, as exhausted_for()
    reads it.
    """
    date = headers.get("date")
    readers: dict[str, Callable[[str], float | None]] = {
        "retry-after": lambda value: _retry_after(value, date),
        "ratelimit": _of_rate_limit,
        "ratelimit-reset": _seconds,
    }
    for name, read in readers.items():
        value = headers.get(name)
        if value is not None and len(value) <= _LONGEST:
            wait = read(value)
            if wait is not None:
                return wait
    return exhausted_for(headers) or None


def exhausted_for(headers: Mapping[str, str]) -> float | None:
    """Seconds for which nothing is left of a limit, by the fields of a response of any status; 0.0
    if something is left of every limit in them, None if they name no limit.

    Reads RateLimit and its older forms, X-RateLimit-Remaining with the reset as an instant or in
    seconds, and the families of OpenAI (x-ratelimit-remaining-tokens) and Anthropic
    (anthropic-ratelimit-tokens-remaining).
    """
    waits = []
    field = headers.get("ratelimit")
    if field is not None and len(field) <= _LONGEST:
        waits.append(_exhausted_in(field))
    date = headers.get("date")
    for remaining, reset in _FAMILIES:
        left = headers.get(remaining)
        if left is None or len(left) > _LONGEST or not left.strip().isdecimal():
            continue
        again = headers.get(reset)
        if int(left) > 0:
            waits.append(0.0)
        elif again is not None and len(again) <= _LONGEST:
            waits.append(_reset_in(again.strip(), date))
    return max((wait for wait in waits if wait is not None), default=None)


def _exhausted_in(value: str) -> float | None:
    old, limits = _limits_in(value)
    if "remaining" in old:
        return old.get("reset") if old["remaining"] == 0 else 0.0
    known = [each for each in limits if "r" in each]
    exhausted = [each["t"] for each in known if each["r"] == 0 and "t" in each]
    return max(exhausted, default=0.0 if known else None)


def _reset_in(value: str, date: str | None) -> float | None:
    """Seconds of ``30``, ``1696523400``, ``6m0s``, ``20ms`` or ``2023-11-14T22:14:05Z``."""
    if _INSTANT.fullmatch(value):
        return _from_now(float(value), date)
    seconds = _seconds(value)
    if seconds is not None:
        return seconds
    if _SPAN.fullmatch(value):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    try:
        instant = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return None if instant.tzinfo is None else _from_now(instant.timestamp(), date)


def _from_now(instant: float, date: str | None) -> float:
    now = _instant(date) if date is not None else None
    return max(0.0, instant - (time.time() if now is None else now))


def _retry_after(value: str, date: str | None) -> float | None:
    # A number is always of seconds here: also one of centuries, which no caller waits.
    text = value.strip()
    if _DELAY.fullmatch(text):
        return float(text)
    return _until(value, date)


def _seconds(value: str) -> float | None:
    return float(value.strip()) if _SECONDS.fullmatch(value.strip()) else None


def _until(value: str, date: str | None) -> float | None:
    """Seconds until an HTTP date, by the server's clock if the response has its Date, since the
    client's may be wrong."""
    instant = _instant(value)
    if instant is None:
        return None
    return _from_now(instant, date)


def _instant(value: str) -> float | None:
    if len(value) > _LONGEST:
        return None
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        return None


def _of_rate_limit(value: str) -> float | None:
    """The wait in ``"name";r=0;t=30``, or in ``limit=100, remaining=0, reset=30`` of older drafts.

    Of several limits, the longest wait of an exhausted one is taken; if none is exhausted, of all.
    """
    old, limits = _limits_in(value)
    if "reset" in old:
        return old["reset"]
    timed = [each for each in limits if "t" in each]
    exhausted = [each for each in timed if each.get("r") == 0]
    return max((each["t"] for each in exhausted or timed), default=None)


def _limits_in(value: str) -> tuple[dict[str, float], list[dict[str, float]]]:
    """The parameters in a RateLimit field: of the form of older drafts, and of each limit."""
    rest = _STRING.sub("", value)
    if '"' in rest:
        return {}, []
    members = rest.split(",")
    return dict(_parameters(members)), [dict(_parameters(each.split(";"))) for each in members]


def _parameters(texts: Iterable[str]) -> Iterable[tuple[str, float]]:
    for text in texts:
        name, is_given, value = text.partition("=")
        # An integer of structured fields has up to 15 digits: `t` may be of centuries.
        if is_given and (_DELAY if name.strip() == "t" else _SECONDS).fullmatch(value.strip()):
            yield name.strip().lower(), float(value)
