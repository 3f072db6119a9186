"""What a log does not show, and when it is too small to show much."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.limiter.errors import ArgumentTypeError
from tidegate.tuning.columns import ArrowColumn, check_length, opened

if TYPE_CHECKING:
    from tidegate.tuning.interval import Days
    from tidegate.tuning.promise import Promise
    from tidegate.tuning.requests import Requests

__all__ = ["notes_on", "refused_then", "warnings_on"]

_FEW_CLIENTS = 30
_FEW_EXCEPTIONS = 10
_FEW_PERIODS = 10
_LOOKED_AT = 200


def warnings_on(requests: Requests, promise: Promise, period: float) -> tuple[str, ...]:
    """Returns warnings about too few clients or too short a log."""
    warnings = []
    clients = requests.clients
    exceptions = promise.share * clients
    if promise.of == "clients" and exceptions < 1:
        warnings.append(
            f"{100 * promise.share:g} % of the {clients:,} clients is less than one: the limit is "
            "the greatest need in the log, and what other clients need is not known."
        )
    elif promise.of == "clients" and exceptions < _FEW_EXCEPTIONS:
        warnings.append(
            f"{100 * promise.share:g} % of the {clients:,} clients is {promise.most(clients)}: "
            "the limit depends on the habits of a few."
        )
    if clients < _FEW_CLIENTS:
        warnings.append(f"The log has few clients, {clients}; expected {_FEW_CLIENTS} or more.")
    seconds = (int(requests.ns[-1]) - int(requests.ns[0])) / 1e9
    if seconds < _FEW_PERIODS * period:
        warnings.append(
            f"The log spans {seconds:,.4g} s; expected {_FEW_PERIODS} periods of {period:,.4g} s "
            "or more."
        )
    return tuple(warnings)


def notes_on(requests: Requests, days: Days, refused: int | None) -> tuple[str, ...]:
    """Notes on what these requests do not show. `refused` counts status 429; None means unknown."""
    notes = []
    if refused is None:
        notes.append(
            "Whether requests were refused when the log was written is not known here (status=): "
            "clients that were refused may want more than the log shows."
        )
    elif refused:
        notes.append(
            f"{refused:,} of the requests ({100 * refused / len(requests):.3g} %) were answered "
            "with 429, so the log shows the demand only in part: refused clients may have wanted "
            "more than it shows, and clients that retried may have wanted less."
        )
    if _are_addresses(requests.names):
        notes.append(
            "The clients are addresses: several people may share one, and one person may have "
            "several."
        )
    if days.count == 1:
        notes.append("The log covers one day: how days differ is not known.")
    elif days.count < 7:
        notes.append(f"The log covers {days.count} days, less than a week: weekdays may differ.")
    if not (requests.ns % 10**9).any():
        notes.append(
            "All times are whole seconds: requests within one second count as one instant, and a "
            "limit can come out higher than necessary."
        )
    notes.append(
        "The limit has no room for growth, and none for clients that change: backtest it, and try "
        "it in shadow."
    )
    return tuple(notes)


def refused_then(status: Any, size: int) -> int | None:
    """The number of requests with the status 429; None without statuses."""
    if status is None:
        return None
    column = opened(status, "status", "ints such as 200 and 429")
    items: Any = column.items if isinstance(column, ArrowColumn) else np.asarray(column)
    check_length(len(items), "statuses", size)
    if items.dtype.kind not in "iuf":
        raise ArgumentTypeError(
            f"the status is a column of {items.dtype}; expected ints such as 200 and 429"
        )
    return int(np.count_nonzero(items == 429))


def _are_addresses(names: Any) -> bool:
    """Whether almost all of the first names are addresses."""
    some = list(names[:_LOOKED_AT])
    return sum(map(_is_address, some)) > 0.9 * len(some)


def _is_address(name: Any) -> bool:
    if isinstance(name, bytes):
        name = name.decode("latin-1")
    if not isinstance(name, str):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
