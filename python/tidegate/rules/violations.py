"""Records who was refused: in a log, in SQLite or in PostgreSQL.

from tidegate.rules.violations import ViolationLog

limiter = tidegate.Limiter(rules=rules, violations=ViolationLog("sqlite:///violations.db"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.rules.violation import Violation
from tidegate.rules.violation_log import ViolationLog

if TYPE_CHECKING:
    from tidegate.rules.sql.violation_table import Rise, top_violations

__all__ = ["Rise", "Violation", "ViolationLog", "top_violations"]


def __getattr__(name: str) -> Any:
    # These need SQLAlchemy, and a logger as a sink does not.
    if name in ("Rise", "top_violations"):
        from tidegate.rules.sql import violation_table

        return getattr(violation_table, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
