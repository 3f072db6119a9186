"""Limiters: limits, plans, slots, waiting, and the storages of their counts."""
