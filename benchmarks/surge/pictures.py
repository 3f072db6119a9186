"""Draws the figures of a surge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import summary

matplotlib.use("Agg")
from matplotlib import pyplot as plt

_COLOURS = {
    "none": "#c23b22",
    "tidegate": "#1f6f8b",
    "tidegate-redis": "#5aa9c4",
    "tidegate-leased": "#7b5aa6",
    "tidegate-half": "#d98e04",
    "tidegate-load": "#3a7d44",
}
_OTHER = "#8a8a8a"
_LIMITS = ("rides", "fares")


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Writes the pictures of those scenarios that were run, and returns their paths."""
    drawn = []
    for name, figure in _figures(results):
        path = folder / f"surge-{name}.png"
        figure.tight_layout()
        figure.savefig(path, dpi=110, metadata={"Software": None})
        plt.close(figure)
        drawn.append(path)
    return drawn


def _figures(results: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    scenarios, surge = results["scenarios"], results["surge"]
    ours = {name: each for name, each in scenarios.items() if name in _COLOURS}
    yield "latency", _latency(ours)
    yield "goodput", _goodput(ours, surge)
    yield "refusals", _refusals(scenarios)
    yield "others", _others(scenarios)


def _latency(scenarios: dict[str, Any]) -> Any:
    figure, axes = plt.subplots(figsize=(8, 4))
    for name, each in scenarios.items():
        line = each["timeline"]
        points = [(s, p) for s, p in zip(line["second"], line["p99_s"]) if p is not None]
        if points:
            axes.plot(*zip(*points), color=_COLOURS[name], label=each["title"])
    axes.set(xlabel="the rider asks at second", ylabel="wait, p99 of each second (s)", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _goodput(scenarios: dict[str, Any], surge: dict[str, Any]) -> Any:
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    for name, each in scenarios.items():
        line = each["timeline"]
        above.plot(line["second"], line["goodput"], color=_COLOURS[name], label=each["title"])
        below.plot(line["queued_at"], line["queued"], color=_COLOURS[name])
    above.axhline(surge["capacity"], color="black", linestyle=":", linewidth=1)
    above.set(ylabel="answers in time, a second")
    below.set(xlabel="second", ylabel="jobs in the queue", yscale="symlog")
    below.set_ylim(bottom=0)
    for axes in (above, below):
        axes.grid(alpha=0.3)
    above.legend(fontsize="small")
    return figure


def _refusals(scenarios: dict[str, Any]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
    refusing = {name: each for name, each in scenarios.items() if each["refused"]}
    titles = [each["title"] for each in refusing.values()]
    rows = range(len(refusing))
    for offset, key, colour, label in (
        (-0.2, "refusals_in_process", "#1f6f8b", "in the process"),
        (0.2, "refusals_seen", "#bcd7e0", "seen by riders"),
    ):
        times = [each[key]["p99_ms"] or 0 for each in refusing.values()]
        left.barh([row + offset for row in rows], times, 0.4, color=colour, label=label)
    left.set(xlabel="time of a refusal, p99 (ms)", xscale="log", yticks=list(rows))
    left.set_xlim(left=0.01)
    left.set_yticklabels(titles)
    left.legend(fontsize="small")
    begins = [0.0] * len(refusing)
    for limit, colour in zip(_LIMITS, ("#1f6f8b", "#d98e04")):
        counts = [each["refusals_by_limit"].get(limit, 0) for each in refusing.values()]
        right.barh(list(rows), counts, left=begins, color=colour, label=limit)
        begins = [begin + count for begin, count in zip(begins, counts)]
    right.set(xlabel="refusals", yticks=[])
    right.legend(fontsize="small")
    for axes in (left, right):
        axes.invert_yaxis()
    return figure


def _others(scenarios: dict[str, Any]) -> Any:
    figure, places = plt.subplots(1, 4, figsize=(12, 3.6), sharey=True)
    compared = {
        name: each
        for name, each in scenarios.items()
        if name not in ("tidegate-half", "tidegate-load")
    }
    colours = [_COLOURS.get(name, _OTHER) for name in compared]
    rows = list(range(len(compared)))
    columns = (
        ("goodput, % of the capacity", lambda e: e["goodput_share"] * 100, "linear"),
        ("wait of the admitted, p99 (s)", lambda e: (e["admitted"]["p99_ms"] or 0) / 1e3, "log"),
        ("calm riders refused, %", lambda e: 100 * e["calm_refused"] / e["calm_asked"], "linear"),
        ("CPU of the API, cores", summary.front_cores, "linear"),
    )
    for axes, (title, value, scale) in zip(places, columns):
        values = [value(each) for each in compared.values()]
        axes.barh(rows, values, color=colours)
        axes.set(xlabel=title, xscale=scale, yticks=rows)
        axes.set_xlim(left=0.05 if scale == "log" else 0, right=None if any(values) else 1)
    places[0].set_yticklabels([each["title"] for each in compared.values()])
    places[0].invert_yaxis()
    return figure
