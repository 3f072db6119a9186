"""Hints for unknown options: their names here, if they are options of other limiters."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["OF_LIMITERS", "OF_LIMITERS_TEXT", "unknown_options"]

# The options of a Limiter that do not belong to its storage.
OF_LIMITERS = ("limit", "storage", "algorithm", "prefix", "clock")
OF_LIMITERS_TEXT = "limit=, storage=, algorithm=, prefix= and clock="

# Options of slowapi, Flask-Limiter, fastapi-limiter, django-ratelimit, throttled-py and redis-py,
# and first guesses, with their names here.
_ELSEWHERE = {
    "algo": "algorithm=",
    "application_limits": "the limit of the middleware",
    "backend": "storage=",
    "burst": "a limit such as '10/second burst 40'",
    "by": "key=",
    "callback": "on_refused=",
    "calls": "a limit such as '5/minute'",
    "deduct_when": "cost_after=, whose function returns 0 for what is not to count",
    "default_limit": "the limit of the middleware",
    "default_limits": "the limit of the middleware",
    "error_message": "on_refused=",
    "exclude": "exempt_paths= of middleware, or exempt_when=",
    "exempt": "exempt_when=",
    "fail_open": "on_error='open' with redis://",
    "group": "scope=",
    "headers_enabled": "headers=",
    "hours": "a limit such as '5/hour'",
    "identifier": "key=",
    "in_memory_fallback": "on_error='fallback' with redis://",
    "in_memory_fallback_enabled": "on_error='fallback' with redis://",
    "key_fn": "key=",
    "key_func": "key=",
    "key_function": "key=",
    "key_prefix": "prefix=",
    "limiter": "limit=, and storage=limiter.storage to count in its storage",
    "limits": "limit=",
    "max_size": "capacity=",
    "message": "on_refused=",
    "method": "methods=",
    "milliseconds": "a limit such as '5/100ms'",
    "minutes": "a limit such as '5/minute'",
    "namespace": "prefix=",
    "on_breach": "on_refused=",
    "on_exceeded": "on_refused=",
    "override_defaults": "nothing: a route's own limit replaces a default, as DefaultRateLimit and "
    "endpoint_limit= are, and adds to one of middleware",
    "per": "a limit such as '5/minute'",
    "period": "a limit such as '5/minute'",
    "quota": "limit=",
    "rate": "limit=",
    "redis": "storage='redis://...'",
    "redis_url": "storage=",
    "request_filter": "exempt_when=",
    "requests": "a limit such as '5/minute'",
    "seconds": "a limit such as '5/2 seconds'",
    "skip": "exempt_when=",
    "skip_if": "exempt_when=",
    "socket_connect_timeout": "connect_timeout=",
    "socket_timeout": "timeout=",
    "status_code": "on_refused=, which returns a response of any status",
    "storage_uri": "storage=",
    "storage_url": "storage=",
    "store": "storage=",
    "strategy": "algorithm=",
    "swallow_errors": "on_error='open' with redis://",
    "times": "a limit such as '5/minute'",
    "trust_proxy": "key=keys.client_ip(trusted_proxies=...)",
    "trusted_proxies": "key=keys.client_ip(trusted_proxies=...)",
    "using": "algorithm=",
    "weight": "cost=",
    "whitelist": "exempt_when=, or an allow list of rules",
    "window": "a limit such as '5/minute'",
}


def unknown_options(
    unknown: Iterable[str], accepted: Iterable[str], hints: Mapping[str, str] | None = None
) -> str:
    """The options by name, each with the option that may be meant.

    `hints` are for one caller, and come before those for all.
    """
    import difflib  # only an error message needs it

    names = sorted(accepted)
    told = []
    for name in sorted(unknown):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
        meant = (
            (hints or {}).get(name.lower())
            or _ELSEWHERE.get(name.lower())
            or (f"{near[0]}=" if near else None)
        )
        told.append(f"{name} (here it is {meant})" if meant else name)
    return ", ".join(told)
