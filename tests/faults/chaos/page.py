"""Writes the table of the faults of Redis in docs/reliability.md from the report of a run."""

from __future__ import annotations

from typing import Any

from page_table import PageTable

from chaos.fault import GROUPS

TABLE = PageTable("the table")


def table(report: dict[str, Any]) -> str:
    faults = report["faults"]
    broken = [fault for fault in faults if fault["broken"]]
    lines = [
        f"{len(faults)} faults in {report['minutes']:g} minutes; {len(faults) - len(broken)} held. "
        f"{report['server']}, Python {report['python']}, {report['system']}.",
        "",
    ]
    for group, title in GROUPS.items():
        rows = [fault for fault in faults if fault["group"] == group]
        if not rows:
            continue
        lines += [
            f"### {title}",
            "",
            "| fault | what happens | calls | degraded | raised | over "
            "| p99.9, worst ms | stall ms | recovers s | |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *map(_row, rows),
            "",
        ]
    return "\n".join(lines)


def _row(fault: dict[str, Any]) -> str:
    counted = bool(fault["calls"])
    stall, recovery = fault["stall_p999_ms"], fault["recovery_s"]
    cells = [
        f"`{fault['name']}`",
        fault["says"],
        f"{fault['calls']:,}" if counted else "",
        f"{fault['degraded']:,}" if counted else "",
        str(fault["exceptions"]),
        str(fault["over_admitted"]),
        f"{fault['p999_ms']:.0f}, {fault['worst_ms']:.0f}" if counted else "",
        "" if stall is None else f"{stall:.1f}",
        "" if recovery is None else f"{recovery:.1f}",
        "**broken**" if fault["broken"] else "held",
    ]
    return f"| {' | '.join(cells)} |"
