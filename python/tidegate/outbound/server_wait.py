"""The wait that a 429 asks for, in Retry-After or the RateLimit fields.

The fields come from a stranger: those that cannot be read are ignored.
"""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["server_wait"]

# Longer fields are ignored.
_LONGEST = 2000
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def server_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response with these header fields asks its client to wait; None if it does not
    say.

    Retry-After goes before RateLimit, as the IETF's draft asks; then the older forms of that
    field, and RateLimit-Reset.
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
    return None


def _retry_after(value: str, date: str | None) -> float | None:
    seconds = _seconds(value)
    return _until(value, date) if seconds is None else seconds


def _seconds(value: str) -> float | None:
    return float(value.strip()) if _SECONDS.fullmatch(value.strip()) else None


def _until(value: str, date: str | None) -> float | None:
    """Seconds until an HTTP date, by the server's clock if the response has its Date, since the
    client's may be wrong."""
    instant = _instant(value)
    if instant is None:
        return None
    now = _instant(date) if date is not None else None
    return max(0.0, instant - (time.time() if now is None else now))


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
    rest = _STRING.sub("", value)
    if '"' in rest:
        return None
    members = rest.split(",")
    parameters = [dict(_parameters(member.split(";"))) for member in members]
    old = dict(_parameters(members))
    if "reset" in old:
        return old["reset"]
    told = [each for each in parameters if "t" in each]
    exhausted = [each for each in told if each.get("r") == 0]
    return max((each["t"] for each in exhausted or told), default=None)


def _parameters(texts: Iterable[str]) -> Iterable[tuple[str, float]]:
    for text in texts:
        name, is_given, value = text.partition("=")
        seconds = _seconds(value)
        if is_given and seconds is not None:
            yield name.strip().lower(), seconds
