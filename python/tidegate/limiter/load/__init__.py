"""Limits by load: how loaded the service is, and how much of their limits clients get then."""
