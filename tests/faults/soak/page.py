"""Writes the table of the soak in docs/reliability.md from the report of a run."""

from __future__ import annotations

from typing import Any

from page_table import PageTable

TABLE = PageTable("the table of the soak")


def table(report: dict[str, Any]) -> str:
    rows = report["faults"]
    broken = sum(bool(row["broken"]) for row in rows)
    calls = sum(row["calls"] for row in rows)
    first, last = report["rounds"][0], report["rounds"][-1]
    callers = report["samples"][-1]["callers"] if report["samples"] else 0
    grown = "" if report["growth"] is None else f" ({report['growth']:+.1%} in the second half)"
    return "\n".join(
        [
            f"{sum(row['times'] for row in rows)} faults in {report['minutes']:g} minutes, "
            f"{len(report['rounds'])} rounds of {len(rows)} kinds; {len(rows) - broken} kinds held "
            f"each time. {calls:,} checks were answered, {report['wrong']} wrongly, and "
            f"{report['failed']} failed. After the first round the service had "
            f"{_mb(first['resident'])} MB, {first['descriptors']} descriptors and "
            f"{first['threads']} threads, after the last one {_mb(last['resident'])} MB, "
            f"{last['descriptors']} and {last['threads']}{grown}, and had been asked about "
            f"{callers:,} callers. "
            f"{report['server']}, Python {report['python']}, {report['system']}.",
            "",
            "| fault | what happens | times | checks | degraded | wrong | failed | worst ms "
            "| recovers s | MB | descriptors | threads | |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            *map(_row, rows),
            "",
        ]
    )


def _row(row: dict[str, Any]) -> str:
    recovery = row["recovery_s"]
    cells = [
        f"`{row['name']}`",
        row["says"],
        str(row["times"]),
        f"{row['calls']:,}",
        f"{row['degraded']:,}",
        str(row["wrong"]),
        str(row["failed"]),
        f"{row['slowest_ms']:.0f}",
        "" if recovery is None else f"{recovery:.1f}",
        " → ".join(map(_mb, row["resident"])),
        " → ".join(map(str, row["descriptors"])),
        " → ".join(map(str, row["threads"])),
        "**broken**" if row["broken"] else "held",
    ]
    return f"| {' | '.join(cells)} |"


def _mb(size: int) -> str:
    return str(round(size / 2**20))
