"""What one guard charges for a request, and what of it is given back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from tidegate._core import Decision, Limit
    from tidegate._guard import Guard
    from tidegate._limiter import Limiter
    from tidegate._terms import Terms

__all__ = ["Charge", "Key", "outstanding"]

Key = Union[str, bytes]

# Another caller may come in between a look and the charge; not so often that it pays to go on.
_MOST_LOOKS = 4

_BUCKETS = ("token-bucket", "leaky-bucket")


class Charge:
    """What a guard wants charged for a request; a key of None stands for a refusal."""

    __slots__ = ("_since", "cost", "guard", "key", "terms")

    def __init__(self, guard: Guard, terms: Terms, key: Key | None, cost: int) -> None:
        self.guard = guard
        self.terms = terms
        self.key = key
        self.cost = cost
        # Each limit with the instant at which it was as if untouched again, and what let it in.
        self._since: tuple[tuple[Limiter, int, Decision], ...] = ()

    async def undo(self, blocking: bool) -> None:
        """Gives it back, before anything else could come of the request."""
        assert self.key is not None
        await _refund(self.terms.limiter, self.key, self.cost, blocking)

    async def remember(
        self, decided_ns: int, decision: Decision, blocking: bool, *, is_alone: bool
    ) -> None:
        """Notes what give_back() has to know. `decision` let the request pass, as one on this
        charge alone or on several."""
        assert self.key is not None
        for limiter in self.terms.singles:
            # It tells of the limit that binds, which is this one where there is no other.
            is_only = is_alone and limiter is self.terms.limiter
            found = decision if is_only else await _peek(limiter, self.key, blocking)
            until_ns = decided_ns + round(found.reset_after * 1e9)
            self._since += ((limiter, until_ns, decision),)

    async def give_back(self, cost: int, blocking: bool) -> None:
        """Gives back `cost` units of it, or as many of them as still count."""
        assert self.key is not None
        now_ns = self.terms.limiter._now_ns()
        for limiter, until_ns, admitted in self._since:
            limit, left_ns = limiter.limits[0], until_ns - now_ns
            if limit.algorithm == "sliding-log":
                await _release(limiter, self.key, cost, admitted, blocking)
                continue
            units = outstanding(limit, left_ns, cost)
            if units < cost and left_ns > 0 and limit.algorithm in _BUCKETS:
                found = await _peek(limiter, self.key, blocking)
                # Where nobody came since then, all of it can: none is more than untouched.
                if found.reset_after * 1e9 < left_ns + limit.period_ns / limit.count / 2:
                    units = cost
            if units > 0:
                await _refund(limiter, self.key, units, blocking)

    async def charge_more(self, cost: int, blocking: bool) -> None:
        """Charges `cost` units beyond it, or as many of them as are left."""
        assert self.key is not None
        limiter = self.terms.limiter
        for _ in range(_MOST_LOOKS):
            # Asked first, since a refusal would count as one of a request.
            found = (
                limiter.peek(self.key, cost)
                if blocking
                else await limiter.peek_async(self.key, cost)
            )
            cost = cost if found.allowed else min(cost - 1, found.remaining)
            if cost <= 0:
                return
            found = (
                limiter.hit(self.key, cost) if blocking else await limiter.hit_async(self.key, cost)
            )
            if found.allowed:
                return
            cost = min(cost - 1, found.remaining)


def outstanding(limit: Limit, left_ns: int, units: int) -> int:
    """How many of `units` that were charged can be given back without minting any.

    `left_ns` is how long the limit, as the charge left it, takes from now on to be as if
    untouched. What has run out is no longer part of its state, and to give that back would
    let through what others may have charged since.
    """
    if limit.algorithm == "sliding-window":
        left_ns -= limit.period_ns
    if left_ns <= 0:
        return 0
    if limit.algorithm in _BUCKETS:
        return min(units, left_ns * limit.count // limit.period_ns)
    return units


async def _peek(limiter: Limiter, key: Key, blocking: bool) -> Decision:
    return limiter.peek(key) if blocking else await limiter.peek_async(key)


async def _refund(limiter: Limiter, key: Key, cost: int, blocking: bool) -> None:
    if blocking:
        limiter.refund(key, cost)
    else:
        await limiter.refund_async(key, cost)


async def _release(
    limiter: Limiter, key: Key, cost: int, admitted: Decision, blocking: bool
) -> None:
    """Takes out of a log what was written into it then."""
    loops = limiter._loops
    if blocking or loops is None:
        limiter._release(key, cost, admitted)
    else:
        await loops.ask(limiter, loops.RELEASE, key, cost, admitted)
