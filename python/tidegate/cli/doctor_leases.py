"""What ``tidegate doctor`` says of leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate import _core
from tidegate.limiter.leasing import leasing_of
from tidegate.limiter.storage.uri import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from tidegate._core import Limit
    from tidegate.cli.doctor_report import Report

__all__ = ["leases"]


def leases(report: Report, storage: str, limits: Sequence[Limit]) -> None:
    """Says which of the limits are leased, each for itself, and why the others are not."""
    if not limits:
        return
    store = open_store(storage, {"on_error": "closed"})
    assert isinstance(store, _core.RedisStore)
    figures: list[dict[str, Any]] = []
    for limit in limits:
        # Not as one plan.
        (leasing,) = leasing_of(store, [limit])
        name = f"{limit} ({limit.algorithm})"
        figures.append({"limit": name, "seconds": leasing.seconds, "why": leasing.why})
        report.add("note" if leasing.why else "ok", "leases", f"{name}: {leasing}")
    report.figures["leases"] = figures
