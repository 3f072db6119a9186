"""Faults of a running `tidegate serve`, and ordinary clients whose answers are checked meanwhile.

`soak_campaign.py` runs them, and `docs/reliability.md` has what came out.
"""
