"""Soaks a real `tidegate serve` in faults, round after round, and prints which faults held.

    python tests/faults/soak_campaign.py --seconds 1800
    python tests/faults/soak_campaign.py --only rapid-reset slow-readers
    python tests/faults/soak_campaign.py --list
    python tests/faults/soak_campaign.py --json run.json --page docs/reliability.md \
        --picture docs/images/soak.png

One process of the service runs through all faults. Exits with status 1 if a law broke.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "redis"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "database"))
sys.path.insert(0, str(Path(__file__).parent))

import processes
from chaos.servers import version
from soak.faults import all_faults
from soak.page import TABLE, table
from soak.stage import Fault, Pace, Stage, Verdict, make_stage
from soak.trace import Sample, Trace, as_dicts, draw, growth

# The resources that the service may use more after the last round than after the first.
GROWTH = 24 << 20
SPARE_DESCRIPTORS = 8
SPARE_THREADS = 4

# How many samples a run takes of memory and latency.
SAMPLES = 720


def line(verdict: Verdict) -> str:
    recovery = "     " if verdict.recovery_s is None else f"{verdict.recovery_s:5.2f}"
    before, after = (size / 2**20 for size in verdict.resident)
    return (
        f"{'BROKEN' if verdict.broken else 'held':6} {verdict.name:26} {verdict.calls:6} checks "
        f"{verdict.degraded:5} degraded {verdict.wrong} wrong {verdict.failed} failed, "
        f"worst {verdict.slowest_ms:5.0f} ms, recovered {recovery} s, "
        f"{before:.0f} -> {after:.0f} MB, descriptors {verdict.descriptors}, "
        f"threads {verdict.threads}"
    )


def run(faults: list[Fault], seconds: float, pace: Pace) -> dict[str, Any]:
    """Runs all faults, again and again until the time is over, and at least once."""
    began = time.monotonic()
    verdicts: list[Verdict] = []
    rounds: list[dict[str, int]] = []
    broken: list[str] = []
    with make_stage(pace) as on:
        warm_up(on)
        trace = Trace(on, max(1.0, seconds / SAMPLES))
        while not rounds or time.monotonic() - began < seconds:
            for fault in faults:
                verdicts.append(on.run(fault))
                print(line(verdicts[-1]), flush=True)
                for text in verdicts[-1].broken:
                    print(f"         broken: {text}", flush=True)
                if on.service.process.poll() is not None:
                    broken.append("the service crashed")
                    break
                if rounds and time.monotonic() - began > seconds:
                    break
            rounds.append(on.service.usage()._asdict() if not broken else rounds[-1])
            if broken:
                break
        trace.close()
        broken += leaks(rounds)
        broken += [f"logged: {text}" for text in on.service.exceptions()[:5]]
        on.load.close()
        status = on.service.end()
        if status != 0:
            broken.append(f"the service ended with {status} after SIGTERM")
    for text in broken:
        print(f"broken: {text}", flush=True)
    elapsed = time.monotonic() - began
    return report(faults, verdicts, rounds, broken, trace.samples, elapsed)


def warm_up(on: Stage) -> None:
    """Runs until everything that the service creates once has been created."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        on.service.probe()
        on.service.count("front_floods")
        time.sleep(0.1)


def leaks(rounds: list[dict[str, int]]) -> list[str]:
    if not rounds:
        return []
    first, last = rounds[0], rounds[-1]
    bounds = {"resident": GROWTH, "descriptors": SPARE_DESCRIPTORS, "threads": SPARE_THREADS}
    return [
        f"{name} grew from {first[name]} to {last[name]} between the first and the last round"
        for name, bound in bounds.items()
        if last[name] > first[name] + bound
    ]


def report(
    faults: list[Fault],
    verdicts: list[Verdict],
    rounds: list[dict[str, int]],
    broken: list[str],
    samples: list[Sample],
    seconds: float,
) -> dict[str, Any]:
    rows = [
        summary(of) for fault in faults if (of := [v for v in verdicts if v.name == fault.name])
    ]
    return {
        "server": f"Redis {version()[0]}",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "minutes": round(seconds / 60, 1),
        "rounds": rounds,
        "wrong": sum(row["wrong"] for row in rows),
        "failed": sum(row["failed"] for row in rows),
        "broken": broken,
        "growth": growth(samples),
        "samples": as_dicts(samples),
        "faults": rows,
    }


def summary(verdicts: list[Verdict]) -> dict[str, Any]:
    """Returns one row for a fault that ran several times: sums, and its worst values."""
    recoveries = [v.recovery_s for v in verdicts if v.recovery_s is not None]
    last = verdicts[-1]
    return {
        **last.as_dict(),
        "times": len(verdicts),
        **{
            name: sum(getattr(v, name) for v in verdicts)
            for name in ("calls", "degraded", "failed", "wrong")
        },
        "slowest_ms": max(v.slowest_ms for v in verdicts),
        "recovery_s": max(recoveries) if len(recoveries) == len(verdicts) else None,
        "broken": [text for v in verdicts for text in v.broken],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of faults")
    parser.add_argument("--list", action="store_true", help="print the faults")
    parser.add_argument("--seconds", type=float, default=1800.0, help="time for all rounds")
    parser.add_argument("--connections", type=int, default=10_000, help="idle connections")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw memory and latency here")
    parser.add_argument("--page", type=Path, metavar="FILE", help="rewrite the table of this page")
    arguments = parser.parse_args()
    faults = all_faults()
    if arguments.list:
        for fault in faults.values():
            print(f"{fault.name:26} {fault.says}")
        return 0
    unknown = sorted(set(arguments.only or []) - set(faults))
    if unknown:
        parser.error(f"expected names that --list prints, got {', '.join(unknown)}")
    chosen = [fault for fault in faults.values() if fault.name in (arguments.only or faults)]
    pace = Pace(hold=5.0, calm=1.0, connections=arguments.connections, patience=25.0)
    with processes.guarded():
        found = run(chosen, arguments.seconds, pace)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.picture:
        title = f"{found['minutes']:g} minutes of faults, {len(found['rounds'])} rounds"
        draw([Sample(**sample) for sample in found["samples"]], title, arguments.picture)
    if arguments.page:
        TABLE.rewrite(arguments.page, table(found))
    broken = [row["name"] for row in found["faults"] if row["broken"]]
    print(f"{found['minutes']:g} minutes, {len(found['rounds'])} rounds: {len(broken)} kinds broke")
    return 1 if broken or found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
