"""Hints for unknown options: their names here, if they are options of other limiters."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["unknown_options"]

# Options of slowapi, Flask-Limiter, fastapi-limiter, django-ratelimit, throttled-py and redis-py,
# and first guesses, with their names here.
_LISTS = "exempt_when=, or an allow list of rules"
_PATHS = "exempt_paths= of middleware, or exempt_when="
_PLACES = "a limit such as '5 at once'"
_REDIS = "storage='redis://...'"
_WAIT = "wait= of @rate_limit and Depends(RateLimit(...)), and acquire() of a limiter"
_ELSEWHERE = {
    "algo": "algorithm=",
    **dict.fromkeys(("allow", "allowlist", "whitelist", "exempt_ips"), _LISTS),
    "application_limits": "the limit of the middleware",
    "backend": "storage=",
    "burst": "a limit such as '10/second burst 40'",
    "by": "key=",
    **dict.fromkeys(("block", "blocking", "delay", "max_wait", "queue", "sleep"), _WAIT),
    **dict.fromkeys(("wait", "wait_timeout"), _WAIT),
    **dict.fromkeys(("body", "callback", "detail", "error_message", "message"), "on_refused="),
    **dict.fromkeys(("error_handler", "exception", "exception_handler"), "on_refused="),
    **dict.fromkeys(("handler", "response", "response_body"), "on_refused="),
    "calls": "a limit such as '5/minute'",
    **dict.fromkeys(("client", "connection", "redis", "redis_client"), _REDIS),
    **dict.fromkeys(("concurrency", "concurrent", "max_concurrency", "max_concurrent"), _PLACES),
    "deduct_when": "cost_after=, whose function returns 0 for what is not to count",
    "default_limit": "the limit of the middleware",
    "default_limits": "the limit of the middleware",
    **dict.fromkeys(("exclude", "exclude_paths", "excluded_paths", "exclude_urls"), _PATHS),
    **dict.fromkeys(("exempt_paths", "exempt_routes", "exempt_urls"), _PATHS),
    **dict.fromkeys(("ignore_paths", "only", "paths", "skip_paths"), _PATHS),
    "exempt": "exempt_when=",
    "enabled": "enabled= of each limit, or TIDEGATE_ENABLED=0",
    "exempt_methods": "methods=, or exempt_methods= of middleware",
    "fail_closed": "on_error='closed' with redis://",
    "fail_open": "on_error='open' with redis://",
    "group": "scope=",
    "headers_enabled": "headers=",
    "hours": "a limit such as '5/hour'",
    "identifier": "key=",
    "in_memory_fallback": "on_error='fallback' with redis://",
    "in_memory_fallback_enabled": "on_error='fallback' with redis://",
    "include_headers": "headers=",
    "key": "the key of each call, as in limiter.hit('user:42')",
    "key_fn": "key=",
    "key_func": "key=",
    "key_function": "key=",
    "key_prefix": "prefix=",
    "limiter": "limit=, and storage=limiter.storage to count in its storage",
    "limits": "limit=",
    "max_connections": "nothing: one connection serves all threads and event loops",
    "max_size": "capacity=",
    "method": "methods=",
    "methods": "exempt_methods= of middleware, and methods= of @rate_limit",
    "milliseconds": "a limit such as '5/100ms'",
    "minutes": "a limit such as '5/minute'",
    "namespace": "prefix=",
    "name": "prefix=, or Limit(..., name=)",
    **dict.fromkeys(("on_429", "on_breach", "on_exceeded", "on_limit"), "on_refused="),
    **dict.fromkeys(("on_limited", "on_reject", "on_rejected"), "on_refused="),
    "on_no_key": "on_no_key= of each limit",
    "override_defaults": "nothing: a route's own limit replaces a default, as DefaultRateLimit and "
    "endpoint_limit= are, and adds to one of middleware",
    "per": "a limit such as '5/minute'",
    "period": "a limit such as '5/minute'",
    "quota": "limit=",
    "rate": "limit=",
    "redis_url": "storage=",
    "request_filter": "exempt_when=",
    "retry_jitter": "retry_jitter= of each limit",
    **dict.fromkeys(("rules", "tiers"), "rules= and tiers= of middleware and of Limiter"),
    "scope": "prefix= of middleware and limiters, and scope= of @rate_limit",
    "requests": "a limit such as '5/minute'",
    "seconds": "a limit such as '5/2 seconds'",
    "skip": "exempt_when=",
    "skip_if": "exempt_when=",
    "socket_connect_timeout": "connect_timeout=",
    "socket_timeout": "timeout=",
    **dict.fromkeys(("ssl", "tls"), "storage='rediss://...'"),
    "status_code": "on_refused=, which returns a response of any status",
    "storage_options": "the options themselves, beside storage=",
    "storage_uri": "storage=",
    "storage_url": "storage=",
    "store": "storage=",
    "strategy": "algorithm=",
    "swallow_errors": "on_error='open' with redis://",
    "times": "a limit such as '5/minute'",
    **dict.fromkeys(("points", "tokens", "units"), "cost="),
    "trust_proxy": "key=keys.client_ip(trusted_proxies=...)",
    "trusted_proxies": "key=keys.client_ip(trusted_proxies=...)",
    **dict.fromkeys(("dsn", "uri", "url"), "storage="),
    "using": "algorithm=",
    "weight": "cost=",
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
    named = []
    for name in sorted(unknown):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
        meant = (
            (hints or {}).get(name.lower())
            or _ELSEWHERE.get(name.lower())
            or (f"{near[0]}=" if near else None)
        )
        named.append(f"{name} (here it is {meant})" if meant else name)
    return ", ".join(named)
