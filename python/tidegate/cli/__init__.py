"""The command ``tidegate``."""
