"""The `LogFormat` of Apache."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidegate.tuning.logs.layout import Layout, Meaning, pattern

__all__ = ["COMMON", "VHOST_COMBINED", "layout"]

COMMON = '%h %l %u %t "%r" %>s %b'
VHOST_COMBINED = '%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"'

_KNOWN: dict[str, Meaning] = {
    "%h": ("word", "ip"),
    "%a": ("word", "ip"),
    "%{c}a": ("word", "ip"),
    "%u": ("word", "user"),
    "%t": ("time", "time"),
    "%r": ("request", "request"),
    "%m": ("key", "method"),
    "%U": ("path", "path"),
    "%s": ("status", "status"),
    "%b": ("bytes", "bytes"),
    "%B": ("bytes", "bytes"),
    "%O": ("bytes", "bytes"),
    "%D": ("microseconds", "duration"),
    "%T": ("seconds", "duration"),
    "%{s}T": ("seconds", "duration"),
    "%{ms}T": ("milliseconds", "duration"),
    "%{us}T": ("microseconds", "duration"),
    "%v": ("key", "host"),
    "%V": ("key", "host"),
    "%{host}i": ("key", "host"),
    "%{user-agent}i": ("key", "user_agent"),
    "%{x-forwarded-for}i": ("key", "forwarded_for"),
}
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
