"""Was this function handed to a web framework already?

A decorator that stands outside `@app.get` wraps a function which nobody will call: the
framework holds the bare one, and the limit is silently no limit. That must not happen.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Callable

__all__ = ["reference_count", "registration"]


def reference_count(function: Callable[..., Any]) -> int:
    """How many references there are to `function`, those of this call included."""
    return sys.getrefcount(function)


class _Probe:
    """A decorator of the shape of the one that asks: an object that is called."""

    def __call__(self, function: Callable[..., Any]) -> int:
        return reference_count(function)


@_Probe()
def _FRESH() -> None:
    """No function any more, but the count of one that nobody but its decorator has seen."""


def registration(function: Callable[..., Any], references: int) -> str | None:
    """What has `function` for a route, in words; None where nothing has.

    `references` is what reference_count() tells in the `__call__` of the decorator. A function
    that was registered has more of them than a fresh one, so that only suspects cost a search
    of the heap (some tens of milliseconds).
    """
    assert isinstance(_FRESH, int)
    if references <= _FRESH:
        return None
    kinds = tuple(
        getattr(sys.modules[module], name)
        for module, name in (
            ("starlette.routing", "Route"),
            ("starlette.routing", "WebSocketRoute"),
            ("flask.sansio.app", "App"),
            ("flask.app", "Flask"),
            ("flask.blueprints", "Blueprint"),
        )
        if hasattr(sys.modules.get(module), name)
    )
    if not kinds:
        return None
    for candidate in gc.get_objects():
        # Not isinstance(): a proxy answers for what it stands for, or raises.
        if issubclass(type(candidate), kinds) and _holds(candidate, function):
            return type(candidate).__name__
    return None


def _holds(candidate: Any, function: Callable[..., Any]) -> bool:
    """Whether a route, an application or a blueprint would call `function` itself."""
    attributes = vars(candidate)
    if attributes.get("endpoint") is function:
        return True
    if any(view is function for view in attributes.get("view_functions", {}).values()):
        return True
    # A blueprint keeps what it was told as closures, for the application it will join.
    return any(
        _content(cell) is function
        for deferred in attributes.get("deferred_functions", ())
        for cell in getattr(deferred, "__closure__", None) or ()
    )


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
