"""From the URI of a Redis to a store."""

from __future__ import annotations

import functools
import logging
import math
from urllib.parse import SplitResult, parse_qsl, unquote

from tidegate import _core
from tidegate._errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

__all__ = ["SCHEMES", "open_redis"]

SCHEMES = ("redis", "redis+unix", "valkey", "valkey+unix")
# Known, and refused with a word of their own.
LATER = (
    "rediss",
    "valkeys",
    "redis+cluster",
    "redis+sentinel",
    "valkey+cluster",
    "valkey+sentinel",
)

_SECONDS = {
    "timeout": 3600.0,
    "connect_timeout": 3600.0,
    "ttl_margin": 86400.0 * 366,
    "deny_cache_max": 3600.0,
    "breaker_open": 86400.0,
}
_COUNTS = ("breaker_failures", "max_queue")
_TEXTS = ("username", "password", "client_name", "on_error")
_OPTIONS = (*_SECONDS, *_COUNTS, *_TEXTS, "clock", "db", "fallback", "fallback_share", "on_breaker")

log = logging.getLogger("tidegate")


def open_redis(uri: SplitResult, options: dict[str, Any]) -> _core.Store:
    """Opens the store that `uri` names, with options from its query and `options`.

    No message shows the URI: it may hold a password.
    """
    if uri.fragment:
        raise ConfigurationError("the storage URI has a fragment; accepted is one without")
    given: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, value in [*parse_qsl(uri.query, keep_blank_values=True), *options.items()]:
        if name in given:
            raise ConfigurationError(f"the storage option {name} was given twice")
        given[name] = value
    unknown = sorted(given.keys() - set(_OPTIONS))
    if unknown:
        raise ConfigurationError(
            f"unknown storage option {', '.join(unknown)}; accepted are "
            f"{', '.join(sorted(_OPTIONS))}"
        )
    for name, most in _SECONDS.items():
        if name in given:
            values[name] = _number(name, given[name], 0.0, most)
    if "fallback_share" in given:
        values["fallback_share"] = _number("fallback_share", given["fallback_share"], 0.0, 1.0)
    for name in _COUNTS:
        if name in given:
            values[name] = _count(name, given[name])
    if "fallback" in given:
        values["fallback"] = _fallback(given["fallback"])
    hook = given.get("on_breaker")
    if hook is not None and not callable(hook):
        raise ConfigurationError(
            f"the storage option on_breaker is {hook!r}; accepted is a function of (open, reason)"
        )
    values["on_breaker"] = functools.partial(_breaker_changed, hook)
    for name in _TEXTS:
        if name in given:
            if not isinstance(given[name], str):
                raise ConfigurationError(
                    f"the storage option {name} is of type {type(given[name]).__name__}; "
                    "accepted is a str"
                )
            values[name] = given[name]
    clock = given.get("clock", "server")
    if clock not in ("server", "client"):
        raise ConfigurationError(
            f"the storage option clock is {clock!r}; accepted are 'server' and 'client'"
        )
    values["client_clock"] = clock == "client"
    _place(uri, given.get("db"), values)
    return _core.RedisStore(**values)


def _place(uri: SplitResult, db: object, values: dict[str, Any]) -> None:
    if uri.username:
        values.setdefault("username", unquote(uri.username))
    if uri.password:
        values.setdefault("password", unquote(uri.password))
    if uri.scheme.endswith("+unix"):
        if not uri.path.strip("/"):
            raise ConfigurationError(
                "the storage URI names no socket; accepted is redis+unix:///PATH?db=N"
            )
        values["unix_path"] = unquote(uri.path)
    else:
        try:
            port = uri.port
        except ValueError:
            raise ConfigurationError(
                "the port of the storage URI is no port; accepted is 1 to 65535"
            ) from None
        values["host"] = uri.hostname or "127.0.0.1"
        values["port"] = 6379 if port is None else port
        path = uri.path.strip("/")
        if path and db is not None:
            raise ConfigurationError("the database was given twice, as path and as db")
        db = path or db
    if db is not None and db != "":
        if isinstance(db, bool) or not (
            isinstance(db, int) or (isinstance(db, str) and db.isascii() and db.isdigit())
        ):
            raise ConfigurationError("the database of the storage is no number; accepted is 0 up")
        number = int(db)
        if not 0 <= number < 2**31:
            raise ConfigurationError(f"the database is {number}; accepted is 0 and more")
        values["database"] = number


def _breaker_changed(hook: Callable[[bool, str], object] | None, opened: bool, why: str) -> None:
    """Hears once of each change, on a thread of the core's or of a caller's."""
    log.log(logging.WARNING if opened else logging.INFO, "%s", why)
    if hook is not None:
        hook(opened, why)


def _fallback(storage: Any) -> _core.Store:
    from tidegate._storage import open_store

    store = open_store(storage, {})
    if isinstance(store, _core.RedisStore):
        raise ConfigurationError(
            "the fallback of a Redis is a Redis; accepted is a memory:// or shm:// storage"
        )
    return store


def _count(name: str, value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise ConfigurationError(
            f"the storage option {name} is {value!r}; accepted is a whole number from 1 up"
        )
    return value


def _number(name: str, value: object, least: float, most: float) -> float:
    number = math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not least <= number <= most:
        raise ConfigurationError(
            f"the storage option {name} is {value!r}; accepted is {least:g} to {most:g}"
        )
    return number
