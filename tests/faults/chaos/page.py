"""The table of docs/reliability.md, from the report of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from chaos.fault import GROUPS

BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"


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


def names_in(page: str) -> list[str]:
    """The faults that the page lists."""
    text = page.partition(BEGIN)[2].partition(END)[0]
    return re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)


def rewrite(path: Path, report: dict[str, Any]) -> None:
    text = path.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    if not found:
        raise ValueError(f"expected {BEGIN} in {path}, found none")
    path.write_text(f"{before}{BEGIN}\n\n{table(report)}\n{END}{after}", encoding="utf-8")
