"""Observers of refusals and decision times."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Callable, Union

from tidegate.web.request_access import source_of

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.limiter.limiter import Limiter
    from tidegate.web.hooks import Hooks

    Key = Union[str, bytes]
    Observer = Callable[["Refusal"], object]
    Timer = Callable[[Limiter, float], object]

__all__ = ["Refusal", "Watch", "observers"]


class Refusal:
    """A refused request: `cost` units would have been charged to `key` of `limiter`.

    `limiter` is the limiter's prefix, `key` is None if the request was refused because it had none,
    and `request` is the framework's object, or None.
    """

    __slots__ = ("cost", "decision", "key", "limiter", "request")

    def __init__(
        self,
        limiter: str,
        key: Key | None,
        decision: Decision,
        *,
        cost: int = 1,
        request: Any = None,
    ) -> None:
        self.limiter = limiter
        self.key = key
        self.decision = decision
        self.cost = cost
        self.request = request

    @property
    def method(self) -> str | None:
        """The method of the request; None if it has none."""
        source = self._source()
        return _text(source.get("method") or source.get("REQUEST_METHOD"))

    @property
    def path(self) -> str | None:
        """The path of the request as its client sent it, without the query."""
        source = self._source()
        if "path" in source:
            return _text(source["path"])
        if "PATH_INFO" not in source:
            return None
        return f"{source.get('SCRIPT_NAME') or ''}{source['PATH_INFO']}"

    @property
    def route(self) -> str | None:
        """The template of the route, such as ``/items/{id}``; None if it is not known yet."""
        route = getattr(self._source().get("route"), "path", None)  # Starlette, FastAPI
        if route is None:
            route = getattr(getattr(self.request, "url_rule", None), "rule", None)  # Flask
        if route is None:
            route = getattr(getattr(self.request, "resolver_match", None), "route", None)  # Django
        return _text(route)

    def _source(self) -> Mapping[str, Any]:
        return {} if self.request is None else source_of(self.request)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


class _Observers:
    """The current observers. Most services have none, and their requests must not get slower."""

    __slots__ = ("_lock", "refusals", "times")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.refusals: tuple[Observer, ...] = ()
        self.times: tuple[Timer, ...] = ()

    def change(self, refusals: Iterable[Observer], times: Iterable[Timer], *, add: bool) -> None:
        with self._lock:
            self.refusals = _changed(self.refusals, refusals, add)
            self.times = _changed(self.times, times, add)

    def notify(self, refusal: Refusal, hooks: Hooks) -> None:
        """Passes a refusal to the observers. Their exceptions never reach a request."""
        for observer in self.refusals:
            try:
                observer(refusal)
            except Exception as exc:
                hooks.log_throttled("an observer of refusals raised", exc=exc)

    def notify_time(self, limiter: Limiter, seconds: float, hooks: Hooks) -> None:
        """Passes the duration of a decision to the observers."""
        for timer in self.times:
            try:
                timer(limiter, seconds)
            except Exception as exc:
                hooks.log_throttled("an observer of decision times raised", exc=exc)


def _changed(present: tuple[Any, ...], change: Iterable[Any], add: bool) -> tuple[Any, ...]:
    if add:
        return (*present, *change)
    left = list(present)
    for each in change:
        left.remove(each)
    return tuple(left)


observers = _Observers()


class Watch:
    """Observers that are called until close(), or until the end of a ``with`` block."""

    def __init__(self, refusals: Iterable[Observer] = (), times: Iterable[Timer] = ()) -> None:
        self._watching = tuple(refusals), tuple(times)
        self._lock = threading.Lock()
        self._is_open = True
        observers.change(*self._watching, add=True)

    def close(self) -> None:
        """Ends the calls. May be called more than once."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if was_open:
            observers.change(*self._watching, add=False)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
