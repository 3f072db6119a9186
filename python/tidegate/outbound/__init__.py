"""Calls to APIs: within a limit, and again after a 429."""
