"""Findings about limits from the INFO of a Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.cli.doctor_report import Report

__all__ = ["memory", "persistence", "server"]


def server(report: Report, info: dict[str, str]) -> None:
    """Kind and version."""
    if not info:
        return
    kind, version = _kind(info)
    report.figures["server"] = {"kind": kind, "version": version}
    old = _numbers(info.get("redis_version", "")) < (5,)
    report.add(
        "warning" if old else "ok",
        "server",
        f"{kind} {version}" + ("; scripts are tried with 5.0 and newer" if old else ""),
    )
    if info.get("loading") == "1":
        report.add("problem", "server", "it is still loading its data set")


def memory(report: Report, info: dict[str, str]) -> None:
    """Whether limits may be evicted."""
    if "maxmemory" not in info:
        return
    most, used = int(info["maxmemory"]), int(info.get("used_memory", "0"))
    policy = info.get("maxmemory_policy", "noeviction")
    evicted = int(info.get("evicted_keys", "0"))
    report.figures["memory"] = {
        "maxmemory": most,
        "used": used,
        "policy": policy,
        "evicted_keys": evicted,
    }
    if most == 0:
        text = "maxmemory is not set: nothing is evicted"
        if policy != "noeviction":
            text += f"; with one, {policy} would evict limits"
        report.add("ok", "memory", text)
        return
    share = f"{used / most:.0%} of {most / 2**20:,.0f} MiB used"
    if policy != "noeviction":
        so_far = f", {evicted:,} keys so far" if evicted else ""
        report.add(
            "warning",
            "memory",
            f"{policy} may evict limits when memory is full ({share}{so_far}), and a client whose "
            "limit is evicted starts from zero: use noeviction, or a Redis only for limits",
        )
    elif used > 0.9 * most:
        report.add(
            "warning",
            "memory",
            f"{share}, and noeviction refuses writes when it is full: then limits are decided "
            "without Redis",
        )
    else:
        report.add("ok", "memory", f"{share}, noeviction")


def persistence(report: Report, info: dict[str, str], setting: Callable[[str], str | None]) -> None:
    """Yields what a restart would forget; `setting` reads a setting of the server."""
    if "aof_enabled" not in info:
        return
    aof = info["aof_enabled"] == "1"
    save = setting("save")
    snapshots = None if save is None else save != ""
    report.figures["persistence"] = {"aof": aof, "snapshots": snapshots}
    failed = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        report.add(
            "warning",
            "persistence",
            f"{' and '.join(failed)} is not ok: the server may refuse all writes (MISCONF)",
        )
    if aof and setting("appendfsync") == "always":
        report.add(
            "warning",
            "persistence",
            "appendfsync is always: each check waits for the disk; everysec loses a second",
        )
    if aof:
        report.add("ok", "persistence", "append-only file")
    elif snapshots:
        report.add(
            "note",
            "persistence",
            "snapshots only: a restart brings limits back as they were at the last one",
        )
    elif snapshots is not None:
        report.add("note", "persistence", "none: after a restart all limits start from zero")


def _kind(info: dict[str, str]) -> tuple[str, str]:
    if "valkey_version" in info:
        return "Valkey", info["valkey_version"]
    if "dragonfly_version" in info:
        return "Dragonfly", info["dragonfly_version"]
    version = info.get("redis_version", "of unknown version")
    if "mvcc_depth" in info or "keydb" in info.get("executable", ""):
        return "KeyDB", version
    return "Redis", version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
