"""The `log_format` of nginx."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidegate.tuning.logs.layout import Layout, meanings, pattern

__all__ = ["COMBINED", "layout"]

COMBINED = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent"'
)

_KNOWN = meanings(
    {
        "time": ("$time_local", "$time_iso8601", "$msec"),
        "request": ("$request",),
        "method": ("$request_method",),
        "path": ("$request_uri", "$uri"),
        "status": ("$status",),
        "bytes": ("$body_bytes_sent", "$bytes_sent"),
        "duration": ("$request_time",),
        "user_agent": ("$http_user_agent",),
        "host": ("$host", "$http_host", "$server_name"),
        "forwarded_for": ("$http_x_forwarded_for",),
    },
    {"$remote_addr": ("word", "ip"), "$remote_user": ("word", "user")},
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_DIRECTIVE = re.compile(r"\s*log_format\s+\S+\s+(?:escape=\w+\s+)?(.*?);?\s*", re.DOTALL)
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)


def layout(
    text: str, columns: Mapping[str, str], *, name: str = "", open_end: bool = False
) -> Layout:
    """Reads a format, with or without its directive. nginx logs when a request ended."""
    directive = _DIRECTIVE.fullmatch(text)
    if directive:
        text = "".join(a or b for a, b in _QUOTED.findall(directive[1])) or directive[1]
    pieces: list[tuple[str, str | None]] = []
    at = 0
    for found in _VARIABLE.finditer(text):
        pieces += [(text[at : found.start()], None), ("", f"${found[1] or found[2]}")]
        at = found.end()
    pieces.append((text[at:].rstrip(), None))
    return pattern(
        name or f"nginx {text}", pieces, _KNOWN, columns, end_stamped=True, open_end=open_end
    )
