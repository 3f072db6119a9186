"""Reads columns in the forms that callers have: NumPy, pandas, polars, Arrow, any iterable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

__all__ = ["ArrowColumn", "as_costs", "check_length", "is_missing", "opened", "shown"]


@dataclass
class ArrowColumn:
    """A column that the core has read from Arrow."""

    kind: str
    """``texts``, ``ints`` or ``times``."""
    items: NDArray[Any]
    """The values; for texts, their codes."""
    detail: Any
    """Names of texts, whether ints are unsigned, or the unit and zone of times (``n:UTC``)."""
    null_at: int
    """The position of the first null, or -1."""


Column = Union[NDArray[Any], ArrowColumn, list[Any]]


def opened(column: Any, what: str, accepted: str) -> Column:
    """Returns `column` in one of three forms; errors call it `what`. Raises ArgumentTypeError."""
    if isinstance(column, np.ndarray):
        if column.ndim != 1:
            raise ConfigurationError(
                f"the {what} have {column.ndim} dimensions; expected a column of one"
            )
        if isinstance(column, np.ma.MaskedArray):
            return column.tolist()  # type: ignore[no-any-return]
        if column.dtype.kind in "OT":  # T is the kind of texts of variable length
            return column.tolist()  # type: ignore[no-any-return]
        native = column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))
        return np.ascontiguousarray(native)
    if isinstance(column, (str, bytes, bytearray, dict, set, frozenset)) or not (
        hasattr(column, "__iter__") or _is_arrow(column)
    ):
        raise ArgumentTypeError(
            f"the {what} are {shown(column)}; expected {accepted}, as an array, a column of "
            "pandas, polars or Arrow, or a list"
        )
    if type(column).__module__.partition(".")[0] == "pandas":
        return _of_pandas(column, what, accepted)
    if _is_arrow(column):
        return ArrowColumn(*_core.arrow_column(column))
    return list(column)


def _is_arrow(column: Any) -> bool:
    return hasattr(column, "__arrow_c_stream__") or hasattr(column, "__arrow_c_array__")


def _of_pandas(column: Any, what: str, accepted: str) -> Column:
    dtype = getattr(column, "dtype", None)
    if dtype is None:
        raise ArgumentTypeError(
            f"the {what} are a {type(column).__name__} of pandas; expected one column, such as "
            "frame['key']"
        )
    if hasattr(dtype, "pyarrow_dtype"):
        return ArrowColumn(*_core.arrow_column(column.array.__arrow_array__()))
    if getattr(dtype, "tz", None) is not None:
        # The values without their zone are in UTC.
        plain = column.to_numpy(dtype=f"datetime64[{dtype.unit}]")
    elif hasattr(dtype, "na_value") and column.isna().any():
        plain = column.to_numpy(dtype=object)  # otherwise pandas turns ints into floats
    else:
        plain = column.to_numpy()
    return opened(plain, what, accepted)


def is_missing(item: Any) -> bool:
    """Whether `value` is None, NaN, or a missing value of pandas or NumPy."""
    if item is None or type(item).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(item, (float, np.floating, np.datetime64)) and bool(item != item)


def shown(given: object) -> str:
    """Describes a value and its type, shortened to fit a message."""
    return f"{repr(given)[:80]} of type {type(given).__name__}"


def check_length(size: int, what: str, expected: int) -> None:
    """Raises ConfigurationError unless there is one of `what` for each time."""
    if size != expected:
        raise ConfigurationError(
            f"{size} {what} were given with {expected} times; expected as many of them as times"
        )


def as_costs(costs: Any, size: int, what: str = "cost", least: int = 1) -> NDArray[np.int64] | None:
    """Returns `costs` as int64. Raises ConfigurationError for one that is not an int from `least`
    up; `what` names it."""
    if costs is None:
        return None
    column = opened(costs, f"{what}s", "ints")
    if isinstance(column, ArrowColumn):
        if column.kind != "ints":
            raise ArgumentTypeError(f"the {what}s are {column.kind} of Arrow; expected ints")
        if column.null_at >= 0:
            _refuse_cost(column.null_at, None, what, least)
        array = column.items.view(np.uint64) if column.detail else column.items
    elif isinstance(column, list):
        array = _listed(column, what, least)
    else:
        array = column
    check_length(len(array), f"{what}s", size)
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"the {what}s are of type {array.dtype}"
            + (f", with {array[0]!r} at index 0" if size else "")
            + f"; expected ints from {least} up"
        )
    wrong = (array < least) | (array > np.iinfo(np.int64).max)
    if wrong.any():
        at = int(wrong.argmax())
        _refuse_cost(at, int(array[at]), what, least)
    return np.ascontiguousarray(array, dtype=np.int64)


def _listed(costs: list[Any], what: str, least: int) -> NDArray[np.int64]:
    for at, cost in enumerate(costs):
        if isinstance(cost, (bool, np.bool_)) or not isinstance(cost, (int, np.integer)):
            _refuse_cost(at, cost, what, least)
        if not least <= cost < 2**63:
            _refuse_cost(at, cost, what, least)
    return np.array(costs, dtype=np.int64)


def _refuse_cost(at: int, cost: object, what: str, least: int) -> None:
    kind = ConfigurationError if isinstance(cost, int) else ArgumentTypeError
    raise kind(
        f"the {what} at index {at} is {shown(cost)}; expected an int from {least} to 2**63 - 1"
    )
