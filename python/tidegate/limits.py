"""The storages of tidegate.contrib.limits_storage, by the name under which they came first."""

from __future__ import annotations

from tidegate.contrib.limits_storage import AsyncTidegateStorage, TidegateStorage

__all__ = ["AsyncTidegateStorage", "TidegateStorage"]
