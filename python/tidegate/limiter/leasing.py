"""Which limits a storage leases."""

from __future__ import annotations

from typing import NamedTuple

from tidegate import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate._core import Limit, Store

__all__ = ["Leasing", "leasing_of"]


class Leasing(NamedTuple):
    """Whether units of a limit are leased, so that calls need not ask Redis."""

    limit: Limit
    seconds: float
    """For how long, twice that where calls are few; 0 if the storage decides of each call."""
    why: str
    """Why it does; empty if units are leased."""

    def __str__(self) -> str:
        if self.why:
            return f"asked for each call: {self.why}"
        return f"leased for {self.seconds * 1000:g} ms, twice that for few calls"


def leasing_of(storage: Store, limits: Sequence[Limit]) -> tuple[Leasing, ...]:
    """Returns how `storage` leases units of `limits`, which decide about a call together.

    If it leases none of one of them, it decides of each call, whatever the others are.
    """
    if not isinstance(storage, _core.RedisStore):
        return tuple(Leasing(limit, 0.0, "the storage is no Redis") for limit in limits)
    each = [Leasing(limit, *storage._lease_of(limit)) for limit in limits]
    strict = next((one.limit for one in each if one.why), None)
    if strict is None:
        return tuple(each)
    beside = f"{strict}, which the same call is charged to, is asked for each call"
    return tuple(one if one.why else one._replace(seconds=0.0, why=beside) for one in each)
