"""What @rate_limit makes of Django's classes of views, and of what method_decorator() gives it."""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace
from typing import Any, Callable

from django.views import View

from tidegate._errors import ArgumentTypeError

__all__ = ["ViewDecorator", "is_of_django"]

# What method_decorator() calls its decorators with to see what they add to a function.
_DUMMY = "_update_method_wrapper.<locals>.dummy"


def is_of_django(view: Any) -> bool:
    """Whether a ViewDecorator is to decorate it, and not what decorates functions."""
    if inspect.isclass(view):
        return issubclass(view, View)
    is_dummy = getattr(view, "__qualname__", None) == _DUMMY
    return is_dummy or _is_bound(inspect.unwrap(view, stop=_is_bound))


class ViewDecorator:
    """A decorator that knows what method_decorator() makes of methods."""

    def __init__(self, decorator: Any) -> None:
        self._decorator = decorator
        # Methods are decorated anew for each request, and must find their counts again.
        self._of_methods: dict[tuple[Any, str], Callable[..., Any]] = {}

    def __call__(self, view: Any) -> Any:
        if inspect.isclass(view):
            return self._limited_class(view)
        if getattr(view, "__qualname__", None) == _DUMMY:
            return view
        bound = inspect.unwrap(view, stop=_is_bound)
        if not _is_bound(bound):
            return self._decorator.together(view)(view)
        owner = type(bound.func.__self__)
        name = bound.func.__name__
        is_async_dispatch = name == "dispatch" and _is_async(owner)
        return self._limiting(owner, name)(_awaiting(view) if is_async_dispatch else view)

    def _limited_class(self, view: Any) -> Any:
        if not issubclass(view, View):
            raise ArgumentTypeError(
                f"{view!r} is a class; accepted are functions, and classes of django.views.View"
            )
        dispatch = view.dispatch
        view.dispatch = self._limiting(view, "dispatch")(
            _awaiting(dispatch) if _is_async(view) else dispatch
        )
        return view

    def _limiting(self, owner: Any, name: str) -> Callable[..., Any]:
        """What limits the method `name` of a class, by one guard for as long as it exists."""
        known = self._of_methods.get((owner, name))
        if known is None:
            # Named by the class, not by whichever worker meets it first.
            named = SimpleNamespace(
                __module__=owner.__module__, __qualname__=f"{owner.__qualname__}.{name}"
            )
            known = self._decorator.together(named)
            known = self._of_methods.setdefault((owner, name), known)
        return known


def _is_bound(view: Any) -> bool:
    """Whether method_decorator() has made `view` of a method."""
    return isinstance(view, functools.partial) and inspect.ismethod(view.func)


def _is_async(view: Any) -> bool:
    return issubclass(view, View) and bool(view.view_is_async)


def _awaiting(dispatch: Any) -> Any:
    """The `dispatch` of a class of async views, as the async function that it is not."""

    @functools.wraps(dispatch)
    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        result = dispatch(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return awaiting
