"""Calls to the services of others: within a limit, and again when they say so."""
