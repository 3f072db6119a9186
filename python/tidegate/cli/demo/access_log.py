"""The requests of a real web server's log; see data/README.md for its source."""

from __future__ import annotations

import gzip
import re
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

__all__ = ["Request", "logged_requests"]

_LOG = Path(__file__).parent / "data" / "access.log.gz"

# The combined log format, as far as the demo needs it.
_LINE = re.compile(
    r'(?P<client>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] "(?P<method>[A-Z]+) (?P<path>/\S*)'
)


class Request(NamedTuple):
    """One line of the log."""

    time_ns: int
    client: str
    method: str
    path: str


def logged_requests(lines: int | None = None) -> list[Request]:
    """The first `lines` requests of the log, or all of them, by their time."""
    requests: list[Request] = []
    with gzip.open(_LOG, "rt", encoding="ascii", errors="backslashreplace") as log:
        for line in log:
            if len(requests) == lines:
                break
            match = _LINE.match(line)
            if match is not None:
                time = datetime.strptime(match["time"], "%d/%b/%Y:%H:%M:%S %z")
                requests.append(
                    Request(
                        round(time.timestamp()) * 10**9,
                        match["client"],
                        match["method"],
                        match["path"],
                    )
                )
    # The lines are in the order in which answers were finished. Stable, within one second.
    return sorted(requests, key=lambda request: request.time_ns)
