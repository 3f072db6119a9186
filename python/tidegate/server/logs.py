"""The logging of the service: lines of text or JSON on standard error."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.server.settings import Log

__all__ = ["set_up_logging"]

_FIELDS = ("decisions", "anomaly", "quota", "upgrade_request")


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _time(record)

    def format(self, record: logging.LogRecord) -> str:
        # Each record is one entry: a client's text cannot begin a new line in the first column.
        return super().format(record).replace("\r", "\\r").replace("\n", "\n  ")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _FIELDS:
            if hasattr(record, name):
                entry[name] = getattr(record, name)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _time(record: logging.LogRecord) -> str:
    at = dt.datetime.fromtimestamp(record.created, dt.timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def set_up_logging(settings: Log) -> None:
    """Makes all loggers of the process write to standard error in the format of `settings`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if settings.format == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)
