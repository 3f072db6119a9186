"""How late a decision comes because rules change.

    python benchmarks/python/bench_rule_change.py [--quick] [--json FILE]

A RuleFile of 1,000 and of 10,000 rules, in JSON and in YAML, is replaced by another version several
times, while a thread, and a task of an event loop, decide every 0.2 ms by its rules. A decision is
late by the time from when it was due until it is made. The table has the latest decision, beside
the latest one without a change, and the time until the change is seen. Then the same in four
processes that follow one file, as the workers of a service do.

The rules do not cause the delays of other programs. So the threads that decide get the highest
priority if that is permitted (as root); the table shows whether it was. The rules do not cause
delays of the whole machine either, such as those by the host of a virtual machine: on each core a
witness, a process of the same priority that only wakes every 1 ms, detects them. The table has
the latest decision as it was ("change"), the latest witness ("machine"), and the latest decision
without the time in which a witness waited too ("by the rules"), to which the target applies.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import harness
from harness import Target

_PACE_S = 2e-4
_WITNESS_PACE_S = 1e-3
_CALM_S = 3.0
# Shorter waits are not recorded.
_LEAST_S = 1e-3
# The time for freeing the old rules after a change.
_AFTERWARDS_S = 0.5
_MOST_S = 120.0
_WORKERS = 4
_TARGET_MS = 5.0
_PARTS = ("calm_ms", "changed_ms", "machine_ms", "by_rules_ms")
_TARGET_S = 2.0


def _document(size: int, version: int) -> dict[str, Any]:
    """`size` rules, half of them with patterns; each of them differs in the next version."""
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


# When something was due, and when it was done, in seconds of time.perf_counter().
_Wait = tuple[float, float]


class _Waits:
    """The waits that count: those of at least `_LEAST_S`, and the longest."""

    def __init__(self) -> None:
        self.longest: _Wait = (0.0, 0.0)
        self._long: list[_Wait] = []

    def add(self, due: float) -> None:
        done = time.perf_counter()
        if done - due > self.longest[1] - self.longest[0]:
            self.longest = (due, done)
        if done - due >= _LEAST_S:
            self._long.append((due, done))

    def all(self) -> list[_Wait]:
        return [*self._long, self.longest]


def _waits_of_thread(
    decide: Callable[[], object], is_over: Callable[[], bool], pace_s: float = _PACE_S
) -> list[_Wait]:
    waits = _Waits()
    while not is_over():
        due = time.perf_counter() + pace_s
        time.sleep(pace_s)
        decide()
        waits.add(due)
    return waits.all()


def _waits_of_loop(decide: Callable[[], object], is_over: Callable[[], bool]) -> list[_Wait]:
    async def run() -> list[_Wait]:
        waits = _Waits()
        while not is_over():
            due = time.perf_counter() + _PACE_S
            await asyncio.sleep(_PACE_S)
            decide()
            waits.add(due)
        return waits.all()

    return asyncio.run(run())


def _longest_ms(waits: Sequence[_Wait], without: Sequence[_Wait] = ()) -> float:
    """The longest of `waits`, in ms, not counting the time that lies in one of `without` too."""
    longest = 0.0
    for due, done in waits:
        counted = done - due
        reached = due
        for begin, end in sorted(without):
            begin, end = max(begin, reached), min(end, done)
            if end > begin:
                counted -= end - begin
                reached = end
        longest = max(longest, counted)
    return longest * 1e3


class _Witnesses:
    """Processes, one on each core, that only wake every 1 ms."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--witness"]
        self._processes = [
            subprocess.Popen([*command, str(core)], stdin=PIPE, stdout=PIPE, text=True)
            for core in sorted(os.sched_getaffinity(0))
        ]
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()

    def end(self) -> list[_Wait]:
        """The waits of the witnesses."""
        said = [process.communicate()[0] for process in self._processes]
        return [(due, done) for text in said for due, done in json.loads(text)]


def _witness(core: int) -> None:
    ended = _end_of_input()
    os.sched_setaffinity(0, [core])
    _put_before_others()
    print(flush=True)
    print(json.dumps(_waits_of_thread(lambda: None, ended.is_set, _WITNESS_PACE_S)))


def _end_of_input() -> threading.Event:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    return ended


