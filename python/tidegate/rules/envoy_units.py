"""The units of time of Envoy's rate limit service."""

from __future__ import annotations

__all__ = ["ENVOY_UNITS"]

# Months and years are of a fixed length, and weeks begin on a Thursday as those of limits do.
ENVOY_UNITS = {
    "second": (1, "second"),
    "minute": (1, "minute"),
    "hour": (1, "hour"),
    "day": (1, "day"),
    "week": (7, "day"),
    "month": (30, "day"),
    "year": (365, "day"),
}
"""For each unit, how many of which unit of a limit it is."""
