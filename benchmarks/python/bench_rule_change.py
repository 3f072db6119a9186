"""How late a decision comes because rules change.

    python benchmarks/python/bench_rule_change.py [--quick] [--json FILE]

A RuleFile of 1,000 and of 10,000 rules, in JSON and in YAML, is replaced by another version several
times, while a thread, and a task of an event loop, decide every 0.2 ms by its rules. A decision is
late by what passes from when it was due until it is made. The latest one counts: beside one
without a change, and with how long the change takes to be seen. Then the same in four processes
that follow one file, as the workers of a service do.

What other programs delay is not the rules' doing. So the threads of this process are put before
all others, where that is permitted (as root); the table says whether it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
from harness import Target

_PACE_S = 2e-4
_CALM_S = 3.0
# For what is freed after a change.
_AFTERWARDS_S = 0.5
_MOST_S = 120.0
_WORKERS = 4
_TARGET_MS = 5.0
_TARGET_S = 2.0


def _document(size: int, version: int) -> dict[str, Any]:
    """`size` rules, half of them of patterns, all of which are others in the next version."""
    rules = [
        {"id": "user", "by": "user", "endpoint": "/api/*", "limits": f"{10**9 - version}/hour"}
    ]
    for i in range(1, size):
        endpoint = f"/s{i % 1000}/items/{i}" if i % 2 else f"/s{i}/{{id}}/x"
        limits = f"{1000 + version}/minute"
        rules.append({"id": f"r{i}", "by": "user", "endpoint": endpoint, "limits": limits})
    return {"rules": rules}


def _text(document: dict[str, Any], format: str) -> str:
    if format == "json":
        return json.dumps(document)
    import yaml

    return yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))


def _put(path: Path, text: str) -> None:
    unfinished = path.with_name("unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


def _latest_of_thread(decide: Callable[[], object], is_over: Callable[[], bool]) -> float:
    latest = 0.0
    while not is_over():
        due = time.perf_counter() + _PACE_S
        time.sleep(_PACE_S)
        decide()
        latest = max(latest, time.perf_counter() - due)
    return latest * 1e3


def _latest_of_loop(decide: Callable[[], object], is_over: Callable[[], bool]) -> float:
    async def run() -> float:
        latest = 0.0
        while not is_over():
            due = time.perf_counter() + _PACE_S
            await asyncio.sleep(_PACE_S)
            decide()
            latest = max(latest, time.perf_counter() - due)
        return latest * 1e3

    return asyncio.run(run())


def _put_before_others() -> bool:
    """Has this thread, which decides, come before all other threads of the machine.

    Those that read and compile rules keep their ordinary priority, as in a service: threads of one
    real-time priority take no turns, so on few cores the readers of several workers would keep
    every decision waiting.
    """
    try:
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(1))
    except (AttributeError, OSError):
        return False
    return True


class _Change:
    """One version that follows another. Keeps no version from being freed."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._before = source.current.digest
        self._begun = time.monotonic()
        self._until = self._begun + _MOST_S
        self.seen_s = float("inf")

    def is_over(self) -> bool:
        now = time.monotonic()
        if self.seen_s > _MOST_S and self._source.current.digest != self._before:
            self.seen_s = now - self._begun
            self._until = now + _AFTERWARDS_S
        return now > self._until


def _measure(
    size: int, format: str, latest_of: Callable[..., float], changes: int, path: Path
) -> dict[str, Any]:
    import tidegate
    from tidegate.rules import RuleFile

    texts = [_text(_document(size, version), format) for version in range(changes + 1)]
    _put(path, texts[0])
    with RuleFile(path) as source:
        limiter = tidegate.Limiter(rules=source)
        alone = _put_before_others()

        def decide() -> object:
            return limiter.check(user="42", endpoint="/api/posts", method="GET")

        end = time.monotonic() + _CALM_S
        calm = latest_of(decide, lambda: time.monotonic() > end)
        changed = []
        seen_s = []
        for text in texts[1:]:
            change = _Change(source)
            _put(path, text)
            changed.append(latest_of(decide, change.is_over))
            seen_s.append(change.seen_s)
    return {"calm_ms": calm, "changed_ms": changed, "seen_s": max(seen_s), "alone": alone}


