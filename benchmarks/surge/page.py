"""Writes the figures of a surge into its page, between two markers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import machine
import report_page
import summary

_PICTURES = (
    ("latency", "How long admitted riders wait, by the second at which they asked"),
    ("goodput", "Rides and fares that reach riders, and the queue of the matching service"),
    ("refusals", "How long refusals take, and which limits refuse"),
    ("others", "The same surge behind each limiter"),
)


def _ms(value: float | None) -> str:
    """Milliseconds with as many places as mean something."""
    if value is None:
        return ""
    return (
        f"{value / 1000:,.2f} s" if value >= 1000 else f"{value:,.{0 if value >= 100 else 2}f} ms"
    )


def line(figures: dict[str, Any]) -> str:
    """One scenario as a line of text."""
    late = figures["generator_late_p99_ms"]
    return (
        f"{figures['title']}: p99 {_ms(figures['admitted']['p99_ms'])}, "
        f"refused {figures['refused']} of {figures['asked']} in "
        f"{_ms(figures['refusals_in_process']['p99_ms']) or 'no time'} (p99 in the process), "
        f"goodput {figures['goodput_share']:.1%}, calm refused {figures['calm_refused']} of "
        f"{figures['calm_asked']}, cost {figures.get('cost', {}).get('ratio', '-')}, "
        f"generator late {_ms(late)} (p99)"
    )


def table(headers: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def targets_table(targets: list[dict[str, Any]]) -> str:
    """The targets with their measured values."""
    rows = [
        [
            each["what"],
            f"{each['value']:,g}{each['unit']}",
            f"{'at least' if each['at_least'] else 'at most'} {each['bound']:g}{each['unit']}",
            "reached" if each["reached"] else "**missed**",
        ]
        for each in targets
    ]
    return table(["", "measured", "target", ""], rows)


def scenarios_table(scenarios: dict[str, Any]) -> str:
    """One row a scenario: what riders got, and what it cost."""
    rows = []
    for each in scenarios.values():
        cost = each.get("cost")
        rows.append(
            [
                each["title"],
                _ms(each["admitted"]["p50_ms"]) + " / " + _ms(each["admitted"]["p99_ms"]),
                f"{each['failed_share']:.1%}",
                f"{each['goodput_share']:.1%}",
                f"{each['calm_refused']:,} of {each['calm_asked']:,}",
                _ms(each["refusals_in_process"]["p99_ms"]),
                _ms(each["refusals_seen"]["p99_ms"]),
                f"{summary.front_cores(each):.2f}",
                f"{cost['ratio']:.2f}" if cost else "",
            ]
        )
    headers = ["", "admitted: p50 / p99", "gave up or failed", "goodput", "calm riders refused"]
    headers += ["refusals in the process, p99", "seen by riders, p99", "CPU of the API, cores"]
    return table([*headers, "CPU of a refusal over an admitted request"], rows)


def generated(results: dict[str, Any]) -> str:
    """Everything between the markers."""
    parts = [machine.sentences(results["machine"])]
    if results["quick"]:
        parts.append("**This was a quick run, which shows that it works and measures nothing.**")
    if results["targets"]:
        parts.append(targets_table(results["targets"]))
    parts.append(scenarios_table(results["scenarios"]))
    parts += [f"![{text}](images/surge-{name}.png)" for name, text in _PICTURES]
    return "\n\n".join(parts)


def write(path: Path, results: dict[str, Any]) -> None:
    """Replaces what is between the markers of the page."""
    report_page.replace(path, generated(results))
