"""The `LogFormat` of Apache."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidegate.tuning.logs.layout import Layout, meanings, pattern

__all__ = ["COMMON", "VHOST_COMBINED", "layout"]

COMMON = '%h %l %u %t "%r" %>s %b'
VHOST_COMBINED = '%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"'

_KNOWN = meanings(
    {
        "time": ("%t",),
        "request": ("%r",),
        "method": ("%m",),
        "path": ("%U",),
        "status": ("%s",),
        "bytes": ("%b", "%B", "%O"),
        "duration": ("%T", "%{s}T"),
        "host": ("%v", "%V", "%{host}i"),
        "user_agent": ("%{user-agent}i",),
        "forwarded_for": ("%{x-forwarded-for}i",),
    },
    {
        **dict.fromkeys(("%h", "%a", "%{c}a"), ("word", "ip")),
        "%u": ("word", "user"),
        "%{ms}T": ("milliseconds", "duration"),
        **dict.fromkeys(("%D", "%{us}T"), ("microseconds", "duration")),
    },
)
_DIRECTIVE = re.compile(r"\s*LogFormat\s+\"(.*)\"(?:\s+\w+)?\s*", re.DOTALL)
_VARIABLE = re.compile(r"%%|%[<>!\d,]*(?:\{([^}]*)\})?(\^?[A-Za-z]{2}(?<=\^..)|[A-Za-z])")


def layout(text: str, columns: Mapping[str, str], *, name: str = "") -> Layout:
    """Reads a format, with or without its directive. Apache logs when a request began."""
    directive = _DIRECTIVE.fullmatch(text)
    text = (directive[1] if directive else text).replace('\\"', '"').replace("\\t", "\t")
    pieces: list[tuple[str, str | None]] = []
    at = 0
    end_stamped = False
    known = dict(_KNOWN)
    for found in _VARIABLE.finditer(text):
        pieces.append((text[at : found.start()], None))
        at = found.end()
        if found[0] == "%%":
            pieces.append(("%", None))
            continue
        argument, letter = found[1], found[2]
        if argument is None:
            variable = f"%{letter}"
        else:
            variable = f"%{{{argument.lower() if letter == 'i' else argument}}}{letter}"
        if letter == "t" and argument is not None:
            end_stamped = end_stamped or argument.startswith("end:")
            if not argument.endswith("_frac"):
                known[variable] = ("time", "time")
        if variable == "%t":
            pieces += [("[", None), ("", variable), ("]", None)]
        else:
            pieces.append(("", variable))
    pieces.append((text[at:].rstrip(), None))
    wanted = {
        column: re.sub(r"^%[<>]", "%", re.sub(r"\{.*\}i$", lambda m: m[0].lower()[:-1] + "i", each))
        for column, each in columns.items()
    }
    return pattern(name or f"Apache {text}", pieces, known, wanted, end_stamped=end_stamped)
