"""Checks the laws against the reports of the processes of one fault."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fault_verdict import FaultVerdict

from chaos.fault import NONE, SOME, Fault
from chaos.load import OPERATIONS, OWN_COUNT, PERIOD_DAYS, SHARED_COUNT

# How long a call may take beyond its deadline because a thread, or a loop, does not run at once.
P999_ALLOWANCE = 0.025
WORST_ALLOWANCE = 0.1
# A thread that is woken later than this had no processor (cpp/core/redis/transport/connection.cc).
LATE_WAKE = 0.005
STALL_TARGET = 0.005
# Beyond this, the processors have more to do than to run the campaign: a loop that does nothing
# is itself late by so much in one tick of a thousand.
OVERSUBSCRIBED = 0.004
# The time without guarantees: a connection without replies is given up after a second.
SILENCE = 1.0
LONGEST_BACKOFF = 5.0
MEMORY_GROWTH = 100 << 20


@dataclass
class Window:
    """The delays of the control loop in a stretch of time: the machine's own."""

    p999: float = 0.0
    worst: float = 0.0


@dataclass
class Verdict(FaultVerdict):
    group: str = ""
    topology: str = ""
    exceptions: int = 0
    healthy_degraded: int = 0  # before the fault and after the recovery
    shared_keys: int = 0
    over_admitted: int = 0
    p999_ms: float = 0.0
    worst_ms: float = 0.0
    stall_p999_ms: float | None = None
    machine_p999_ms: float = 0.0
    machine_worst_ms: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)
    not_judged: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, fault: Fault) -> Verdict:
        return cls(fault.name, fault.says, group=fault.group, topology=fault.topology)


def quantile(values: Sequence[float], share: float) -> float:
    if not values:
        return 0.0
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def recovery_bound(fault: Fault, lasted: float, options: dict[str, Any]) -> float:
    """Seconds within which the servers decide again, once the fault has ended."""
    reconnect = min(LONGEST_BACKOFF, lasted) + float(options["connect_timeout"])
    probe = 1.1 * float(options["breaker_open"]) + 2 * float(options["timeout"])
    return SILENCE + reconnect + probe + fault.reconnects + 0.5


@dataclass
class Times:
    """Instants of the monotonic clock."""

    begun: float  # the load was warm
    ended: float  # the fault was over
    recovered: float | None
    stopped: float


@dataclass
class _Run:
    """What the processes of the load report, and what they ran on and with."""

    reports: list[dict[str, Any]]
    times: Times
    machine: Window
    options: dict[str, Any]


def judge(
    fault: Fault,
    reports: list[dict[str, Any]],
    times: Times,
    machine: Window,
    options: dict[str, Any],
    fallbacks: int,
    notes: dict[str, Any],
    broken: list[str],
) -> Verdict:
    """`fallbacks` is how many stores decided in the servers' place, each for itself."""
    verdict = Verdict.of(fault)
    verdict.seconds = times.stopped - times.begun
    verdict.notes, verdict.broken = notes, broken
    verdict.machine_p999_ms = machine.p999 * 1e3
    verdict.machine_worst_ms = machine.worst * 1e3
    if reports:
        _exceptions(verdict, reports)
        run = _Run(reports, times, machine, options)
        _recovery(verdict, fault, run)
        _shared(verdict, fault, reports, fallbacks)
        _own(verdict, fault, reports)
        _durations(verdict, fault, run)
        _stalls(verdict, fault, run)
        _leaks(verdict, reports)
        _health(verdict, fault, reports)
    return verdict


def _exceptions(verdict: Verdict, reports: list[dict[str, Any]]) -> None:
    for report in reports:
        verdict.exceptions += sum(report["errors"].values())
        for text, times in list(report["errors"].items())[:3]:
            verdict.broken.append(f"{times} calls raised, such as {text}")


