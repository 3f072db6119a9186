"""Tuning: whom would this limit have refused? Needs NumPy: ``pip install tidegate[notebook]``.

    from tidegate import tuning

    log = tuning.read_log("access.log.gz")
    result = tuning.replay("100/minute", log["ip"], log.times)
    result.refused_share
    result.totals()

Nothing here is imported by ``import tidegate``.
"""

from __future__ import annotations

from tidegate._tuning.backtest import Backtest, backtest
from tidegate._tuning.clients import Clients
from tidegate._tuning.compare import Comparison, compare
from tidegate._tuning.effect import Effect
from tidegate._tuning.frame import Frame
from tidegate._tuning.keys import Keys, as_keys
from tidegate._tuning.least import least_limits
from tidegate._tuning.logs.log import BadLine, Log
from tidegate._tuning.logs.reading import read_log
from tidegate._tuning.recommend import Recommendation, Recommendations, recommend
from tidegate._tuning.replay import Replay, replay
from tidegate._tuning.what_if import WhatIf, what_if
from tidegate.tuning import traffic as traffic

__all__ = [
    "Backtest",
    "BadLine",
    "Clients",
    "Comparison",
    "Effect",
    "Frame",
    "Keys",
    "Log",
    "Recommendation",
    "Recommendations",
    "Replay",
    "WhatIf",
    "as_keys",
    "backtest",
    "compare",
    "least_limits",
    "read_log",
    "recommend",
    "replay",
    "what_if",
]
