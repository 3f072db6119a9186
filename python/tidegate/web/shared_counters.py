"""Shares stores and counter names between routes with equal storage URIs and equal scopes."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable

from tidegate._core import Store
from tidegate.keys import peer
from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.rule_limiter import RuleLimiter
from tidegate.limiter.storage.uri import open_store
from tidegate.web.active_limits import ActiveLimits
from tidegate.web.dynamic_limit import DynamicLimit, check_limit_error_policy
from tidegate.web.options import limiter_of, of_requests
from tidegate.web.request_limiter import RequestLimiter
from tidegate.web.router_paths import PathReader, path_reader_of
from tidegate.web.rule_requests import RuleRequests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate.limiter.clock import ClockLike
    from tidegate.limiter.limit import LimitLike
    from tidegate.limiter.storage.options import StorageLike
    from tidegate.types import Algorithm

__all__ = [
    "check_scope",
    "limiter_in_scope",
    "middleware_limiters",
    "rule_limiter_of",
    "rule_requests_of",
    "shared_store",
    "unique_scope",
]

# These options need rules.
OF_RULES = ("attributes", "tiers", "violations", "load")

_lock = threading.Lock()
_stores: dict[tuple[str, str], Store] = {}
_names: Counter[str] = Counter()


def check_scope(scope: object) -> None:
    """Raises ConfigurationError for an invalid scope."""
    if scope is not None and (not isinstance(scope, str) or not scope):
        raise ConfigurationError(f"the scope is {scope!r}; expected a non-empty str, or None")


def limiter_in_scope(
    limit: LimitLike | Callable[..., Any],
    *,
    scope: str,
    store: Store,
    algorithm: Algorithm,
    prefix: str,
    clock: ClockLike,
    headers: Any,
    on_limit_error: Any = "raise",
    **options: Any,
) -> RequestLimiter:
    """Returns a request limiter whose limit, or limit function, counts in `scope`."""

    def limiter(one: LimitLike) -> Limiter:
        name = f"{prefix}:{scope}"
        return Limiter(one, storage=store, algorithm=algorithm, prefix=name, clock=clock)

    def activate(chosen: LimitLike) -> ActiveLimits:
        return ActiveLimits([limiter(chosen)], headers)

    check_limit_error_policy(on_limit_error, algorithm)
    return RequestLimiter(
        DynamicLimit(limit, activate, on_limit_error, algorithm)
        if callable(limit)
        else limiter(limit),
        address=peer,
        headers=headers,
        **options,
    )


def middleware_limiters(
    limit: LimitLike | Callable[..., Any] | None,
    options: Any,
    storage_options: Mapping[str, Any],
    app: object,
) -> tuple[Limiter | RuleLimiter, RequestLimiter | RuleRequests]:
    """Returns the limiter of a middleware around `app`, and the object that decides with it.

    If a function chooses the limit, the limiter has a limit of nothing, in the same storage.
    """
    if options.rules is not None or isinstance(options.limiter, RuleLimiter):
        return _of_rules(limit, options, storage_options, path_reader_of(app))
    for name in OF_RULES:
        if getattr(options, name) is not None:
            raise ConfigurationError(f"{name}= was given without rules; expected rules= too")
    for_requests = of_requests(options)
    if not callable(limit):
        check_limit_error_policy(for_requests.pop("on_limit_error"), options.algorithm)
        limiter = limiter_of(limit, options, storage_options)
        return limiter, RequestLimiter(limiter, **for_requests)
    options = SimpleNamespace(**vars(options))
    options.storage = open_store(options.storage, storage_options)
    limiter = limiter_of("0/second", options, {})
    return limiter, limiter_in_scope(
        limit,
        scope="middleware",
        store=limiter.storage,
        algorithm=options.algorithm,
        prefix=options.prefix,
        clock=options.clock,
        **for_requests,
    )


def _of_rules(
    limit: Any, options: Any, storage_options: Mapping[str, Any], reads_path: PathReader | None
) -> tuple[RuleLimiter, RuleRequests]:
    """Does what middleware_limiters() does, for a middleware with rules."""
    if limit is not None:
        raise ConfigurationError(f"the limit {limit!r} was given with rules; expected one of them")
    defaults = {"key": None, "on_limit_error": "raise", "on_no_key": "address"}
    for name, default in {**defaults, "messages": None}.items():
        if getattr(options, name, default) != default:
            raise ConfigurationError(
                f"{name}= was given with rules, which count by attributes; expected attributes="
            )
    limiter = options.limiter
    of_limiters = ("rules", "tiers", "violations", "load")
    if limiter is None:
        limiter = rule_limiter_of(options, storage_options)
    elif storage_options or any(getattr(options, name) is not None for name in of_limiters):
        raise ConfigurationError(
            "a limiter was given with options of its own; expected limiter= without rules=, "
            "tiers=, violations=, load= and storage options"
        )
    return limiter, rule_requests_of(
        limiter, options, options.headers, options.enabled, reads_path=reads_path
    )


def rule_limiter_of(options: Any, storage_options: Mapping[str, Any]) -> RuleLimiter:
    """Returns the limiter of the rules in `options`."""
    return RuleLimiter(
        options.rules,
        storage=options.storage,
        prefix=options.prefix,
        clock=options.clock,
        tiers=options.tiers,
        violations=options.violations,
        load=options.load,
        **storage_options,
    )


def rule_requests_of(
    limiter: RuleLimiter,
    options: Any,
    headers: Any,
    enabled: bool = True,
    *,
    reads_path: PathReader | None = None,
) -> RuleRequests:
    """Returns an object that decides on requests by `limiter`, with `options` for the rest."""
    return RuleRequests(
        limiter,
        attributes=options.attributes,
        cost=options.cost,
        cost_after=options.cost_after,
        exempt_when=options.exempt_when,
        enabled=enabled,
        on_refused=options.on_refused,
        headers=headers,
        retry_jitter=options.retry_jitter,
        reads_path=reads_path,
    )


def shared_store(storage: StorageLike, options: Mapping[str, Any]) -> Store:
    """Returns one store for all decorators with one URI, so that a `scope` spans them."""
    if not isinstance(storage, str):
        return open_store(storage, options)
    known = (storage, repr(sorted(options.items())))
    with _lock:
        if known not in _stores:
            _stores[known] = open_store(storage, options)
        return _stores[known]


def unique_scope(view: Any) -> str:
    """Returns a name that no other function has in this process, and the same in every worker."""
    name = f"{view.__module__}.{_name_of(view)}"
    with _lock:
        _names[name] += 1
        number = _names[name]
    return name if number == 1 else f"{name}#{number}"


def _name_of(view: Any) -> str:
    # All functions of as_view() have one qualified name.
    of_class = getattr(view, "view_class", None)
    name: str = getattr(of_class or view, "__qualname__", type(view).__qualname__)
    # Flask names a view, then applies the `decorators` of its class, and sets `view_class` last.
    return view.__name__ if name.endswith("as_view.<locals>.view") else name