def _recovery(verdict: Verdict, fault: Fault, run: _Run) -> None:
    degraded = sorted(at for report in run.reports for at in report["degraded_at"])
    verdict.calls = sum(
        len(calls["seconds"]) for report in run.reports for calls in report["calls"].values()
    )
    verdict.degraded = len(degraded)
    within = [at for at in degraded if run.times.begun <= at]
    if fault.degraded == SOME and not within:
        verdict.broken.append("the fault did not bite: the servers decided every call")
    # A server that is not run for the length of a deadline fails it, whoever is to blame.
    timeout = float(run.options["timeout"])
    noisy, drowned = run.machine.worst > 0.3 * timeout, run.machine.worst > 0.7 * timeout
    if fault.degraded == NONE and within:
        text = f"{len(within)} calls were decided without a server that was well"
        if drowned or (noisy and len(within) <= verdict.calls / 200):
            verdict.not_judged.append(f"{text}: the machine itself was late")
        else:
            verdict.broken.append(text)
    if not fault.recovers:
        return
    bound = recovery_bound(fault, run.times.ended - run.times.begun, run.options)
    if run.times.recovered is None:
        text = f"it did not recover within {bound:.1f} s"
        if run.machine.p999 > timeout:
            verdict.not_judged.append(f"{text}: the machine itself was late")
        else:
            verdict.broken.append(text)
        return
    verdict.recovery_s = max(0.0, run.times.recovered - run.times.ended)
    if verdict.recovery_s > bound:
        verdict.broken.append(
            f"it recovered after {verdict.recovery_s:.1f} s, not within {bound:.1f} s"
        )
    late = [at for at in degraded if at > run.times.recovered]
    verdict.healthy_degraded = len(late)
    if late:
        text = f"{len(late)} calls were decided without the server after it had recovered"
        (verdict.not_judged if noisy else verdict.broken).append(text)


def _shared(verdict: Verdict, fault: Fault, reports: list[dict[str, Any]], fallbacks: int) -> None:
    """Never more than the limit by the server, and than the fallback's share without it."""
    totals: dict[str, list[int]] = {}
    for report in reports:
        for key, counts in report["shared"].items():
            total = totals.setdefault(key, [0, 0, 0])
            for i, count in enumerate(counts):
                total[i] += count
    verdict.shared_keys = len(totals)
    most = SHARED_COUNT * (1 + fault.forgets)
    most_degraded = SHARED_COUNT * fallbacks
    over = {key: counts for key, counts in totals.items() if counts[0] > most}
    over_degraded = {key: counts for key, counts in totals.items() if counts[1] > most_degraded}
    verdict.over_admitted = sum(c[0] - most for c in over.values()) + sum(
        c[1] - most_degraded for c in over_degraded.values()
    )
    for key, counts in list(over.items())[:2]:
        verdict.broken.append(
            f"the server let {counts[0]} through of {most}: key {key}, {counts[2]} calls"
        )
    for key, counts in list(over_degraded.items())[:2]:
        verdict.broken.append(f"the fallback let {counts[1]} through of {most_degraded}: key {key}")
    if fault.degraded == NONE and not (verdict.degraded or fault.forgets or fault.clock_seconds):
        less = [c for c in totals.values() if c[2] >= 2 * SHARED_COUNT and c[0] < SHARED_COUNT]
        if less and not fault.loses_calls:
            verdict.broken.append(
                f"of a limit of {SHARED_COUNT} only {less[0][0]} passed in {less[0][2]} calls"
            )


def _own(verdict: Verdict, fault: Fault, reports: list[dict[str, Any]]) -> None:
    """Checks that the server charged exactly what it admitted, and nothing twice."""
    stepped = math.ceil(fault.clock_seconds * OWN_COUNT / (PERIOD_DAYS * 86400))
    for report in reports:
        for own in report["own"]:
            if own["charged"] is None:
                if fault.recovers:
                    verdict.broken.append("what was charged could not be read after the fault")
                continue
            least = own["admitted"] - own["refunds"] - stepped
            most = own["admitted"] + own["unknown"] + stepped
            if own["charged"] < least and not fault.forgets:
                verdict.broken.append(
                    f"{own['admitted']} were admitted by the server and {own['refunds']} given "
                    f"back, but only {own['charged']} charged"
                )
                verdict.over_admitted += least - own["charged"]
            if own["charged"] > most and not fault.loses_calls:
                verdict.broken.append(
                    f"{own['charged']} were charged for {own['admitted']} calls that the server "
                    f"admitted and {own['unknown']} whose reply was lost: something was sent twice"
                )


