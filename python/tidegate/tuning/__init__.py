"""Tuning: read the logs of servers, and choose limits by them. Needs NumPy."""

from tidegate._tuning.frame import Frame
from tidegate._tuning.keys import Keys
from tidegate._tuning.logs.log import BadLine, Log
from tidegate._tuning.logs.reading import read_log

__all__ = ["BadLine", "Frame", "Keys", "Log", "read_log"]
