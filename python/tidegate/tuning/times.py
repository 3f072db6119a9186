"""The times of requests: nanoseconds since the epoch, in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.replay import LAST_NS, instant_ns, mistaken_unit, out_of_range
from tidegate.tuning.columns import ArrowColumn, is_missing, opened, shown

__all__ = ["Times", "as_times"]

_ACCEPTED = "nanoseconds since the epoch as ints, or datetimes with a time zone"
# Units of datetime64, and how many of each make a second.
_IN_A_SECOND = {
    "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18,
}  # fmt: skip


@dataclass
class Times:
    """Checked times, and their order."""

    ns: NDArray[np.int64]
    order: NDArray[np.int64] | None
    """Positions in a stable order by time; None if the times are in order."""


def as_times(times: Any) -> Times:
    """Returns `times` as int64. Raises ConfigurationError for an invalid or out-of-range time.

    Ints that look like seconds, milliseconds or microseconds of the present are errors too.
    """
    column = opened(times, "times", _ACCEPTED)
    may_mistake = False
    if isinstance(column, ArrowColumn):
        ns, may_mistake = _of_arrow(column), column.kind == "ints"
    elif isinstance(column, list):
        may_mistake = any(type(time) is int for time in column)
        ns = _of_list(column)
    elif column.dtype.kind == "M":
        ns = _of_datetime64(column)
    elif column.dtype.kind in "iu":
        ns, may_mistake = _of_ints(column), True
    elif column.size == 0:
        ns = np.empty(0, np.int64)
    else:
        raise ArgumentTypeError(
            f"the times are an array of {column.dtype}, with {shown(column[0].item())} at index "
            f"0; expected {_ACCEPTED} (of float seconds: (times * 1e9).astype('int64'))"
        )
    bad, in_order, first, last, in_part = _core.scan_times(ns, LAST_NS)
    if bad >= 0:
        raise out_of_range(bad, ns[bad])
    mistake = mistaken_unit(first, last, in_part) if may_mistake and len(ns) else None
    if mistake is not None:
        raise ConfigurationError(
            f"{mistake} (made-up times that are nanoseconds: as datetime64[ns])"
        )
    order = None if in_order else np.argsort(ns, kind="stable").astype(np.int64, copy=False)
    return Times(ns, order)


def _of_ints(column: NDArray[Any]) -> NDArray[np.int64]:
    if column.dtype == np.uint64:
        wrong = column > LAST_NS
        if wrong.any():
            at = int(wrong.argmax())
            raise out_of_range(at, column[at])
    return np.ascontiguousarray(column, dtype=np.int64)


def _of_datetime64(column: NDArray[Any]) -> NDArray[np.int64]:
    unit, count = np.datetime_data(column.dtype)
    missing = np.isnat(column)
    if missing.any():
        raise ConfigurationError(
            f"the time at index {int(missing.argmax())} is NaT; expected {_ACCEPTED}"
        )
    if unit == "generic":
        return np.empty(0, np.int64)  # an empty array
    if unit not in _IN_A_SECOND:
        first, last = np.array(["1970", "2117"]).astype(f"datetime64[{unit}]")
        far = (column < first) | (column > last)
        if far.any():  # a conversion from seconds might overflow
            at = int(far.argmax())
            raise out_of_range(at, column[at])
        column, unit, count = column.astype("datetime64[s]"), "s", 1
    values = column.view(np.int64)
    each = _IN_A_SECOND[unit]
    # Checked before the multiplication, so that it cannot overflow.
    most = LAST_NS * each // 10**9 // count
    wrong = (values < 0) | (values > most)
    if wrong.any():
        at = int(wrong.argmax())
        raise out_of_range(at, column[at])
    if each <= 10**9:
        factor = count * (10**9 // each)
        return np.ascontiguousarray(values if factor == 1 else values * factor)
    return values * count // (each // 10**9)


def _of_arrow(column: ArrowColumn) -> NDArray[np.int64]:
    if column.null_at >= 0:
        raise ConfigurationError(
            f"the time at index {column.null_at} is missing; expected {_ACCEPTED}"
        )
    if column.kind == "ints":
        return _of_ints(column.items.view(np.uint64) if column.detail else column.items)
    if column.kind == "texts":
        raise ArgumentTypeError(f"the times are texts; expected {_ACCEPTED}")
    unit, _, zone = column.detail.partition(":")
    if not zone:
        raise ConfigurationError(
            "the times are timestamps without a time zone; expected some with one, such as "
            f"column.dt.replace_time_zone('UTC') of polars, or {_ACCEPTED}"
        )
    name = {"s": "s", "m": "ms", "u": "us", "n": "ns"}[unit]
    return _of_datetime64(column.items.view(f"datetime64[{name}]"))


def _of_list(items: list[Any]) -> NDArray[np.int64]:
    if all(type(item) is int for item in items):
        for at, item in enumerate(items):
            if not 0 <= item <= LAST_NS:
                raise out_of_range(at, item)
        return np.array(items, dtype=np.int64)
    return np.array([_item(at, item) for at, item in enumerate(items)], dtype=np.int64)


def _item(at: int, item: Any) -> int:
    if is_missing(item):
        raise ConfigurationError(f"the time at index {at} is {shown(item)}; expected {_ACCEPTED}")
    if isinstance(item, datetime):
        try:
            ns = instant_ns(item)
        except ConfigurationError as error:
            raise ConfigurationError(f"at index {at} {error}") from None
    elif isinstance(item, np.datetime64):
        try:
            return int(_of_datetime64(np.array([item]))[0])
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace("index 0", f"index {at}")) from None
    elif isinstance(item, (int, np.integer)) and not isinstance(item, (bool, np.bool_)):
        ns = int(item)
    else:
        raise ArgumentTypeError(f"the time at index {at} is {shown(item)}; expected {_ACCEPTED}")
    if not 0 <= ns <= LAST_NS:
        raise out_of_range(at, item)
    return ns
