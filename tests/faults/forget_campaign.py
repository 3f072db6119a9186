"""Tries to make a store forget exhausted clients by keys that are invented for it.

    python tests/faults/forget_campaign.py --capacity 100000

Some clients use up their limit. Then keys come that nobody has seen before, many times what the
store has room for, and each takes its whole limit: in one charge, in several, or in as many as the
clients needed, one right after the other. A client is forgotten when it is let through where an
exact limit would refuse. The figure is how many keys it takes until half of the clients are
forgotten, as a multiple of the keys that the store has room for.

The clients are silent, or they go on and are refused once a second; a refusal changes nothing that
is known of a client, so the two must not differ. Time is simulated.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tidegate
from tidegate.types import ALGORITHMS

STORES = ("memory", "shm")
UNITS = 10  # of each limit, an hour
# How a key is charged: the costs of its charges.
AT_ONCE = (10,)
IN_TWO = (5, 5)
ALMOST_AT_ONCE = (1, 9)
IN_FIVE = (2,) * 5
ONE_BY_ONE = (1,) * 10

_SECOND = 10**9
_HOUR = 3600 * _SECOND
_START = 472_223 * _HOUR  # the beginning of a window
_BATCHES = 20  # for as many keys as the store has room for
_LOGS = ("sliding-log", "concurrency")


@dataclass
class Attack:
    store: str
    algorithm: str
    costs: tuple[int, ...]  # of the charges of each invented key
    client_costs: tuple[int, ...] = ONE_BY_ONE  # of those of each client
    active: bool = False  # whether the clients go on
    capacity: int = 100_000
    clients: int = 50
    room_a_second: float = 0.5  # keys that come in a second, as a part of the room
    most: float = 10.0  # keys at the most, as a multiple of the room

    @property
    def room(self) -> int:
        """Keys of this algorithm for which there is room."""
        return self.capacity // 5 if self.algorithm in _LOGS else self.capacity


@dataclass
class Outcome:
    until_half: float | None  # keys until half of the clients were forgotten, x the room
    until_all: float | None
    forgotten: int  # in the end
    evicted_live: int
    seconds: float


@contextmanager
def _limiter(attack: Attack, clock: tidegate.ManualClock) -> Iterator[tidegate.Limiter]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        storage = f"shm://{Path(directory) / 'table'}" if attack.store == "shm" else "memory://"
        with tidegate.Limiter(
            f"{UNITS}/hour",
            storage=f"{storage}?capacity={attack.capacity}",
            algorithm=attack.algorithm,
            clock=clock,
        ) as limiter:
            yield limiter


def _charge(
    limiter: tidegate.Limiter, clock: tidegate.ManualClock, keys: list[str], attack: Attack
) -> None:
    """Charges each key as the attack does, so that no two charges are of one instant."""
    costs = attack.costs
    if len(costs) == 1 or attack.algorithm not in _LOGS:
        # Instants mean nothing to a bucket or window, and this is many times as fast.
        each = [key for key in keys for _ in costs]
        assert all(limiter.hit_many(each, costs * len(keys))), "a fresh key was refused"
        return
    for key in keys:
        for cost in costs:
            assert limiter.allow(key, cost), "a fresh key was refused"
            clock.advance_ns(1)


def run(attack: Attack) -> Outcome:
    clock = tidegate.ManualClock(_START)
    batch = max(1, attack.room // _BATCHES)
    step_ns = int(_SECOND * batch / (attack.room * attack.room_a_second))
    clients = [f"client:{i}" for i in range(attack.clients)]
    forgotten: set[str] = set()
    began = time.monotonic()
    half = every = None
    next_call = _START
    with _limiter(attack, clock) as limiter:
        for cost in attack.client_costs:
            for client in clients:
                assert limiter.allow(client, cost)
                clock.advance_ns(1)
        first = 0
        while first < attack.most * attack.room and every is None:
            clock.advance_ns(step_ns)
            keys = [f"invented:{i}" for i in range(first, first + batch)]
            _charge(limiter, clock, keys, attack)
            first += batch
            for client in clients:
                if client not in forgotten and limiter.peek(client).remaining > 0:
                    forgotten.add(client)
            if attack.active and clock.now_ns() >= next_call:
                next_call = clock.now_ns() + _SECOND
                for client in clients:
                    if limiter.allow(client):
                        forgotten.add(client)
            if half is None and 2 * len(forgotten) >= len(clients):
                half = first / attack.room
            if len(forgotten) == len(clients):
                every = first / attack.room
        evicted_live = limiter.stats().evicted_live
    return Outcome(half, every, len(forgotten), evicted_live, time.monotonic() - began)


def _figure(multiple: float | None, most: float) -> str:
    return f"> {most:g}" if multiple is None else f"{multiple:.2f}"


def _told(costs: tuple[int, ...]) -> str:
    return " + ".join(map(str, costs)) if len(set(costs)) > 1 else f"{len(costs)} of {costs[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Floods stores to have clients forgotten.")
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--most", type=float, default=10.0, help="keys, x the room of the store")
    parser.add_argument("--algorithms", nargs="*", default=ALGORITHMS, choices=ALGORITHMS)
    parser.add_argument("--stores", nargs="*", default=STORES, choices=STORES)
    arguments = parser.parse_args()
    # (charges of an invented key, charges of a client, whether clients go on)
    ways = [
        (AT_ONCE, ONE_BY_ONE, False),
        (AT_ONCE, ONE_BY_ONE, True),
        (ALMOST_AT_ONCE, ONE_BY_ONE, False),
        (IN_TWO, ONE_BY_ONE, False),
        (IN_FIVE, ONE_BY_ONE, False),
        (ONE_BY_ONE, ONE_BY_ONE, False),
        (ONE_BY_ONE, ONE_BY_ONE, True),
        (AT_ONCE, AT_ONCE, False),
    ]
    print(
        f"capacity {arguments.capacity:,}, limits of {UNITS} an hour, 50 clients that used them up;"
        " keys until half of the clients (until all) are forgotten, x the keys there is room for"
    )
    print(
        f"{'store':<8}{'algorithm':<16}{'charges of an invented key':>27}{'of a client':>13}"
        f"{'clients':>9}{'half':>8}{'all':>8}{'forgotten':>11}"
    )
    for store in arguments.stores:
        for algorithm in arguments.algorithms:
            for costs, client_costs, active in ways:
                attack = Attack(
                    store,
                    algorithm,
                    costs,
                    client_costs,
                    active,
                    arguments.capacity,
                    most=arguments.most,
                )
                outcome = run(attack)
                print(
                    f"{store:<8}{algorithm:<16}{_told(costs):>27}{_told(client_costs):>13}"
                    f"{'refused' if active else 'silent':>9}"
                    f"{_figure(outcome.until_half, attack.most):>8}"
                    f"{_figure(outcome.until_all, attack.most):>8}"
                    f"{outcome.forgotten:>8}/{attack.clients}"
                    f"  {outcome.seconds:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