def _put_before_others() -> bool:
    """Gives this thread, which decides, a higher priority than all other threads of the machine.

    Threads that read and compile rules keep their ordinary priority, as in a service: threads of
    one real-time priority do not take turns, so on few cores the readers of several workers would
    delay every decision.
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
    size: int, format: str, waits_of: Callable[..., list[_Wait]], changes: int, path: Path
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
        calm = waits_of(decide, lambda: time.monotonic() > end)
        changed = []
        seen_s = []
        witnesses = _Witnesses()
        for text in texts[1:]:
            change = _Change(source)
            _put(path, text)
            changed += waits_of(decide, change.is_over)
            seen_s.append(change.seen_s)
        machine = witnesses.end()
    return {
        "calm_ms": _longest_ms(calm),
        "changed_ms": _longest_ms(changed),
        "machine_ms": _longest_ms(machine),
        "by_rules_ms": _longest_ms(changed, machine),
        "seen_s": max(seen_s),
        "alone": alone,
    }


def _work(path: str) -> None:
    """A worker: decides until its input ends, then prints when it saw changes and how late it was.

    Prints a line when it has the rules.
    """
    import tidegate
    from tidegate.rules import RuleFile

    ended = _end_of_input()
    with RuleFile(path) as source:
        limiter = tidegate.Limiter(rules=source)
        alone = _put_before_others()
        seen: list[tuple[str, float]] = [(source.current.digest, time.monotonic())]
        print(flush=True)

        def decide() -> object:
            if source.current.digest != seen[-1][0]:
                seen.append((source.current.digest, time.monotonic()))
            return limiter.check(user="42", endpoint="/api/posts", method="GET")

        waits = _waits_of_thread(decide, ended.is_set)
    print(json.dumps({"seen": [at for _, at in seen[1:]], "waits": waits, "alone": alone}))


def _measure_workers(size: int, format: str, changes: int, path: Path) -> dict[str, Any]:
    texts = [_text(_document(size, version), format) for version in range(changes + 1)]
    _put(path, texts[0])
    command = [sys.executable, __file__, "--work", str(path)]
    workers = [
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(_WORKERS)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    witnesses = _Witnesses()
    put = []
    for text in texts[1:]:
        put.append(time.monotonic())
        _put(path, text)
        time.sleep(3 * _TARGET_S)
    machine = witnesses.end()
    answers = [json.loads(worker.communicate()[0]) for worker in workers]
    for answer in answers:
        if len(answer["seen"]) != changes:
            sys.exit(f"a worker saw {len(answer['seen'])} of {changes} changes")
    changed = [(due, done) for answer in answers for due, done in answer["waits"]]
    return {
        "changed_ms": _longest_ms(changed),
        "machine_ms": _longest_ms(machine),
        "by_rules_ms": _longest_ms(changed, machine),
        "seen_s": max(at - begun for answer in answers for at, begun in zip(answer["seen"], put)),
        "alone": all(answer["alone"] for answer in answers),
    }


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        _work(sys.argv[2])
        return
    if sys.argv[1:2] == ["--witness"]:
        _witness(int(sys.argv[2]))
        return
    parser = harness.arguments(__doc__ or "", rounds=5, quick_rounds=2)
    options = parser.parse_args()
    assert harness.load_tidegate() is not None
    harness.print_interpreter()
    rows = []
    found: dict[str, Any] = {}
    targets = []
    ways = (("thread", _waits_of_thread), ("loop", _waits_of_loop))
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        for size in (1_000, 10_000):
            for format in ("json", "yaml"):
                path = Path(directory) / f"rules.{format}"
                for who, waits_of in ways:
                    name = f"{size:,} rules, {format.upper()}, {who}"
                    found[name] = _measure(size, format, waits_of, harness.rounds_of(options), path)
            name = f"{size:,} rules, JSON, {_WORKERS} workers"
            path = Path(directory) / "rules.json"
            found[name] = _measure_workers(size, "json", harness.rounds_of(options), path)
    for name, one in found.items():
        times = [f"{one[part]:.2f}" if part in one else "" for part in _PARTS]
        rows.append([name, *times, f"{one['seen_s']:.1f}", "yes" if one["alone"] else "no"])
        latest = one["by_rules_ms"]
        targets.append(Target(f"latest, {name}", latest, _TARGET_MS, at_least=False, unit=" ms"))
        if name.startswith("1,000") or "workers" in name:
            seen = one["seen_s"]
            targets.append(Target(f"seen, {name}", seen, _TARGET_S, at_least=False, unit=" s"))
    harness.print_table(
        "The latest decision, ms",
        ["", "no change", "change", "machine", "by the rules", "seen, s", "before other programs"],
        rows,
    )
    harness.report(options.json, "rule_change", {"found": found}, targets)


if __name__ == "__main__":
    main()
