"""Who counts together: the stores and scopes of limits that stand on routes."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable

from tidegate._core import Store
from tidegate._errors import ConfigurationError
from tidegate._guard import Guard
from tidegate._limiter import Limiter
from tidegate._storage import open_store
from tidegate._terms import ChosenLimit, Terms
from tidegate.keys import peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._storage import StorageLike

__all__ = ["check_scope", "guard_in_scope", "own_scope", "shared_store"]

_lock = threading.Lock()
_stores: dict[tuple[str, str], Store] = {}
_names: Counter[str] = Counter()


def check_scope(scope: object) -> None:
    """Raises ConfigurationError for what is no scope."""
    if scope is not None and (not isinstance(scope, str) or not scope):
        raise ConfigurationError(f"the scope is {scope!r}; accepted is a non-empty str, or None")


def guard_in_scope(
    limit: LimitLike | Callable[..., Any],
    *,
    scope: str,
    store: Store,
    algorithm: str,
    prefix: str,
    clock: ClockLike,
    headers: Any,
    **options: Any,
) -> Guard:
    """A guard whose limit, or the one that its function chooses, counts in `scope`."""

    def limiter(one: LimitLike) -> Limiter:
        name = f"{prefix}:{scope}"
        return Limiter(one, storage=store, algorithm=algorithm, prefix=name, clock=clock)

    def terms(chosen: LimitLike) -> Terms:
        return Terms([limiter(chosen)], headers)

    return Guard(
        ChosenLimit(limit, terms) if callable(limit) else limiter(limit),
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


def own_scope(view: Any) -> str:
    """A name that no other function has in this process, and the same in every worker."""
    name = f"{view.__module__}.{getattr(view, '__qualname__', type(view).__qualname__)}"
    with _lock:
        _names[name] += 1
        number = _names[name]
    return name if number == 1 else f"{name}#{number}"
