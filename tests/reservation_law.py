"""A simulation of streams whose costs are known when they end, and law 17 as it is stated.

*Owed.* Over any interval: used <= burst + rate x time + what the calls in flight use beyond their
estimates.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Callable

import tidegate as tg

STREAMS = 100
COUNT, PERIOD = 6000, 60  # units a minute
START = 1_700_000_000 * 10**9
ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]
GUESSES: dict[str, Callable[[int], int]] = {
    "ten times too low": lambda real: real // 10,
    "right": lambda real: real,
    "ten times too high": lambda real: 10 * real,
    "adversarial": lambda real: 1 if real > 60 else 20 * real,
}


class Meter:
    """The most, over all intervals that end now, of what was used in them beyond the rate."""

    def __init__(self, algorithm: str) -> None:
        # A fixed window has its count at its begin; other limits have theirs little by little.
        self.is_by_windows = algorithm == "fixed-window"
        self.level = Fraction(0)
        self.at_ns = START

    def add(self, now_ns: int, units: int) -> None:
        if self.is_by_windows:
            period_ns = PERIOD * 10**9
            gone = Fraction((now_ns // period_ns - self.at_ns // period_ns) * COUNT)
        else:
            gone = Fraction((now_ns - self.at_ns) * COUNT, PERIOD * 10**9)
        self.level = max(Fraction(0), self.level - gone) + units
        self.at_ns = now_ns


@dataclass
class Call:
    estimate: int
    real: int
    reservation: tg.Reservation
    fate: str  # commit, by token, crash; or stream, which reserves more as it goes on

    @property
    def beyond(self) -> int:
        """What it uses beyond its estimate, and is known when it ends."""
        return max(0, self.real - self.estimate)


class Simulation:
    """Streams that each make one call after the other, whose estimates GUESSES[guess] makes of the
    units that a call will use.

    A call counts when it is admitted, with all that it will use; a stream counts what it adds when
    that is admitted. Nobody ever knows what a call that crashed has used beyond its estimate: it
    counts up to that.
    """

    def __init__(
        self, algorithm: str, guess: str, storage: str, *, seed: int, seconds: int = 600
    ) -> None:
        self.random = random.Random(seed)
        self.clock = tg.ManualClock(START)
        limit = tg.Limit(COUNT, float(PERIOD), algorithm=algorithm, max_debt=math.inf)
        self.limiter = tg.Limiter(limit, storage=storage, clock=self.clock)
        self.fates = ["commit", "commit", "by token"]
        if algorithm != "sliding-log":  # whose reservations are not raised
            self.fates.append("stream")
        self.guess, self.seconds = GUESSES[guess], seconds
        self.granted = COUNT / PERIOD * seconds
        self.in_flight: dict[int, Call] = {}
        self.meter = Meter(algorithm)
        self.used = 0
        self.worst = 0.0

    def run(self) -> None:
        events = [(START + self.random.randrange(10**9), number) for number in range(STREAMS)]
        heapq.heapify(events)
        while events[0][0] < START + self.seconds * 10**9:
            at, number = heapq.heappop(events)
            self.clock.set_ns(at)
            if number not in self.in_flight:
                wait = self.begin(number)
            elif self.goes_on(self.in_flight[number]):
                wait = self.random.expovariate(1 / 3)
            else:
                self.end(self.in_flight.pop(number))
                wait = 0.01
            heapq.heappush(events, (at + 1 + round(wait * 10**9), number))

    def begin(self, number: int) -> float:
        real = min(50_000, round(20 * self.random.paretovariate(1.2)))
        estimate = max(1, min(COUNT, self.guess(real)))
        reservation = self.limiter.reserve("k", estimate, ttl=600)
        if not reservation:
            return min(reservation.decision.retry_after, 60.0) + self.random.random()
        fate = self.random.choice(self.fates)
        if self.random.random() < 0.02:
            fate, real = "crash", min(real, estimate)
        self.in_flight[number] = Call(estimate, real, reservation, fate)
        self.count(real)
        return self.random.expovariate(1 / 3)

    def goes_on(self, call: Call) -> bool:
        """Whether a stream finds room for as much as it has used, once in a while."""
        more = max(1, call.estimate)
        if call.fate != "stream" or self.random.random() < 0.5 or more > COUNT:
            return False
        if not call.reservation.extend(more):
            return False
        call.estimate += more
        call.real += more
        self.count(more)
        return True

    def count(self, units: int) -> None:
        """Law 17 over every interval that ends with this admission."""
        self.used += units
        self.meter.add(self.clock.now_ns(), units)
        bound = COUNT + sum(call.beyond for call in self.in_flight.values())
        self.worst = max(self.worst, float(self.meter.level / bound))
        assert self.meter.level <= bound, self.clock.now_ns()

    def end(self, call: Call) -> None:
        if call.fate == "crash":
            return
        if call.fate == "by token":
            self.limiter.commit(call.reservation.token, call.real)
        assert call.reservation.commit(call.real).charged == call.real
