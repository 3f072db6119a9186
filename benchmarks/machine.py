"""What a measurement was taken on: the machine, the system and the versions of packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any


def facts(*distributions: str) -> dict[str, Any]:
    """The machine of this run, and the versions of those distributions that are installed."""
    load = os.getloadavg()
    return {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": _first(r"model name\s*: (.+)", "/proc/cpuinfo") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_before": round(load[0], 2),
        "revision": _revision(),
        "versions": versions(*distributions),
    }


def versions(*distributions: str) -> dict[str, str]:
    """The versions of those distributions that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def is_quiet(found: dict[str, Any]) -> bool:
    """Whether less than half of a core was busy in the minute before: else figures mean little."""
    return bool(found["load_before"] < 0.5)


def measured_on(found: dict[str, Any]) -> str:
    """The day, the code and the machine, without the load and the versions of packages."""
    return (
        f"Measured on {found['when']}, at revision {found['revision']}, on a machine with "
        f"{found['cores']} cores ({found['processor']}) and {found['memory_gib']:g} GiB, under "
        f"{found['system']} with {found['python']}."
    )


def sentences(found: dict[str, Any]) -> str:
    """The facts, as a document tells them."""
    listed = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    text = f"{measured_on(found)} The load average before was {found['load_before']:g}."
    return f"{text} Versions: {listed}." if listed else text


def _first(pattern: str, path: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    except OSError:
        return None
    return None if found is None else found[1].strip()


def _revision() -> str:
    """The commit, with "-dirty" where files differ from it beside those that a report writes."""
    revision = ["git", "describe", "--always", "--exclude=*"]
    changed = ["git", "status", "--porcelain", "--", ":/", ":!/docs", ":!/README.md"]
    try:
        found, files = (
            subprocess.run(
                command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in (revision, changed)
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{found}-dirty" if files else found
