"""Anomaly detection: callers whose counts no longer fit their own past and their peers."""
