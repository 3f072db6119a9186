"""Faults of the processes of a host, and of the memory that they share."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from chaos.fault import ANY, NONE, fault
from chaos.network_faults import through_proxy
from chaos.shim import Shim
from chaos.stage import Stage

_EXIT_CAMPAIGN = Path(__file__).resolve().parents[1] / "exit_campaign.py"

through_proxy(
    "fallback-shared-by-two-processes",
    "hole",
    "Two processes share one fallback in shared memory while nothing passes",
    processes=2,
    shared_fallback=1,
    group="host",
    seconds=1.5,
)
through_proxy(
    "fallback-of-each-process",
    "hole",
    "Two processes, each with a fallback of its own, while nothing passes",
    processes=2,
    group="host",
)


@fault("standalone+proxy", processes=2, shared_fallback=1, loses_calls=True)
def worker_killed(stage: Stage) -> Iterator[float]:
    """One of two processes that share a fallback is killed with SIGKILL in an outage."""
    assert stage.proxy is not None
    stage.proxy.mode = "hole"
    yield 0.7
    stage.workers.pop().kill()
    yield 0.5
    stage.proxy.heal()


@fault("standalone", processes=2, shared_fallback=1, loses_calls=True, degraded=NONE)
def worker_replaced(stage: Stage) -> Iterator[float]:
    """One of two processes is killed with SIGKILL while the server is well, and replaced."""
    yield 0.5
    stage.workers.pop().kill()
    yield 0.2
    stage.start("replacement")
    yield 0.5


@fault("standalone+proxy", processes=2, shared_fallback=1, forgets=1)
def fallback_removed(stage: Stage) -> Iterator[float]:
    """The file of the shared fallback loses its name in an outage."""
    assert stage.proxy is not None
    stage.proxy.mode = "hole"
    yield 0.5
    (stage.directory / f"fallback-{stage.run}").unlink()
    yield 0.5
    stage.proxy.heal()


@fault("standalone", shared_fallback=1, degraded=NONE)
def two_versions_on_one_file(stage: Stage) -> Iterator[float]:
    """Two versions on one shared memory: the file of another version is refused when a limiter is
    made, and processes that have it open continue."""
    path = stage.directory / f"fallback-{stage.run}"
    ours = path.read_bytes()
    path.unlink()
    # The version stands after a magic of eight bytes.
    path.write_bytes(ours[:8] + struct.pack("<I", 99) + ours[12:])
    path.chmod(0o600)
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, tidegate\n"
            "try:\n"
            "    tidegate.Limiter('5/hour', storage=sys.argv[1], fallback=sys.argv[2])\n"
            "except tidegate.StorageError as error:\n"
            "    print(error)\n",
            stage.uri,
            f"shm://{path}",
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )
    stage.check("version 99" in made.stdout, f"the refusal was {made.stdout + made.stderr!r}")
    yield 0.5
    path.unlink()


@fault("standalone+proxy", shared_fallback=2, forgets=1)
def boot_id_changed(stage: Stage) -> Iterator[float]:
    """A process finds another boot id than the file of the shared fallback has, and replaces it."""
    assert stage.proxy is not None
    shim = Shim(stage.directory, f"boot-{stage.run}", boot_id="another-boot")
    stage.stack.callback(shim.close)
    path = stage.directory / f"fallback-{stage.run}"
    before = path.stat().st_ino
    late = stage.start("after-the-boot", environment=shim.environment())
    deadline = time.monotonic() + 20
    while late.do("status")["least"] < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    stage.check(path.stat().st_ino != before, "the file of the boot before was not replaced")
    stage.proxy.mode = "hole"
    yield 1.0
    stage.proxy.heal()


# ---------------------------------------------------------------------------- exits

_EXITS = """
import asyncio, sys, threading, time
import tidegate
limiter = tidegate.Limiter("1000000/day", storage=sys.argv[1])
limiter.hit("k")
def calls():
    while True:
        limiter.hit("k")
        limiter.peek("k")
async def tasks():
    while True:
        await limiter.hit_async("k")
for target in (calls, calls, lambda: asyncio.run(tasks())):
    threading.Thread(target=target, daemon=True).start()
time.sleep(float(sys.argv[2]))
"""


@fault("standalone", processes=0, recovers=False, degraded=ANY)
def exits_in_calls(stage: Stage) -> Iterator[float]:
    """20 processes end with daemon threads inside calls."""
    bad = []
    for first in range(0, 20, 2):
        made = [
            subprocess.Popen(
                [sys.executable, "-c", _EXITS, stage.uri, str(0.05 + 0.003 * number)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for number in range(first, first + 2)
        ]
        for process in made:
            stage.stack.callback(process.kill)
            said = process.communicate(timeout=30)[0]
            if process.returncode != 0 or said:
                bad.append((process.returncode, said.strip()[-200:]))
    stage.check(not bad, f"{len(bad)} of 20 processes did not end cleanly, such as {bad[:1]}")
    stage.notes["clean exits of 20"] = 20 - len(bad)
    yield 0.0


@fault("host", processes=0, recovers=False, degraded=ANY)
def exits_of_all_kinds(stage: Stage) -> Iterator[float]:
    """Processes end in every blocking call and state (tests/faults/exit_campaign.py)."""
    processes = os.environ.get("CHAOS_EXITS", "60")
    ran = subprocess.run(
        [sys.executable, str(_EXIT_CAMPAIGN), "--processes", processes],
        capture_output=True,
        text=True,
        timeout=600,
    )
    stage.check(ran.returncode == 0, f"it ended with {ran.returncode}: {ran.stdout[-500:]}")
    stage.notes["exits"] = ran.stdout.strip()[-300:]
    yield 0.0


# ----------------------------------------------------------------------- strange keys

_RANDOM_KEYS = """
import json, sys, time
import numpy as np
import tidegate
storage, keys = sys.argv[1], int(sys.argv[2])
with open("/proc/self/statm") as statm:
    def resident():
        statm.seek(0)
        return int(statm.read().split()[1]) * 4096
    limiter = tidegate.Limiter("10/hour", storage=storage)
    dice = np.random.default_rng()
    first = most = slowest = 0
    for begin in range(0, keys, 100_000):
        batch = np.frombuffer(dice.bytes(1_600_000), "S16")
        began = time.monotonic()
        allowed = int(limiter.hit_many(batch).sum())
        slowest = max(slowest, time.monotonic() - began)
        assert allowed == len(batch), allowed
        if begin >= keys // 10:
            first = first or resident()
            most = max(most, resident())
stats = limiter.stats()
print(json.dumps({"grown": most - first, "slowest": slowest, "keys": stats.keys}))
"""


@fault("host", processes=0, recovers=False, degraded=ANY)
def random_keys(stage: Stage) -> Iterator[float]:
    """A million random keys through a memory store for 100,000."""
    keys = int(os.environ.get("CHAOS_KEYS", 1_000_000))
    ran = subprocess.run(
        [sys.executable, "-c", _RANDOM_KEYS, "memory://?capacity=100000", str(keys)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    stage.check(ran.returncode == 0, f"it ended with {ran.returncode}: {ran.stderr[-500:]}")
    stage.notes["random keys"] = ran.stdout.strip()
    yield 0.0
