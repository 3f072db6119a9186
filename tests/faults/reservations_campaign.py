"""Reserves and settles on a real Redis while processes, replies and the server are lost.

    python tests/faults/reservations_campaign.py --reservations 100000

Workers reserve under one key, write each token down before anything else happens to it, raise some
reservations and settle most, once or twice, themselves or through another connection. Meanwhile
they are killed and started anew, connections end, replies are lost, and the server is killed and
comes back with its log. In the end every token that was written down is settled, twice, at the
number beside it; whatever was reserved and not written down stays at its estimate, as its record
says. The key must then have been charged exactly that: no unit is lost, and none is charged twice.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "redis"))

import processes
import tidegate as tg
from polling import eventually
from proxy import Proxy
from redis_server import PATIENT, RedisServer

# No unit comes back meanwhile.
LIMIT = "1000000000000/36500 days"
ALGORITHM: Any = "fixed-window"
KEY = "k"
TTL = 86_400.0
_LINE_BYTES = 90  # at least: a token of 89 characters, and a number

WORKER = """
import random, sys, tidegate as tg
through, direct, seed, path, limit, ttl = sys.argv[1:]
rng = random.Random(int(seed))
limiter = tg.Limiter(limit, algorithm="fixed-window", storage=through)
other = tg.Limiter(limit, algorithm="fixed-window", storage=direct)
with open(path, "a", buffering=1) as log:
    while True:
        estimate, actual = rng.randint(1, 100), int(20 * rng.paretovariate(1.2))
        reservation = limiter.reserve("k", estimate, ttl=float(ttl), on_exit="keep")
        if reservation.decision.degraded:
            continue  # it was reserved in Redis or not; if so, it stays at its estimate
        log.write(f"{reservation.token} {actual}\\n")
        if rng.random() < 0.2:
            reservation.extend(rng.randint(1, 50))
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            if rng.random() < 0.2:
                other.commit(reservation.token, actual)
            else:
                reservation.commit(actual)
"""


@dataclass
class Outcome:
    reservations: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    settled_at: int = 0
    """The units of all reservations that were written down."""
    left_at_estimates: int = 0
    charged: int = 0
    seconds: float = 0.0

    @property
    def lost_or_doubled(self) -> int:
        return self.charged - self.settled_at - self.left_at_estimates


class Campaign:
    """A server that survives its kills, workers, and what is done to them."""

    def __init__(self, directory: Path, workers: int, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.server = RedisServer(
            directory, *("--appendonly", "yes", "--appendfsync", "always"), "--save", ""
        )
        self.server.start()
        self.proxy = Proxy(self.server.port)
        self.workers: list[Any] = []
        self.paths: list[Path] = []
        self.faults: Counter[str] = Counter()
        for number in range(workers):
            self.workers.append(None)
            self.start(number)

    def start(self, number: int) -> None:
        self.paths.append(self.directory / f"tokens-{len(self.paths)}")
        options = "timeout=2&connect_timeout=2&breaker_failures=1000000"
        through = f"redis://127.0.0.1:{self.proxy.port}?{options}"
        command = [sys.executable, "-c", WORKER, through, self.server.uri(options)]
        command += [str(self.random.randrange(2**31)), str(self.paths[-1]), LIMIT, str(TTL)]
        self.workers[number] = processes.start(command)

    def close(self) -> None:
        for worker in self.workers:
            processes.stop(worker)
        self.proxy.close()
        self.server.kill()

    def disturb(self) -> None:
        """Does one of the things that happen."""
        what = self.random.choice(["kill", "kill", "drop", "lose", "lose", "lose", "server"])
        if what == "server" and self.random.random() < 0.8:
            what = "drop"
        self.faults[what] += 1
        if what == "kill":
            number = self.random.randrange(len(self.workers))
            processes.stop(self.workers[number])
            self.start(number)
        elif what == "drop":
            self.proxy.drop()
        elif what == "lose":
            self.proxy.loses_one = True
        else:
            self.server.kill()
            self.server.start()

    def written(self) -> list[tuple[str, int]]:
        found = []
        for path in self.paths:
            if not path.exists():
                continue
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # else it was cut, and nothing followed
                    token, actual = line.split()
                    found.append((token, int(actual)))
        return found

    def most_written(self) -> int:
        """Returns no fewer than are written, without reading them."""
        return sum(path.stat().st_size for path in self.paths if path.exists()) // _LINE_BYTES

    def run(self, reservations: int, pause: float) -> Outcome:
        began = time.monotonic()
        while self.most_written() < reservations or len(self.written()) < reservations:
            time.sleep(self.random.uniform(0, 2 * pause))
            self.disturb()
        for worker in self.workers:
            processes.stop(worker)
        outcome = Outcome(faults=dict(self.faults), seconds=time.monotonic() - began)
        self.settle(outcome)
        return outcome

    def settle(self, outcome: Outcome) -> None:
        limiter = tg.Limiter(LIMIT, algorithm=ALGORITHM, storage=self.server.uri(PATIENT))
        for token, actual in self.written():
            for _ in range(2):
                self.settle_one(limiter, token, actual)
            outcome.reservations += 1
            outcome.settled_at += actual
        store: Any = limiter.storage
        for key in store.command(["KEYS", "*"], timeout=60):
            if key.count(":") > 1 and len(key.rpartition(":")[2]) == 32:
                value = store.command(["GET", key], timeout=20) or ""
                outcome.left_at_estimates += int(value[1:]) if value.startswith("o") else 0
        limit = limiter.limits[0]
        outcome.charged = limit.capacity - limiter.peek(KEY).remaining

    @staticmethod
    def settle_one(limiter: tg.Limiter, token: str, actual: int) -> None:
        def settle() -> bool:
            try:
                return not limiter.commit(token, actual).degraded
            except tg.ReservationError as error:
                # It was settled longer ago than settled ones are known, and at this number.
                if error.settled:
                    raise
                return True

        eventually(settle, 60)


def run(reservations: int, *, workers: int, pause: float, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        campaign = Campaign(Path(directory), workers, seed)
        try:
            return campaign.run(reservations, pause)
        finally:
            campaign.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reservations", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    outcome = run(
        options.reservations, workers=options.workers, pause=options.pause, seed=options.seed
    )
    figures = {**asdict(outcome), "lost_or_doubled": outcome.lost_or_doubled}
    print(json.dumps(figures, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(figures))
    return 0 if outcome.lost_or_doubled == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
