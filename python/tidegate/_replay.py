"""What would these limits have said to these requests?"""

from __future__ import annotations

from tidegate import _core
from tidegate._errors import ArgumentTypeError
from tidegate._limit import as_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from tidegate._limit import LimitLike

__all__ = ["replay"]


def replay(
    limit: LimitLike,
    keys: Iterable[str | bytes],
    times_ns: Iterable[int],
    costs: Iterable[int] | None = None,
    *,
    algorithm: str = "token-bucket",
) -> list[_core.Decision]:
    """Takes requests in the order given through the steps that the stores take.

    `keys`, `times_ns` (nanoseconds since the epoch) and `costs` (1 each where it is not
    given) are of one length; so is the list of decisions that is returned. The state is
    exact and unbounded. Raises ConfigurationError for lengths that differ, keys, costs
    and times that are none, and limits that cannot be read. Pure.
    """
    return _core.replay(
        as_limits(limit, algorithm),
        _listed("keys", keys, "str or bytes"),
        _listed("times", times_ns, "int"),
        None if costs is None else _listed("costs", costs, "int"),
    )


def _listed(what: str, given: Iterable[Any], items: str) -> list[Any]:
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise ArgumentTypeError(
            f"the {what} are {repr(given)[:80]} of type {type(given).__name__}; expected a "
            f"list of {items}"
        )
    return list(given)
