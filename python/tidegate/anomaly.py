"""Anomaly detection: which callers send unusually many requests, and what to do about it.

::

    from tidegate.anomaly import AnomalyDetector

    detector = AnomalyDetector(interval=60)
    for anomaly in detector.judge({"user:42": 180, "user:7": 12}, at=1696523400.0):
        print(anomaly.caller, anomaly.action, anomaly.reason)
"""

from tidegate.server.anomalies.detector import Action, Anomaly, AnomalyDetector

__all__ = ["Action", "Anomaly", "AnomalyDetector"]
