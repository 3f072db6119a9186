"""What is said of reservations that cannot be settled or raised."""

from __future__ import annotations

from tidegate.limiter.errors import ReservationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["INHERITED", "NOT_KNOWN", "NOT_OPEN", "log_left", "settled_before"]

NOT_KNOWN = (
    "the reservation is not known (any more): its ttl is over, or the storage has lost it, and it "
    "stays at its estimate or was given back, as on_expiry says, or it was settled a while ago; "
    "expected a commit within its ttl. charge() charges what was used beyond the estimate"
)
INHERITED = (
    "the reservation is of the process that this one was forked from, and has no token; expected "
    "that process to settle it, or a token that was read before the fork"
)
NOT_OPEN = (
    "the reservation is not open, and was not raised; expected a call before it is settled and "
    "within its ttl"
)


def settled_before(at: Any, actual: Any) -> ReservationError:
    """Returns the error of a commit of `actual` units, where the reservation was settled `at`
    others. Of rules, `actual` is None for a release, which gives back the request too; `at` may
    then be that request, and is equal for a commit of nothing that follows a release."""
    if actual is None:
        how = "by a commit; expected no release after it"
    elif at == actual:
        how = "by a release; expected no commit after it"
    else:
        how = f"at {at} units; expected that, or no second commit, and not one of {actual}"
    return ReservationError(f"the reservation was settled before, {how}", settled=True)


def log_left(error: ReservationError) -> None:
    """Logs that a block was left whose reservation could not be settled."""
    # Another process that had the token has settled it: that is what tokens are for.
    if not error.settled:
        import logging  # few programs need it, and it takes long to import

        logging.getLogger("tidegate").warning("a reservation was left unsettled: %s", error)
