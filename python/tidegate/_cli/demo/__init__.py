"""``tidegate demo``."""
