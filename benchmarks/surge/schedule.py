"""Who asks for what, and when: the arrivals of a surge, the same in every run of a seed.

Two kinds of riders. A few panic: they tap without a pause, each at random instants, from when
they join until the surge is over. The others are calm: each asks for a fare, and for a ride some
seconds later. Arrivals do not wait for answers (an open model): people who are not answered tap
all the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

RIDE = "/api/rides/request"
FARE = "/api/fares/estimate"

# A calm rider asks for the ride so long after the fare, in seconds.
_THINKS = 3.0


class Arrival(NamedTuple):
    """A request that a rider sends `at` so many seconds after the beginning."""

    at: float
    rider: str
    path: str


@dataclass(frozen=True)
class Surge:
    """The size of a surge. Riders who panic join one after the other within `ramp` seconds."""

    seconds: float = 25.0
    ramp: float = 12.0
    rate: float = 375.0  # arrivals a second, when all have joined
    panicking: int = 32
    calm: float = 3.2  # riders a second, each of whom asks twice
    fares: float = 0.25  # the share of fares among the requests of those who panic
    patience: float = 40.0  # seconds after which a rider gives up
    seed: int = 1
    # The matching service: how many jobs it works on at once, and how long each takes.
    pool: int = 4
    job_seconds: float = 0.1

    @property
    def capacity(self) -> float:
        """Jobs a second that the matching service can do."""
        return self.pool / self.job_seconds


def is_calm(rider: str) -> bool:
    """Whether a rider asks once for each: such a rider never exceeds a limit with a burst."""
    return rider.startswith("calm-")


def arrivals(surge: Surge) -> list[Arrival]:
    """All arrivals of a surge, in the order of time."""
    return sorted([*_panicking(surge), *_calm(surge)])


def _panicking(surge: Surge) -> Iterator[Arrival]:
    draw = random.Random(f"panicking {surge.seed}")
    each = (surge.rate - 2 * surge.calm) / surge.panicking
    for number in range(surge.panicking):
        at = surge.ramp * (number + 0.5) / surge.panicking
        while at < surge.seconds:
            path = FARE if draw.random() < surge.fares else RIDE
            yield Arrival(at, f"panic-{number}", path)
            at += draw.expovariate(each)


def _calm(surge: Surge) -> Iterator[Arrival]:
    draw = random.Random(f"calm {surge.seed}")
    number, at = 0, draw.expovariate(surge.calm)
    while at < surge.seconds:
        yield Arrival(at, f"calm-{number}", FARE)
        if at + _THINKS < surge.seconds:
            yield Arrival(at + _THINKS, f"calm-{number}", RIDE)
        number, at = number + 1, at + draw.expovariate(surge.calm)
