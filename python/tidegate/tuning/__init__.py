"""Tuning: whom would this limit have refused? Needs NumPy: ``pip install tidegate[notebook]``.

    from tidegate import tuning

    log = tuning.read_log("access.log.gz")
    result = tuning.replay("100/minute", log["ip"], log.times)
    result.refused_share
    result.totals()

Nothing here is imported by ``import tidegate``.
"""

from __future__ import annotations

from tidegate.limiter.errors import without_extra

try:
    import numpy  # noqa: F401
except ImportError as error:
    raise without_extra("tidegate.tuning", "notebook", error) from None

from tidegate.tuning import traffic as traffic
from tidegate.tuning.backtest import Backtest, backtest
from tidegate.tuning.clients import Clients
from tidegate.tuning.compare import Comparison, compare
from tidegate.tuning.effect import Effect
from tidegate.tuning.frame import Frame
from tidegate.tuning.keys import Keys, as_keys
from tidegate.tuning.least import least_limits
from tidegate.tuning.logs.log import BadLine, Log
from tidegate.tuning.logs.reading import read_log
from tidegate.tuning.recommend import Recommendation, Recommendations, recommend
from tidegate.tuning.replay import Replay, replay
from tidegate.tuning.what_if import WhatIf, what_if

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
