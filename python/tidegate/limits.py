"""The storages of tidegate.contrib.limits_storage, under a shorter name."""

from __future__ import annotations

from tidegate.contrib.limits_storage import AsyncTidegateStorage, TidegateStorage

__all__ = ["AsyncTidegateStorage", "TidegateStorage"]
