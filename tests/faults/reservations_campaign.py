"""Reserves and settles on a real Redis while processes, replies and the server are lost.

    python tests/faults/reservations_campaign.py --reservations 100000

Workers reserve by a limiter, a plan and rules, write each token down before anything else happens
to it, raise some reservations and settle most, once or twice, themselves or through another
connection, or give them back. Some would be given back at the end of their lives. Meanwhile workers
are killed and started anew, connections end, replies are lost, and the server is killed and comes
back with its log. In the end every token that was written down is settled, twice, as the line of it
says; whatever was reserved and not written down stays at its estimate, as its record says. Each
count must then have been charged exactly that: no unit is lost, and none is charged twice. With
--spoiled one unit more is charged to a count, or given back, which must be found.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
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
LONG = "18000 days"
PLENTY = 4 * 10**9
BUCKET = 10**6  # a unit comes back in 26 minutes
BUCKETS = 60  # which have room for what 100,000 reservations use
TTL = 86_400.0
MOST = 20_000  # units of a call
RULES: dict[str, Any] = {
    "rules": [
        {
            "id": "requests",
            "by": "team",
            "limits": f"{PLENTY}/{LONG}",
            "algorithm": "fixed-window",
            "counts": "requests",
            "also": True,
        },
        {"id": "tokens", "by": "user", "limits": f"{PLENTY}/{LONG}", "algorithm": "fixed-window"},
    ]
}
REQUEST = {"team": "requests", "user": "tokens"}
KINDS = ("limiter", "plan", "rules")
RELEASED = -1  # in place of what is used
_LINE_BYTES = 90  # at least: a token of 89 characters, and two words


def units(kind: str, actual: int) -> Any:
    """What a reservation is settled at."""
    return [actual, 3 * actual] if kind == "plan" else actual


def counted(kind: str, actual: int) -> Counter[str]:
    """What a reservation has charged that was settled."""
    is_released, actual = actual < 0, max(0, actual)
    if kind == "limiter":
        return Counter({"limiter": actual})
    if kind == "plan":
        return Counter({"bucket": actual, "window": 3 * actual})
    return Counter({"requests": 0 if is_released else 1, "tokens": actual})


def count_of(key: str) -> str:
    """The count that a key of Redis belongs to, or its record."""
    prefix, key = key.split(":")[0], key[key.index("{") + 1 : key.index("}")]
    return key if prefix == "rules" else prefix


class Owners:
    """What reserves, on one storage."""

    def __init__(self, uri: str) -> None:
        plenty = tg.Limit(f"{PLENTY}/{LONG}", algorithm="fixed-window")
        self.limiter = tg.Limiter(plenty, storage=uri, prefix="limiter")
        self.storage: Any = self.limiter.storage
        sliding = tg.Limit(f"{PLENTY}/{LONG}", algorithm="sliding-window")
        self.bucket = tg.Limiter(f"{BUCKET}/{LONG}", storage=self.storage, prefix="bucket")
        self.window = tg.Limiter(sliding, storage=self.storage, prefix="window")
        self.plan = tg.Plan([self.bucket, self.window])
        self.rules = tg.Limiter(rules=tg.RuleSet(RULES), storage=self.storage, prefix="rules")

    def reserve(self, kind: str, number: int, estimate: int, on_expiry: Any) -> tg.Reservation:
        options: Any = {"ttl": TTL, "on_exit": "keep", "on_expiry": on_expiry}
        if kind == "limiter":
            return self.limiter.reserve("k", estimate, **options)
        if kind == "plan":
            return self.plan.reserve([f"b{number}", "k"], [estimate, 3 * estimate], **options)
        return self.rules.reserve(cost=estimate, **REQUEST, **options)

    def commit(self, kind: str, token: str, actual: int) -> tg.Decision:
        """Settles what another connection has reserved; RELEASED gives it back."""
        owner: Any = {"limiter": self.limiter, "plan": self.plan, "rules": self.rules}[kind]
        return owner.release(token) if actual < 0 else owner.commit(token, units(kind, actual))

    def charged(self) -> Counter[str]:
        """The units that each count has."""

        def used(decision: tg.Decision, count: int) -> int:
            return count - decision.remaining + decision.debt

        found = Counter({"limiter": used(self.limiter.peek("k"), PLENTY)})
        found["window"] = used(self.window.peek("k"), PLENTY)
        for number in range(BUCKETS):
            found["bucket"] += used(self.bucket.peek(f"b{number}"), BUCKET)
        for outcome in self.rules.peek(**REQUEST).outcomes:
            found[str(outcome.rule)] = used(outcome, PLENTY)
        return found

    def left_at_estimates(self) -> Counter[str]:
        """The units of the reservations that nobody has settled, as their records say."""
        found: Counter[str] = Counter()
        keys = self.storage.command(["KEYS", "*"], timeout=60)
        records = [key for key in keys if len(key.rpartition("}:")[2]) == 32]
        for first in range(0, len(records), 1000):
            some = records[first : first + 1000]
            for key, value in zip(some, self.storage.command(["MGET", *some], timeout=60)):
                if value is not None and value.startswith("o"):
                    found[count_of(key)] += int(value[1:])
        for key in keys:
            if key.endswith("}:open"):  # those that would be given back
                entries = self.storage.command(["HGETALL", key], timeout=60)
                for name, entry in zip(entries[::2], entries[1::2]):
                    found[count_of(key)] += int(entry.split()[0]) if name != "next" else 0
        return found


def work(through: str, direct: str, seed: str, path: str) -> None:
    """Reserves and settles until it is killed."""
    rng = random.Random(int(seed))
    owners, others = Owners(through), Owners(direct)
    with open(path, "a", buffering=1) as log:
        while True:
            kind = rng.choice(KINDS)
            estimate, actual = rng.randint(1, 100), min(MOST, int(20 * rng.paretovariate(1.2)))
            if rng.random() < 0.1:
                actual = RELEASED
            on_expiry = rng.choice(["keep", "keep", "release"])
            reservation = owners.reserve(kind, rng.randrange(BUCKETS), estimate, on_expiry)
            if not reservation or reservation.decision.degraded:
                continue  # it was reserved in Redis or not; if so, it stays at its estimate
            log.write(f"{reservation.token} {kind} {actual}\n")
            if rng.random() < 0.2:
                reservation.extend(units(kind, rng.randint(1, 50)))
            for _ in range(rng.choice([0, 1, 1, 1, 2])):
                if rng.random() < 0.2:
                    others.commit(kind, reservation.token, actual)
                elif actual < 0:
                    reservation.release()
                elif rng.random() < 0.2:
                    reservation.commit_soon(units(kind, actual))
                else:
                    reservation.commit(units(kind, actual))


@dataclass
class Outcome:
    reservations: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    settled_at: Counter[str] = field(default_factory=Counter)
    """The units of all reservations that were written down, of each count."""
    left_at_estimates: Counter[str] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def lost_or_doubled(self) -> dict[str, int]:
        """The units of each count that were charged too much, or below zero too few."""
        counts = sorted({*self.charged, *self.settled_at, *self.left_at_estimates})
        expected = self.settled_at + self.left_at_estimates
        return {count: self.charged[count] - expected[count] for count in counts}


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
        options = "timeout=2&connect_timeout=2&breaker_failures=1000000&breaker_open=0.5"
        through = f"redis://127.0.0.1:{self.proxy.port}?{options}"
        command = [sys.executable, __file__, "--work", through, self.server.uri(options)]
        command += [str(self.random.randrange(2**31)), str(self.paths[-1])]
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

    def lines(self) -> Iterator[tuple[str, str, int]]:
        """The reservations that were written down: their tokens, their kinds, and what is used."""
        for path in self.paths:
            if not path.exists():
                continue
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # else it was cut, and nothing followed
                    token, kind, actual = line.split()
                    yield token, kind, int(actual)

    def most_written(self) -> int:
        """Returns no fewer than are written, without reading them."""
        return sum(path.stat().st_size for path in self.paths if path.exists()) // _LINE_BYTES

    def run(self, reservations: int, pause: float, spoil: bool) -> Outcome:
        began = time.monotonic()
        while self.most_written() < reservations or sum(1 for _ in self.lines()) < reservations:
            time.sleep(self.random.uniform(0, 2 * pause))
            for worker in self.workers:
                assert worker.poll() is None, "a worker has ended by itself"
            self.disturb()
        for worker in self.workers:
            processes.stop(worker)
        outcome = Outcome(faults=dict(self.faults), seconds=time.monotonic() - began)
        self.settle(outcome, spoil)
        return outcome

    def settle(self, outcome: Outcome, spoil: bool) -> None:
        owners = Owners(self.server.uri(PATIENT))
        for token, kind, actual in self.lines():
            for _ in range(2):
                self.settle_one(owners, token, kind, actual)
            outcome.reservations += 1
            outcome.settled_at += counted(kind, actual)
        if spoil:
            owners.plan.charge(["b0", "k"], [1, 1])
            owners.limiter.refund("k")
        outcome.left_at_estimates = owners.left_at_estimates()
        outcome.charged = owners.charged()

    @staticmethod
    def settle_one(owners: Owners, token: str, kind: str, actual: int) -> None:
        def settle() -> bool:
            try:
                return not owners.commit(kind, token, actual).degraded
            except tg.ReservationError as error:
                # It was settled longer ago than settled ones are known, and at this number.
                if error.settled:
                    raise
                return True

        eventually(settle, 60)


def run(
    reservations: int, *, workers: int, pause: float, seed: int, spoil: bool = False
) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        campaign = Campaign(Path(directory), workers, seed)
        try:
            return campaign.run(reservations, pause, spoil)
        finally:
            campaign.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reservations", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spoiled", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(*options.work)
    outcome = run(
        options.reservations,
        workers=options.workers,
        pause=options.pause,
        seed=options.seed,
        spoil=options.spoiled,
    )
    figures = {**vars(outcome), "lost_or_doubled": outcome.lost_or_doubled}
    print(json.dumps(figures, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(figures))
    return 0 if options.spoiled == any(outcome.lost_or_doubled.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
