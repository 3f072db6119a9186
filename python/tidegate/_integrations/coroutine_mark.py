"""Marks a plain function as one whose result must be awaited."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Callable

__all__ = ["mark_coroutine_function"]


def mark_coroutine_function(function: Callable[..., Any]) -> None:
    """Has frameworks await the result of `function`."""
    mark = getattr(inspect, "markcoroutinefunction", None)
    if mark is not None:
        mark(function)
        return
    # The mark that asyncio.iscoroutinefunction() reads before Python 3.12.
    setattr(function, "_is_coroutine", getattr(asyncio.coroutines, "_is_coroutine"))  # noqa: B009, B010
