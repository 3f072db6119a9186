"""Runs the fault table against real servers, and prints fault by fault what held.

    python tests/faults/chaos_campaign.py                        all faults
    python tests/faults/chaos_campaign.py --only killed refused  some of them
    python tests/faults/chaos_campaign.py --list                 what there is
    python tests/faults/chaos_campaign.py --json run.json --page docs/reliability.md

Ends with status 1 if a law broke or a fault was not reached in the time given.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "redis"))
sys.path.insert(0, str(Path(__file__).parent))

from chaos.fault import Fault, all_faults
from chaos.judge import Verdict
from chaos.page import TABLE, table
from chaos.processes import Control
from chaos.servers import version
from chaos.stage import Pace, Pool, run_fault


def line(verdict: Verdict) -> str:
    recovery = "     " if verdict.recovery_s is None else f"{verdict.recovery_s:5.2f}"
    stall = "    " if verdict.stall_p999_ms is None else f"{verdict.stall_p999_ms:4.1f}"
    return (
        f"{'BROKEN' if verdict.broken else 'held':6} {verdict.name:36} {verdict.calls:6} calls "
        f"{verdict.degraded:5} degraded {verdict.exceptions} raised {verdict.over_admitted} over, "
        f"p99.9 {verdict.p999_ms:5.0f} worst {verdict.worst_ms:5.0f} ms, stall {stall} ms, "
        f"recovered {recovery} s (machine {verdict.machine_p999_ms:.1f}/"
        f"{verdict.machine_worst_ms:.0f} ms)"
    )


class OutOfTime(BaseException):
    """Not for those who catch what a fault raises."""


def _out_of_time(*_: object) -> None:
    raise OutOfTime


def run(faults: list[Fault], minutes: float, pace: Pace) -> list[Verdict]:
    verdicts: list[Verdict] = []
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        _run_each(faults, pace, verdicts)
    except OutOfTime:
        for fault in faults[len(verdicts) :]:
            verdict = Verdict.of(fault)
            verdict.broken.append(f"not finished within {minutes:g} minutes")
            verdicts.append(verdict)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return verdicts


def _run_each(faults: list[Fault], pace: Pace, verdicts: list[Verdict]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="tg-chaos") as directory,
        contextlib.ExitStack() as stack,
    ):
        pool = Pool(Path(directory))
        stack.callback(pool.discard)
        control = Control()
        stack.callback(control.kill)
        for fault in faults:
            verdict = run_fault(fault, pool, pace, control)
            verdicts.append(verdict)
            print(line(verdict), flush=True)
            for text in verdict.broken:
                print(f"         broken: {text}", flush=True)
            for text in verdict.not_judged:
                print(f"         not judged: {text}", flush=True)
            if verdict.notes:
                print(f"         {verdict.notes}", flush=True)
            if verdict.broken:
                pool.discard()


def report(verdicts: list[Verdict], seconds: float) -> dict[str, Any]:
    return {
        "server": f"Redis {version()[0]}",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "minutes": round(seconds / 60, 1),
        "faults": [verdict.as_dict() for verdict in verdicts],
    }


def updated(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The old report with what ran again in its place; faults that are no more are left out."""
    rows = {row["name"]: row for row in [*old["faults"], *new["faults"]]}
    return {
        **new,
        "minutes": round(old["minutes"] + new["minutes"], 1),
        "faults": [rows[name] for name in all_faults() if name in rows],
    }


def supervise() -> int:
    """Runs this program again in a process group of its own, and ends all of it with this one."""
    child = subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:]],
        env={**os.environ, "CHAOS_IN_GROUP": "1"},
        start_new_session=True,
    )

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    try:
        return child.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of faults, or of groups")
    parser.add_argument("--list", action="store_true", help="print the faults")
    parser.add_argument("--minutes", type=float, default=20.0, help="for all of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    parser.add_argument("--update", type=Path, metavar="FILE", help="an older report to add to")
    parser.add_argument("--page", type=Path, metavar="FILE", help="rewrite the table of this page")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="the page from an old report"
    )
    arguments = parser.parse_args()
    faults = all_faults()
    if arguments.list:
        for fault in faults.values():
            print(f"{fault.group:9} {fault.name:36} {fault.says}")
        return 0
    if arguments.from_json:
        TABLE.rewrite(arguments.page, table(json.loads(arguments.from_json.read_text())))
        return 0
    wanted = arguments.only or list(faults)
    unknown = [n for n in wanted if n not in faults and n not in {f.group for f in faults.values()}]
    if unknown:
        parser.error(f"expected names that --list prints, got {', '.join(unknown)}")
    if "CHAOS_IN_GROUP" not in os.environ:
        return supervise()
    # Ends with its parent, however that ends.
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    chosen = [fault for fault in faults.values() if fault.name in wanted or fault.group in wanted]
    verdicts = run(chosen, arguments.minutes, Pace())
    seconds = time.monotonic() - began
    broken = [verdict for verdict in verdicts if verdict.broken]
    print(f"{len(verdicts)} faults in {seconds / 60:.1f} minutes: {len(broken)} broke a law")
    whole = report(verdicts, seconds)
    if arguments.update:
        whole = updated(json.loads(arguments.update.read_text()), whole)
    if arguments.json:
        arguments.json.write_text(json.dumps(whole, indent=1) + "\n")
    if arguments.page:
        TABLE.rewrite(arguments.page, table(whole))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
