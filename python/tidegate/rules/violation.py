"""The record of a refusal."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

__all__ = ["Violation"]


class Violation(NamedTuple):
    """Refusals of one caller by one rule at one endpoint since the last write."""

    time: dt.datetime
    """The time of the first refusal, in UTC."""
    rule: str | None
    """The id of the rule that refused."""
    caller: str
    """The caller that was refused, such as ``user:42`` or ``ip:203.0.113.9``."""
    endpoint: str
    attempted: int
    """The number of requests that were refused."""
    attributes: dict[str, str]
    """The attributes that the log keeps, each cut to 255 characters; secrets as digests."""