def _durations(verdict: Verdict, fault: Fault, run: _Run) -> None:
    timeout = float(run.options["timeout"])
    for kind in ("sync", "async"):
        taken_by = [
            (taken, OPERATIONS[operation])
            for report in run.reports
            if (calls := report["calls"].get(kind))
            for taken, at, operation in zip(calls["seconds"], calls["ended"], calls["operations"])
            if at >= run.times.begun
        ]
        seconds = [taken for taken, _ in taken_by]
        slowest = max(taken_by, default=(0.0, ""))[1]
        p999, worst = quantile(seconds, 0.999), max(seconds, default=0.0)
        verdict.p999_ms = max(verdict.p999_ms, p999 * 1e3)
        verdict.worst_ms = max(verdict.worst_ms, worst * 1e3)
        blocked = fault.slack + fault.blocks_loops
        for name, value, late, allowance in (
            ("p99.9", p999, run.machine.p999, P999_ALLOWANCE),
            ("worst", worst, run.machine.worst, WORST_ALLOWANCE),
        ):
            # A call whose thread had no processor waits for one more timeout.
            timeouts = 2 if late > LATE_WAKE else 1
            most = timeouts * timeout + allowance + 3 * late + blocked
            if value > most:
                verdict.broken.append(
                    f"the {name} {kind} call took {value * 1e3:.0f} ms; expected at most "
                    f"{most * 1e3:.0f} ms (the worst was a {slowest})"
                )


def _stalls(verdict: Verdict, fault: Fault, run: _Run) -> None:
    late = [
        [value for at, value in zip(ticks["at"], ticks["late"]) if at >= run.times.begun]
        for report in run.reports
        for ticks in report["ticks"]
    ]
    p999 = max((quantile(values, 0.999) for values in late if values), default=None)
    if p999 is None:
        return
    verdict.stall_p999_ms = p999 * 1e3
    if fault.blocks_loops or fault.slack:
        verdict.not_judged.append("stalls of the loop: the fault itself blocks it")
    elif p999 > STALL_TARGET + run.machine.p999:
        text = f"the loop stalled for {p999 * 1e3:.1f} ms (p99.9)"
        if run.machine.p999 > OVERSUBSCRIBED:
            verdict.not_judged.append(f"{text}: the machine itself was late")
        else:
            verdict.broken.append(text)


def _health(verdict: Verdict, fault: Fault, reports: list[dict[str, Any]]) -> None:
    """Failures of a server are its own: they open the breaker, and are no mistakes of ours."""
    for stats in [report["stats"] for report in reports if report["stats"]]:
        if stats["script_errors"] and not fault.script_errors:
            verdict.broken.append(
                f"{stats['script_errors']} failures were counted as mistakes in our scripts"
            )
        if fault.opens_breaker and not stats["breaker_opened"]:
            verdict.broken.append("the circuit breaker never opened")


def _leaks(verdict: Verdict, reports: list[dict[str, Any]]) -> None:
    for report in reports:
        before, after = report["usage"]["before"], report["usage"]["after"]
        for what, name in (("fds", "descriptors"), ("threads", "threads")):
            if after[what] > before[what]:
                verdict.broken.append(
                    f"{after[what]} {name} were in use at the end, {before[what]} at the beginning"
                )
        # The reports themselves are made at the end.
        grown = report["resident"]["after"] - report["resident"]["before"]
        if grown > MEMORY_GROWTH:
            verdict.broken.append(f"the process grew by {grown >> 20} MB")
