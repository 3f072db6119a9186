"""What a limit does to the requests of a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate import _core
from tidegate.limiter.limit import Limit
from tidegate.tuning.frame import Frame
from tidegate.tuning.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tidegate.tuning.requests import Requests

__all__ = ["Effect", "effect_columns", "effect_of", "effects_frame", "texts"]

_SHARES = ("refused", "refused_share", "clients_touched", "clients_touched_share")
_COLUMNS = ("requests", "refused", "refused_share", "clients", *_SHARES[2:])


@dataclass(frozen=True)
class Effect:
    """How many requests a limit refuses, and how many clients it refuses at least once."""

    limit: Limit
    requests: int
    refused: int
    clients: int
    clients_touched: int

    @property
    def refused_share(self) -> float:
        """The share of the requests that is refused, from 0 to 1."""
        return self.refused / self.requests if self.requests else 0.0

    @property
    def clients_touched_share(self) -> float:
        """The share of the clients that is refused at least once, from 0 to 1."""
        return self.clients_touched / self.clients if self.clients else 0.0


def effect_of(limit: Limit, requests: Requests, concerned: NDArray[np.bool_] | None) -> Effect:
    """Replays `limit`. The caller knows that it can only refuse the clients `concerned`."""
    part = requests if concerned is None else requests.of_clients(concerned)
    refused = touched = 0
    if len(part):
        allowed = part.replay(limit).allowed
        _, passed = _core.count_by_key(part.codes, part.clients, allowed.view(np.uint8))
        refusals = part.counts() - passed
        refused, touched = int(refusals.sum()), int(np.count_nonzero(refusals))
    return Effect(limit, len(requests), refused, requests.clients, touched)


def effects_frame(effects: Sequence[Effect]) -> Frame:
    """Returns a Frame with one row for each effect."""
    limits = [effect.limit for effect in effects]
    return Frame(
        {
            "limit": texts(str(limit) for limit in limits),
            "count": np.array([limit.count for limit in limits], np.int64),
            "burst": np.array([limit.capacity for limit in limits], np.int64),
            **effect_columns(effects, _SHARES),
        }
    )


def effect_columns(
    effects: Sequence[Effect], names: Iterable[str] = _COLUMNS
) -> dict[str, NDArray[Any]]:
    """Returns the columns of numbers, with one item for each effect."""
    return {name: np.array([getattr(effect, name) for effect in effects]) for name in names}


def texts(items: Iterable[str]) -> Keys:
    """Returns a column of texts."""
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(item, len(numbers)) for item in items]
    return Keys(np.array(codes, np.uint32), list(numbers))
