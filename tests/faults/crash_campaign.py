"""Kills workers of one shared memory at random instants, and holds the rest to the law.

    python tests/faults/crash_campaign.py --kills 1000

In each round some workers hit the same few keys as fast as they can; one is sent SIGKILL after a
random number of its calls. Others must go on (their counts advance after the kill), and when the
round ends what was admitted of each key is at most its limit, and at least its limit less what the
dead may have taken and not told: one unit each. Limits do not refill within a run.

As a round begins, workers are held up for a while: the call that one is in has an old instant when
it goes on. Between any two hits a worker enters a fresh key, since that takes more than one
instruction, into a table so small that each takes the cell of another.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from polling import eventually
from shm_workers import Worker
from tidegate import Limiter

_WORKERS = 3
_KEYS = 8
_MEANWHILE = 16_000  # calls of each other worker while one is held up, with as many new keys
ALGORITHMS = ("token-bucket", "sliding-window", "sliding-log")


def run_round(
    directory: Path, storage: str, kills: int, number: int, dice: random.Random, hold_ups: int
) -> None:
    """One set of keys under one limit: workers come and are killed, `kills` of them."""
    algorithm = ALGORITHMS[number % len(ALGORITHMS)]
    count = 200 if algorithm == "sliding-log" else 2_000
    limit = f"{count}/400 days"
    prefix = f"round{number}"

    def new_worker() -> Worker:
        return Worker(
            directory, storage, limit, algorithm=algorithm, keys=_KEYS, prefix=prefix, fresh=True
        )

    workers = [new_worker() for _ in range(_WORKERS)]
    dead: list[Worker] = []
    try:
        for worker in workers:
            worker.expect("ready")
        for worker in workers:
            worker.go()
        for _ in range(hold_ups):
            _hold_up(dice.choice(workers), workers)
        for _ in range(kills):
            victim = workers.pop(dice.randrange(len(workers)))
            goal = victim.answered + dice.randrange(1, 200)
            eventually(lambda: victim.answered >= goal, 60, interval=0)  # noqa: B023
            victim.process.kill()
            victim.process.wait()
            dead.append(victim)
            for other in workers:
                before = other.answered
                eventually(lambda: other.answered > before + _KEYS, 60, interval=0)  # noqa: B023
            workers.append(new_worker())
            workers[-1].expect("ready")
            workers[-1].go()
        # Whoever is left takes what is left.
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
            dead.append(worker)
        with Limiter(limit, storage=storage, algorithm=algorithm, prefix=prefix) as rest:
            for key in range(_KEYS):
                last = 0
                while rest.allow(f"key{key}"):
                    last += 1
                total = last + sum(worker.admitted(key) for worker in dead)
                # Each of the dead may hold one unit that it did not count.
                holding = sum(
                    (worker.asked - 1) % _KEYS == key and worker.asked > 0 for worker in dead
                )
                assert total <= count, (algorithm, key, total)
                assert total >= count - holding, (algorithm, key, total, holding)
    finally:
        for worker in [*workers, *dead]:
            if worker.process.stdin is not None and not worker.process.stdin.closed:
                worker.end()


def _hold_up(worker: Worker, workers: list[Worker]) -> None:
    worker.process.send_signal(signal.SIGSTOP)
    goals = [(other, other.answered + _MEANWHILE) for other in workers if other is not worker]
    eventually(lambda: all(other.answered >= goal for other, goal in goals), 60, interval=0)
    worker.process.send_signal(signal.SIGCONT)


def campaign(kills: int, seed: int, hold_ups: int = 0) -> int:
    """Returns how many were killed. `hold_ups` is a number in each round."""
    dice = random.Random(seed)
    done = 0
    number = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        while done < kills:
            batch = min(10, kills - done)
            path = directory / f"table{number}"
            storage = f"shm://{path}?capacity=3000"
            run_round(directory, storage, batch, number, dice, hold_ups)
            path.unlink()
            done += batch + _WORKERS
            number += 1
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills workers of one shared memory.")
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    began = time.monotonic()
    done = campaign(arguments.kills, arguments.seed, hold_ups=10)
    print(f"{done} killed in {time.monotonic() - began:.0f} s; nothing blocked, no count was wrong")


if __name__ == "__main__":
    main()
