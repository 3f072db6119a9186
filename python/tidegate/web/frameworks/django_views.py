"""Applies @rate_limit to Django's class-based views, and under method_decorator()."""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace
from typing import Any, Callable

from django.utils.decorators import method_decorator
from django.views import View

from tidegate.limiter.errors import ArgumentTypeError

__all__ = ["ViewDecorator", "is_of_django"]

# method_decorator() applies its decorators to this function, to see what they add.
_DUMMY = "_update_method_wrapper.<locals>.dummy"


def is_of_django(view: Any) -> bool:
    """Returns whether `view` needs a ViewDecorator instead of the decorator of functions."""
    if inspect.isclass(view):
        return issubclass(view, View)
    is_dummy = getattr(view, "__qualname__", None) == _DUMMY
    return is_dummy or _is_bound(inspect.unwrap(view, stop=_is_bound))


class ViewDecorator:
    """A decorator that recognises the methods that method_decorator() passes."""

    def __init__(self, decorator: Any) -> None:
        self._decorator = decorator
        # Methods are decorated again for each request, and must find their counts.
        self._of_methods: dict[tuple[Any, str, str], Callable[..., Any]] = {}

    def __call__(self, view: Any) -> Any:
        if inspect.isclass(view):
            return self._limited_class(view)
        if getattr(view, "__qualname__", None) == _DUMMY:
            return view
        bound = inspect.unwrap(view, stop=_is_bound)
        if not _is_bound(bound):
            if _knows_methods:
                return self._decorator.make_decorator(view)(view)
            # `view` may be a method, which is decorated again for each request.
            return self._limiting(view.__module__, view.__qualname__)(view)
        owner = type(bound.func.__self__)
        name = bound.func.__name__
        is_async_dispatch = name == "dispatch" and _is_async(owner)
        limiting = self._limiting_method(owner, name)
        return limiting(_awaiting(view) if is_async_dispatch else view)

    def _limited_class(self, view: Any) -> Any:
        if not issubclass(view, View):
            raise ArgumentTypeError(
                f"{view!r} is a class; expected functions, and classes of django.views.View"
            )
        dispatch = view.dispatch
        view.dispatch = self._limiting_method(view, "dispatch")(
            _awaiting(dispatch) if _is_async(view) else dispatch
        )
        return view

    def _limiting_method(self, owner: Any, name: str) -> Callable[..., Any]:
        # The name comes from the class, so that it is the same in every worker.
        return self._limiting(owner.__module__, f"{owner.__qualname__}.{name}", owner)

    def _limiting(self, module: str, name: str, owner: Any = None) -> Callable[..., Any]:
        """Returns the decorator, with one request limiter for all calls with equal arguments."""
        known = self._of_methods.get((owner, module, name))
        if known is None:
            named = SimpleNamespace(__module__=module, __qualname__=name)
            known = self._decorator.make_decorator(named)
            known = self._of_methods.setdefault((owner, module, name), known)
        return known


def _is_bound(view: Any) -> bool:
    """Returns whether method_decorator() has made `view` from a method."""
    return isinstance(view, functools.partial) and inspect.ismethod(view.func)


def _is_async(view: Any) -> bool:
    return issubclass(view, View) and bool(view.view_is_async)


def _awaiting(dispatch: Any) -> Any:
    """Returns the `dispatch` of a class of async views as an async function."""

    @functools.wraps(dispatch)
    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        result = dispatch(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return awaiting


def _probe() -> bool:
    """Returns whether method_decorator() passes to its decorators what this module expects."""
    given: list[Any] = []

    def decorator(view: Any) -> Any:
        given.append(view)
        return view

    class Probe:
        @method_decorator(decorator)  # type: ignore[untyped-decorator]
        def method(self) -> None:
            pass

    Probe().method()
    names = [getattr(view, "__qualname__", None) for view in given[:-1]]
    return names == [_DUMMY] and _is_bound(inspect.unwrap(given[-1], stop=_is_bound))


_knows_methods = _probe()
