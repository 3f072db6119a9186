"""Reservations: a part of the stubs of tidegate._core, which has them when it runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate._stubs.limits import Decision

class LiveReservation:
    """What was reserved in memory, and only this object knows."""

    decision: Decision
    """The decision on the estimate."""
    _owner: Any
    _whose: Any
    _is_live: bool
    _is_refused: bool
    _is_settled: bool
    _settled_at: int
    @property
    def _recorded(self) -> tuple[bytes, int, tuple[tuple[int, int], ...]]: ...
    @property
    def _is_of_another_process(self) -> bool: ...
    def __bool__(self) -> bool: ...
    def commit(
        self, actual: int | Sequence[int] | None = None, *, usage: Mapping[str, int] | None = None
    ) -> Decision:
        """Makes `actual` what the reservation has charged: charges the difference in full, as
        charge() does, or gives it back as far as it still counts. By rules with a `usage`, what
        that costs: ``commit(usage={"input": 300, "output": 20})``.

        Of a plan, `actual` is a list with one for each limiter. Returns the decision of the limits
        afterwards, whose `charged` is the least that a limit has charged in all; it is `degraded`
        if the storage did not answer: then call it again, as leaving the ``with`` block does. A
        second commit of the same number changes nothing. Raises ReservationError if the reservation
        was refused, was settled at another number, or is not known (any more): nothing is changed.
        """

    def release(self) -> Decision:
        """Gives the estimate back, like a commit of 0; rules that count requests forget it too."""

    def extend(self, more: int | Sequence[int]) -> Decision:
        """Reserves `more` units in addition, all or none.

        Returns the decision: refused if there is no room, so that a stream can stop; the
        reservation is then as it was. Raises ReservationError if it is not open, and
        ConfigurationError for a sliding log.
        """

    def _usage_cost(self) -> Any: ...
    def _record(self, id: bytes, /) -> None: ...
