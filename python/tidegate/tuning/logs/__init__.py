"""Reading the logs of servers: where they come from, what they are written in, what they hold."""

from __future__ import annotations

from tidegate.limiter.components import missing

try:
    from tidegate.tuning import _logs
except ImportError as error:
    raise missing("tuning", error) from None

__all__ = ["_logs"]
