"""Quotas, behind `tidegate.quotas`."""
