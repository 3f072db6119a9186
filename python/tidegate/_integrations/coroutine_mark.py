"""Marking a function as one whose result is awaited, though it is not async."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Callable

__all__ = ["mark_coroutine_function"]


def mark_coroutine_function(function: Callable[..., Any]) -> None:
    """Has frameworks await what `function` returns."""
    mark = getattr(inspect, "markcoroutinefunction", None)
    if mark is not None:
        mark(function)
        return
    # What asyncio.iscoroutinefunction() looks for, before Python 3.12.
    setattr(function, "_is_coroutine", getattr(asyncio.coroutines, "_is_coroutine"))  # noqa: B009, B010
