"""The access log format strings of Envoy."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidegate.tuning.logs.layout import Layout, Meaning, meanings, pattern

__all__ = ["DEFAULT", "layout"]

DEFAULT = (
    '[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" '
    "%RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% "
    '%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" '
    '"%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"'
)

_KNOWN = meanings(
    {
        "method": ("%REQ(:METHOD)%",),
        "path": ("%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%", "%REQ(:PATH)%"),
        "status": ("%RESPONSE_CODE%",),
        "bytes": ("%BYTES_SENT%",),
        "user_agent": ("%REQ(USER-AGENT)%",),
        "host": ("%REQ(:AUTHORITY)%",),
        "ip": ("%DOWNSTREAM_REMOTE_ADDRESS%",),
    },
    {
        "%DURATION%": ("milliseconds", "duration"),
        "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%": ("key", "ip"),
    },
)
# The last address in the list is the one that Envoy itself added.
_FORWARDED: Meaning = ("last_address", "ip")
_VARIABLE = re.compile(r"%([A-Z][A-Z0-9_]+)(?:\(([^)]*)\))?(?::\d+)?%")


def layout(text: str, columns: Mapping[str, str], *, name: str = "") -> Layout:
    """Reads a format. Envoy logs when a request began."""
    known = dict(_KNOWN)
    if "%DOWNSTREAM_REMOTE_ADDRESS" not in text:
        known["%REQ(X-FORWARDED-FOR)%"] = _FORWARDED
    pieces: list[tuple[str, str | None]] = []
    at = 0
    for found in _VARIABLE.finditer(text):
        argument = "" if found[2] is None or found[1] == "START_TIME" else f"({found[2].upper()})"
        variable = f"%{found[1]}{argument}%"
        if found[1] == "START_TIME":
            known[variable] = ("time", "time")
        pieces += [(text[at : found.start()], None), ("", variable)]
        at = found.end()
    pieces.append((text[at:].rstrip(), None))
    return pattern(name or f"Envoy {text}", pieces, known, columns, end_stamped=False)
