"""Stores and counter names that routes share: equal storage URIs and equal scopes."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable

from tidegate._core import Store
from tidegate._errors import ConfigurationError
from tidegate._limiter import Limiter
from tidegate._storage.uri import open_store
from tidegate._web.active_limits import ActiveLimits
from tidegate._web.dynamic_limit import DynamicLimit
from tidegate._web.request_limiter import RequestLimiter
from tidegate.keys import peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._storage.options import StorageLike

__all__ = ["check_scope", "limiter_in_scope", "shared_store", "unique_scope"]

_lock = threading.Lock()
_stores: dict[tuple[str, str], Store] = {}
_names: Counter[str] = Counter()


def check_scope(scope: object) -> None:
    """Raises ConfigurationError for what is no scope."""
    if scope is not None and (not isinstance(scope, str) or not scope):
        raise ConfigurationError(f"the scope is {scope!r}; expected a non-empty str, or None")


def limiter_in_scope(
    limit: LimitLike | Callable[..., Any],
    *,
    scope: str,
    store: Store,
    algorithm: str,
    prefix: str,
    clock: ClockLike,
    headers: Any,
    **options: Any,
) -> RequestLimiter:
    """A request limiter whose limit, or the one that its function chooses, counts in `scope`."""

    def limiter(one: LimitLike) -> Limiter:
        name = f"{prefix}:{scope}"
        return Limiter(one, storage=store, algorithm=algorithm, prefix=name, clock=clock)

    def activate(chosen: LimitLike) -> ActiveLimits:
        return ActiveLimits([limiter(chosen)], headers)

    return RequestLimiter(
        DynamicLimit(limit, activate) if callable(limit) else limiter(limit),
        address=peer,
        headers=headers,
        **options,
    )


def shared_store(storage: StorageLike, options: Mapping[str, Any]) -> Store:
    """One store for all decorators with one URI, so that a `scope` spans them."""
    if not isinstance(storage, str):
        return open_store(storage, options)
    known = (storage, repr(sorted(options.items())))
    with _lock:
        if known not in _stores:
            _stores[known] = open_store(storage, options)
        return _stores[known]


def unique_scope(view: Any) -> str:
    """A name that no other function has in this process, and the same in every worker."""
    name = f"{view.__module__}.{getattr(view, '__qualname__', type(view).__qualname__)}"
    with _lock:
        _names[name] += 1
        number = _names[name]
    return name if number == 1 else f"{name}#{number}"
