"""Checks of the numbers that callers give."""

from __future__ import annotations

from tidegate.limiter.errors import ArgumentTypeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["check_int", "check_number"]


def check_int(what: str, given: Any, expected: str = "an int") -> int:
    """Returns `given`. Raises ArgumentTypeError unless it is an int; a bool is none."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise _wrong_type(what, given, expected)
    return given


def check_number(what: str, given: Any, expected: str = "seconds as int or float") -> float:
    """Returns `given`. Raises ArgumentTypeError unless it is an int or a float; a bool is none."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise _wrong_type(what, given, expected)
    return given


def _wrong_type(what: str, given: Any, expected: str) -> ArgumentTypeError:
    kind = type(given).__name__
    return ArgumentTypeError(f"{what} is {given!r} of type {kind}; expected {expected}")
