"""Rules, tiers and violations in a database."""
