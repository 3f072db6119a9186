"""Finds the columns of a JSON or CSV log by the names that services give to fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.logs.layout import Meaning, kind_of

__all__ = ["MOST_DOTS", "end_stamped", "is_known", "meanings"]

# The names of each column, the likeliest first, in lower case and reduced to letters and digits,
# so that client.ip, clientIp and client_ip are the same name.
_NAMES = {
    "time": "timestamp time ts datetime msec timeiso8601 timelocal starttime startutc startlocal "
    "eventtime eventtimestamp requesttimestamp logtime date t",
    "ip": "clientip remoteaddr requestclientip remoteip requestremoteip ip ipaddress clienthost "
    "clientaddress remotehost sourceip srcip sourceaddress cip client httprequestremoteip",
    "user": "user userid username remoteuser uid account accountid customerid clientusername",
    "method": "method requestmethod httpmethod httprequestmethod verb csmethod",
    "path": "path requestpath uri requesturi url urlpath urloriginal requesturl "
    "httprequestrequesturl endpoint route",
    "request": "request",
    "status": "status statuscode responsestatus responsecode httpstatus httpstatuscode "
    "httpresponsestatuscode responsestatuscode downstreamstatus httprequeststatus code",
    "bytes": "bytes bytessent bodybytessent size responsesize bytesout contentlength "
    "downstreamcontentsize httpresponsebodybytes httprequestresponsesize",
    "user_agent": "useragent httpuseragent useragentoriginal httprequestuseragent agent",
    "host": "host httphost vhost requesthost urldomain domain authority servername",
    "tier": "tier plan usertier",
    "forwarded_for": "xforwardedfor httpxforwardedfor forwardedfor",
}
# What lies deeper in nested objects is not found.
MOST_DOTS = 8
_DURATIONS = ("duration", "latency", "elapsed", "responsetime", "requestduration", "timetaken")
_KNOWN = frozenset(" ".join(_NAMES.values()).split())
_UNITS = ("s", "ms", "us", "ns")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def plain(name: str) -> str:
    """Reduces a name to lower-case letters and digits, since services differ in the rest."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def is_known(name: str) -> bool:
    """Whether services give a field this name."""
    return plain(name) in _KNOWN or _duration_unit(plain(name), {}) is not None


def meanings(
    found: Mapping[str, Any], columns: Mapping[str, str], duration_unit: str | None
) -> tuple[dict[str, Meaning], list[str]]:
    """Maps fields to columns by name, and returns notes about that.

    `found` has a value of each field of the log; `columns` the fields that the caller named.
    """
    by_plain: dict[str, str] = {}
    for name in found:
        by_plain.setdefault(plain(name), name)
    chosen: dict[str, Meaning] = {}
    notes = []
    for column, name in columns.items():
        if name not in found:
            raise ConfigurationError(
                f"the column {column} is mapped to {name!r}, which the log does not have; "
                f"expected one of {_listed(found)}"
            )
        unit = duration_unit or (_duration_unit(plain(name), by_plain) or "s")
        chosen[name] = (kind_of(column, unit), column)
    for column, names in _NAMES.items():
        if column in columns or (column == "request" and "path" in _columns(chosen)):
            continue
        for each in names.split():
            name = by_plain.get(each, "")
            if not name or name in chosen:
                continue
            if isinstance(found[name], bytes):
                notes.append(f"{name} was not read: most of its first bytes are not UTF-8.")
            elif _suits(column, found[name]):
                chosen[name] = (kind_of(column), column)
                break
    if "duration" not in columns:
        notes += _choose_duration(found, by_plain, duration_unit, chosen)
    if "time" not in _columns(chosen):
        times = [by_plain[each] for each in _NAMES["time"].split() if each in by_plain]
        given = f", and {times[0]} is {found[times[0]]!s:.80}" if times else ""
        raise ConfigurationError(
            f"the log has the fields {_listed(found)}{given}; expected a field with the time: name "
            'it by columns={"time": ...}'
        )
    return chosen, notes


def _columns(chosen: Mapping[str, Meaning]) -> set[str]:
    return {column for _, column in chosen.values()}


def _choose_duration(
    found: Mapping[str, Any],
    by_plain: Mapping[str, str],
    duration_unit: str | None,
    chosen: dict[str, Meaning],
) -> list[str]:
    for each, name in by_plain.items():
        unit = _duration_unit(each, by_plain)
        if unit is None or name in chosen or not _is_number(found[name]):
            continue
        unit = duration_unit or unit
        chosen[name] = (kind_of("duration", unit), "duration")
        if duration_unit is None and each in _DURATIONS and unit == "s":
            return [
                f"Durations ({name}) are taken as seconds, since the log does not say; "
                "duration_unit= names another unit."
            ]
        return []
    return []


def _duration_unit(name: str, by_plain: Mapping[str, str]) -> str | None:
    """The unit of a field; None if it does not hold a duration."""
    if name == "requesttime":  # nginx
        return "s"
    if name == "eventduration":  # Elastic's common schema
        return "ns"
    if name in _DURATIONS:
        return "ns" if name == "duration" and "downstreamstatus" in by_plain else "s"  # Traefik
    for unit in reversed(_UNITS):
        stem = name[: -len(unit)]
        if name.endswith(unit) and stem in (*_DURATIONS, "requesttime", "took", "time"):
            return unit
    for word, unit in (("seconds", "s"), ("millis", "ms"), ("milliseconds", "ms")):
        if name.endswith(word) and name[: -len(word)] in (*_DURATIONS, "requesttime"):
            return unit
    return None


def end_stamped(found: Mapping[str, Any], chosen: Mapping[str, Meaning]) -> bool | None:
    """Whether times are those at which requests ended, if the names reveal the server."""
    names = {plain(name) for name in found}
    time = next(plain(name) for name, (_, column) in chosen.items() if column == "time")
    if time in ("starttime", "startutc", "startlocal"):
        return False
    if names & {"timelocal", "timeiso8601", "bodybytessent", "requestremoteip"}:
        return True  # nginx, Caddy
    return None


def _suits(column: str, value: Any) -> bool:
    if column in ("status", "bytes"):
        return value is None or _is_number(value) or value in ("", "-")
    if column == "time":
        return isinstance(value, (str, int, float)) and not isinstance(value, bool)
    if column == "request":
        return isinstance(value, str) and " " in value
    return value is None or isinstance(value, (str, int))


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("", "-") or _NUMBER.fullmatch(value) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _listed(found: Mapping[str, Any]) -> str:
    names = list(found)
    return ", ".join(names[:40]) + (", ..." if len(names) > 40 else "") if names else "none"
