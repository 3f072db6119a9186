"""Checks of the numbers that callers give."""

from __future__ import annotations

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["check_int", "check_number"]


def check_int(what: str, given: Any, expected: str = "an int", *, least: int | None = None) -> int:
    """Returns `given`.

    Raises ArgumentTypeError unless it is an int, and ConfigurationError if it is below `least`. A
    bool is no int.
    """
    _check(what, given, int, expected, least)
    units: int = given
    return units


def check_number(
    what: str,
    given: Any,
    expected: str = "seconds as int or float",
    *,
    least: float | None = None,
) -> float:
    """Like check_int(), but accepts floats too. A NaN is below any `least`."""
    _check(what, given, (int, float), expected, least)
    number: float = given
    return number


def _check(what: str, given: Any, kinds: Any, expected: str, least: float | None) -> None:
    if isinstance(given, bool) or not isinstance(given, kinds):
        kind = type(given).__name__
        raise ArgumentTypeError(f"{what} is {given!r} of type {kind}; expected {expected}")
    if least is not None and not given >= least:
        raise ConfigurationError(f"{what} is {given!r}; expected {expected}")
