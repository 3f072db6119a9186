"""Usage history: how many requests of which user were allowed and refused, by hour.

::

    from tidegate.rules.usage import UsageHistory, usage_of

    history = UsageHistory("sqlite:///tidegate.db")
    history.add("42", "/api/posts", allowed=3, refused=1, cost=3)

The table is made by `tidegate.rules.sql.upgrade()`. Needs the extra ``sql``, for PostgreSQL
``postgres``: ``pip install 'tidegate[postgres]'``.
"""

from tidegate.rules.sql.usage_history import UsageHistory, UsageHour, usage_of

__all__ = ["UsageHistory", "UsageHour", "usage_of"]
