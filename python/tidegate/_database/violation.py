"""The record of a refusal."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

__all__ = ["Violation"]


class Violation(NamedTuple):
    """Refusals of one caller by one rule, since the last write."""

    time: dt.datetime
    """Of the first of them, in UTC."""
    rule: str | None
    """The id of the rule that refused."""
    caller: str
    """Whom it refused, such as ``user:42`` or ``ip:203.0.113.9``."""
    endpoint: str
    attempted: int
    """How many requests were refused."""
    attributes: dict[str, str]
    """Those that the log keeps, cut to 255 characters; of secrets a digest."""
