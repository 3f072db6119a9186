"""Tuning: what limits would have said to the requests of a log. Needs NumPy."""
