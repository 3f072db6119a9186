"""Faults of a running `tidegate serve`, with ordinary clients whose answers are checked meanwhile.

`soak_campaign.py` runs the faults, and `docs/reliability.md` has the results.
"""
