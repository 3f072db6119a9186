"""Waiting for a turn: the queue of callers, and the places that they give back."""
