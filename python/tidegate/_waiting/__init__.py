"""Waiting for room: the line of those who wait, and places that are given back."""
