"""From what became of each arrival, and from samples of the processes, to figures.

A rider who was refused has got an answer. All others are *admitted*: they were answered, or gave
up after their patience, and then count with it, or failed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from schedule import Arrival, Surge, is_calm

_PERCENTILES = (50, 90, 99, 99.9)


@dataclass(frozen=True)
class Outcome:
    """What became of an arrival: seconds from the beginning, and the status; 0 is no answer."""

    arrival: Arrival
    sent: float
    ended: float
    status: int
    limits: tuple[str, ...] = ()

    @property
    def latency(self) -> float:
        """From the instant at which the rider tapped, whether or not the generator was late."""
        return self.ended - self.arrival.at


@dataclass(frozen=True)
class Sample:
    """The matching service and the CPU seconds of the processes at an instant."""

    at: float
    queued: int
    done: int
    cpu: dict[str, float]


def outcomes(schedule: Sequence[Arrival], rows: Iterable[Sequence[Any]]) -> list[Outcome]:
    """The rows of drive.py with their arrivals."""
    return [
        Outcome(schedule[number], sent, ended, status, tuple(limits))
        for number, sent, ended, status, limits in rows
    ]


def violated(body: str | None) -> list[str]:
    """The limits that a refusal names; none if it names none."""
    try:
        found = json.loads(body or "{}")
    except ValueError:
        return []
    named = found.get("violated-policies", []) if isinstance(found, dict) else []
    return [str(name) for name in named]


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that is not below `percent` of all; nan without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(seconds: Sequence[float]) -> dict[str, float | int | None]:
    """Percentiles in milliseconds, and how many there are; None without values."""
    figures: dict[str, float | int | None] = {"count": len(seconds)}
    for percent in _PERCENTILES:
        figures[f"p{percent:g}_ms"] = (
            round(percentile(seconds, percent) * 1e3, 3) if seconds else None
        )
    figures["most_ms"] = round(max(seconds) * 1e3, 3) if seconds else None
    return figures


def summarize(
    surge: Surge,
    found: Sequence[Outcome],
    samples: Sequence[Sample],
    taken: dict[str, list[tuple[float, float]]],
) -> dict[str, Any]:
    """The figures of one scenario. `taken` are (instant, seconds) inside the process, by status."""
    refused = [each for each in found if each.status == 429]
    admitted = [each for each in found if each.status != 429]
    answered = [each for each in admitted if each.status == 200]
    ended = max((each.ended for each in found), default=0.0)
    calm = [each for each in found if is_calm(each.arrival.rider)]
    useful = [each for each in answered if surge.ramp <= each.ended <= ended]
    goodput = len(useful) / (ended - surge.ramp) if ended > surge.ramp else 0.0
    within = [each for each in samples if each.at <= ended + 1]
    done = within[-1].done - within[0].done if within else 0
    return {
        "asked": len(found),
        "answered": len(answered),
        "refused": len(refused),
        "gave_up_or_failed": len(admitted) - len(answered),
        "failed_share": round(1 - len(answered) / len(admitted), 4) if admitted else 0.0,
        "ended_s": round(ended, 2),
        "admitted": spread([min(each.latency, surge.patience) for each in admitted]),
        "refusals_seen": spread([each.latency for each in refused]),
        "refusals_in_process": spread([s for at, s in taken.get("429", []) if at <= ended]),
        "goodput_per_s": round(goodput, 2),
        "goodput_share": round(goodput / surge.capacity, 4),
        "jobs_for_nobody": max(0, done - len(answered)),
        "calm_asked": len(calm),
        "calm_refused": sum(each.status == 429 for each in calm),
        "calm_answered": sum(each.status == 200 for each in calm),
        "refusals_by_limit": dict(Counter(_limit_of(each) for each in refused)),
        "most_queued": max((each.queued for each in within), default=0),
        "cpu_share": _cpu_shares(within),
        "generator_late_p99_ms": spread([each.sent - each.arrival.at for each in found])["p99_ms"],
        "timeline": timeline(surge, found, within),
    }


def _limit_of(refusal: Outcome) -> str:
    """The limits that the refusal names, else the endpoint's."""
    return "+".join(refusal.limits) or refusal.arrival.path.split("/")[2]


def _cpu_shares(samples: Sequence[Sample]) -> dict[str, float]:
    """Cores that each process, with its workers, was busy on."""
    if len(samples) < 2 or samples[-1].at <= samples[0].at:
        return {}
    first, last = samples[0], samples[-1]
    passed = last.at - first.at
    return {
        name: round((seconds - first.cpu.get(name, 0.0)) / passed, 3)
        for name, seconds in last.cpu.items()
    }


def front_cores(figures: dict[str, Any]) -> float:
    """Cores that the API was busy on, with the proxy in front of it."""
    shares = figures["cpu_share"]
    return float(shares.get("front", 0.0) + shares.get("envoy", 0.0))


def timeline(
    surge: Surge, found: Sequence[Outcome], samples: Sequence[Sample]
) -> dict[str, list[Any]]:
    """A row a second: latencies by the second of the arrival, answers by their own."""
    seconds = math.ceil(max([each.ended for each in found] + [surge.seconds]))
    latencies: list[list[float]] = [[] for _ in range(seconds)]
    goodput, refused = [0] * seconds, [0] * seconds
    for each in found:
        if each.status == 429:
            refused[int(each.arrival.at)] += 1
            continue
        latencies[int(each.arrival.at)].append(min(each.latency, surge.patience))
        if each.status == 200:
            goodput[min(int(each.ended), seconds - 1)] += 1

    def of_each(percent: float) -> list[float | None]:
        return [round(percentile(each, percent), 4) if each else None for each in latencies]

    return {
        "second": list(range(seconds)),
        "p50_s": of_each(50),
        "p99_s": of_each(99),
        "goodput": goodput,
        "refused": refused,
        "queued_at": [round(each.at, 2) for each in samples],
        "queued": [each.queued for each in samples],
    }


def targets(scenarios: dict[str, Any]) -> list[dict[str, Any]]:
    """What has to be reached, of those scenarios that were run."""
    found: list[dict[str, Any]] = []

    def add(what: str, value: float, bound: float, unit: str, at_least: bool = False) -> None:
        reached = value >= bound if at_least else value <= bound
        found.append(
            {"what": what, "value": round(value, 3), "bound": bound, "unit": unit}
            | {"at_least": at_least, "reached": reached}
        )

    ours = scenarios.get("tidegate")
    if ours is None:
        return found
    without = scenarios.get("none")
    if without is not None and ours["admitted"]["p99_ms"]:
        ratio = without["admitted"]["p99_ms"] / ours["admitted"]["p99_ms"]
        add("p99 of admitted requests, without a limiter over with", ratio, 50, "x", True)
    if ours["refusals_in_process"]["p99_ms"] is not None:
        in_process = ours["refusals_in_process"]["p99_ms"]
        add("refusals in the process, p99", in_process, 1, " ms")
    add("goodput over the capacity", ours["goodput_share"] * 100, 95, " %", True)
    refused = sum(
        each["calm_refused"] for name, each in scenarios.items() if name.startswith("tidegate")
    )
    add("riders within their limits who were refused", refused, 0, "")
    if "cost" in ours:
        add("CPU of a refusal over that of an admitted request", ours["cost"]["ratio"], 0.3, "x")
    return found
