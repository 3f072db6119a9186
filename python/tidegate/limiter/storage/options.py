"""The options of storages, and how their values are read from text and numbers."""

from __future__ import annotations

import math
from typing import Callable, TypedDict, Union

from tidegate import _core
from tidegate.limiter.errors import ConfigurationError

__all__ = [
    "AT",
    "COUNTS",
    "LEASES",
    "NUMBERS",
    "REDIS_OPTIONS",
    "TEXTS",
    "TLS",
    "TLS_FILES",
    "StorageLike",
    "StorageOptions",
    "read_count",
    "read_number",
]

# What ends the password of a URI, or would if the URI were normalized (NFKC).
AT = "@\ufe6b\uff20"

StorageLike = Union[str, _core.Store]


class StorageOptions(TypedDict, total=False):
    """The options that may be given beside a storage's URI, or in its query."""

    capacity: int | str
    # The options of Redis:
    breaker_failures: int | str
    breaker_open: float | str
    client_name: str
    connect_timeout: float | str
    db: int | str
    deny_cache_max: float | str
    fallback: StorageLike
    fallback_share: float | str
    lease: float | str
    max_queue: int | str
    mode: str
    on_breaker: Callable[[bool, str], object]
    on_error: str
    on_script_error: Callable[[str], object]
    password: str | Callable[[], str]
    sentinel_password: str
    sentinel_username: str
    ssl_ca_certs: str
    ssl_ca_path: str
    ssl_cert_reqs: str
    ssl_certfile: str
    ssl_check_hostname: bool | str
    ssl_keyfile: str
    timeout: float | str
    ttl_margin: float | str
    username: str


ABOVE_0 = math.ulp(0.0)
# The options of Redis that are numbers, most of them in seconds, with their least and their most;
# counts begin at 1.
NUMBERS = {
    "timeout": (ABOVE_0, 3600.0),
    "connect_timeout": (ABOVE_0, 3600.0),
    "ttl_margin": (0.0, 86400.0 * 366),
    "deny_cache_max": (0.0, 3600.0),
    "breaker_open": (ABOVE_0, 86400.0),
    "fallback_share": (ABOVE_0, 1.0),
}
# The longest lease, in seconds: its least, its most, and what it is unless given.
LEASES = (0.001, 10.0, 0.2)
COUNTS = ("breaker_failures", "max_queue")
TEXTS = ("username", "client_name", "on_error", "sentinel_username", "sentinel_password")
# Named as in redis-py.
TLS_FILES = {
    "ssl_ca_certs": "ca_file",
    "ssl_ca_path": "ca_dir",
    "ssl_certfile": "cert_file",
    "ssl_keyfile": "key_file",
}
TLS = (*TLS_FILES, "ssl_cert_reqs", "ssl_check_hostname")
REDIS_OPTIONS = (
    *NUMBERS,
    *COUNTS,
    *TEXTS,
    *TLS,
    "clock",
    "db",
    "fallback",
    "lease",
    "mode",
    "on_breaker",
    "on_script_error",
    "password",
)


def read_count(name: str, value: object) -> int:
    """An int from 1 up."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise ConfigurationError(
            f"the storage option {name} is {value!r}; expected a whole number from 1 up"
        )
    return value


def read_number(name: str, value: object, least: float, most: float) -> float:
    """A float from `least` to `most`; above 0 where `least` is the smallest float above it."""
    number = math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not least <= number <= most:
        numbers = f"above 0, up to {most:g}" if least == ABOVE_0 else f"{least:g} to {most:g}"
        raise ConfigurationError(f"the storage option {name} is {value!r}; expected {numbers}")
    return number
