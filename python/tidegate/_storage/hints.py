"""What is said of options that are not ours, to those who come from another limiter."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["unknown_options"]

# What slowapi, Flask-Limiter, fastapi-limiter, django-ratelimit, throttled-py and redis-py
# call what has another name here.
_ELSEWHERE = {
    "algo": "algorithm=",
    "application_limits": "the limit of the middleware",
    "callback": "on_refused=",
    "default_limits": "the limit of the middleware",
    "error_message": "on_refused=",
    "exempt": "exempt_when=",
    "group": "scope=",
    "headers_enabled": "headers=",
    "hours": "a limit such as '5/hour'",
    "identifier": "key=",
    "in_memory_fallback": "on_error='fallback' with redis://",
    "in_memory_fallback_enabled": "on_error='fallback' with redis://",
    "key_func": "key=",
    "key_prefix": "prefix=",
    "limits": "limit=",
    "max_size": "capacity=",
    "method": "methods=",
    "milliseconds": "a limit such as '5/100ms'",
    "minutes": "a limit such as '5/minute'",
    "on_breach": "on_refused=",
    "per": "a limit such as '5/minute'",
    "quota": "limit=",
    "rate": "limit=",
    "requests": "a limit such as '5/minute'",
    "seconds": "a limit such as '5/2 seconds'",
    "socket_connect_timeout": "connect_timeout=",
    "socket_timeout": "timeout=",
    "storage_uri": "storage=",
    "storage_url": "storage=",
    "store": "storage=",
    "strategy": "algorithm=",
    "swallow_errors": "on_error='open' with redis://",
    "times": "a limit such as '5/minute'",
    "using": "algorithm=",
    "window": "a limit such as '5/minute'",
}


def unknown_options(unknown: Iterable[str], accepted: Iterable[str]) -> str:
    """The options by name, each with what may have been meant."""
    import difflib  # by nobody who makes no mistake

    names = sorted(accepted)
    told = []
    for name in sorted(unknown):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        meant = _ELSEWHERE.get(name.lower()) or (f"{near[0]}=" if near else None)
        told.append(f"{name} (here it is {meant})" if meant else name)
    return ", ".join(told)
