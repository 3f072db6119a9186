"""Rules in a database: PostgreSQL, or SQLite within the process.

::

    from tidegate.rules.sql import SqlRules, SqlTiers, upgrade

    upgrade("postgresql://db.internal/shop")  # once: makes the tables
    limiter = tidegate.Limiter(
        rules=SqlRules("postgresql://db.internal/shop"),
        tiers=SqlTiers("postgresql://db.internal/shop"),
    )

Needs the extra ``sql``, for PostgreSQL ``postgres``: ``pip install 'tidegate[postgres]'``.
"""

from __future__ import annotations

import tidegate.rules.sql.connection  # noqa: F401  (says what to install)
from tidegate.rules.sql.service_tables import metadata
from tidegate.rules.sql.sql_rules import SqlRules, read_rules
from tidegate.rules.sql.sql_tiers import SqlTiers
from tidegate.rules.sql.upgrade import upgrade

__all__ = ["SqlRules", "SqlTiers", "metadata", "read_rules", "upgrade"]
