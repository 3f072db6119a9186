"""What would these limits have said to these requests?"""

from __future__ import annotations

from tidegate import _core
from tidegate._errors import ArgumentTypeError
from tidegate._limit import as_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

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
    if isinstance(keys, (str, bytes)):
        raise ArgumentTypeError(f"the keys are {keys!r:.80}; accepted is a list of str or bytes")
    return _core.replay(
        as_limits(limit, algorithm),
        list(keys),
        list(times_ns),
        None if costs is None else list(costs),
    )