def _work(path: str) -> None:
    """A worker: decides until its input ends, then prints when it saw changes and how late it was.

    Prints a line when it has the rules.
    """
    import tidegate
    from tidegate.rules import RuleFile

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with RuleFile(path) as source:
        limiter = tidegate.Limiter(rules=source)
        alone = _put_before_others()
        seen: list[tuple[str, float]] = [(source.current.digest, time.monotonic())]
        print(flush=True)

        def decide() -> object:
            if source.current.digest != seen[-1][0]:
                seen.append((source.current.digest, time.monotonic()))
            return limiter.check(user="42", endpoint="/api/posts", method="GET")

        latest = _latest_of_thread(decide, ended.is_set)
    print(json.dumps({"seen": [at for _, at in seen[1:]], "latest_ms": latest, "alone": alone}))


def _measure_workers(size: int, format: str, changes: int, path: Path) -> dict[str, Any]:
    texts = [_text(_document(size, version), format) for version in range(changes + 1)]
    _put(path, texts[0])
    command = [sys.executable, __file__, "--work", str(path)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(_WORKERS)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    put = []
    for text in texts[1:]:
        put.append(time.monotonic())
        _put(path, text)
        time.sleep(3 * _TARGET_S)
    answers = [json.loads(worker.communicate()[0]) for worker in workers]
    for answer in answers:
        if len(answer["seen"]) != changes:
            sys.exit(f"a worker saw {len(answer['seen'])} of {changes} changes")
    return {
        "changed_ms": [answer["latest_ms"] for answer in answers],
        "seen_s": max(at - begun for answer in answers for at, begun in zip(answer["seen"], put)),
        "alone": all(answer["alone"] for answer in answers),
    }


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        _work(sys.argv[2])
        return
    parser = harness.arguments(__doc__ or "", rounds=5, quick_rounds=2)
    options = parser.parse_args()
    assert harness.load_tidegate() is not None
    harness.print_interpreter()
    rows = []
    found: dict[str, Any] = {}
    targets = []
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        for size in (1_000, 10_000):
            for format in ("json", "yaml"):
                for who, latest_of in (("thread", _latest_of_thread), ("loop", _latest_of_loop)):
                    name = f"{size:,} rules, {format.upper()}, {who}"
                    path = Path(directory) / f"rules.{format}"
                    one = _measure(size, format, latest_of, harness.rounds_of(options), path)
                    found[name] = one
                    latest = max(one["changed_ms"])
                    alone = "yes" if one["alone"] else "no"
                    times = f"{one['calm_ms']:.2f}", f"{latest:.2f}", f"{one['seen_s']:.1f}"
                    rows.append([name, *times, alone])
                    targets.append(
                        Target(f"latest, {name}", latest, _TARGET_MS, at_least=False, unit=" ms")
                    )
                    if size == 1_000:
                        seen = one["seen_s"]
                        targets.append(
                            Target(f"seen, {name}", seen, _TARGET_S, at_least=False, unit=" s")
                        )
        for size in (1_000, 10_000):
            name = f"{size:,} rules, JSON, {_WORKERS} workers"
            path = Path(directory) / "rules.json"
            one = found[name] = _measure_workers(size, "json", harness.rounds_of(options), path)
            latest = max(one["changed_ms"])
            alone = "yes" if one["alone"] else "no"
            rows.append([name, "", f"{latest:.2f}", f"{one['seen_s']:.1f}", alone])
            targets += [
                Target(f"latest, {name}", latest, _TARGET_MS, at_least=False, unit=" ms"),
                Target(f"seen, {name}", one["seen_s"], _TARGET_S, at_least=False, unit=" s"),
            ]
    harness.print_table(
        "The latest decision",
        ["", "no change, ms", "change, ms", "seen after, s", "before other programs"],
        rows,
    )
    harness.print_targets(targets)
    harness.write_json(options.json, "rule_change", {"found": found, "targets": targets})


if __name__ == "__main__":
    main()
