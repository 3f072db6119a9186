"""From a storage URI to a store."""

from __future__ import annotations

from tidegate import _core
from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._unknown import unknown_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Callable, TypedDict, Union

    StorageLike = Union[str, _core.Store]

    class StorageOptions(TypedDict, total=False):
        """What may be given beside a storage's URI, or in its query."""

        capacity: int | str
        # Of Redis, see tidegate._redis.
        breaker_failures: int | str
        breaker_open: float | str
        client_name: str
        connect_timeout: float | str
        db: int | str
        deny_cache_max: float | str
        fallback: StorageLike
        fallback_share: float | str
        max_queue: int | str
        on_breaker: Callable[[bool, str], object]
        on_error: str
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


__all__ = ["StorageLike", "StorageOptions", "open_store"]

_ACCEPTED = (
    "accepted are 'memory://' and 'shm://NAME' or 'shm:///PATH', each with an optional "
    "capacity=KEYS, 'redis://HOST:PORT/DB', 'rediss://', 'redis+unix:///PATH', "
    "'redis+sentinel://HOST:PORT,HOST:PORT/SERVICE' and 'redis+cluster://HOST:PORT,HOST:PORT'"
)


def open_store(storage: StorageLike, options: Mapping[str, Any]) -> _core.Store:
    """Opens the store that `storage` names, with options from its query and `options`."""
    if isinstance(storage, _core.Store):
        if options:
            raise ConfigurationError(
                f"the options {', '.join(sorted(options))} were given with a store that is "
                "open already; accepted are options with a URI"
            )
        return storage
    if not isinstance(storage, str):
        raise ArgumentTypeError(
            f"the storage is {storage!r} of type {type(storage).__name__}; {_ACCEPTED}"
        )
    # Its import takes longer than all of tidegate, and most storages need none of it.
    if storage == "memory://":
        return _memory_store(options)
    from urllib.parse import parse_qsl, unquote, urlsplit

    try:
        uri = urlsplit(storage)
    except ValueError:
        raise ConfigurationError(f"the storage is no URI; {_ACCEPTED}") from None
    if uri.scheme.startswith(("redis", "valkey")) and "://" in storage:
        from tidegate import _redis

        return _redis.open_redis(uri, options)
    scheme = uri.scheme
    if scheme not in ("memory", "shm") or not storage.lower().startswith(f"{scheme}://"):
        raise ConfigurationError(f"the storage is {_without_password(storage)!r}; {_ACCEPTED}")
    if scheme == "memory" and (uri.netloc or uri.path.strip("/") or uri.fragment):
        raise ConfigurationError(
            f"the storage is {_without_password(storage)!r}: a memory store has no host, path or "
            f"fragment; {_ACCEPTED}"
        )
    if scheme == "shm" and (bool(uri.netloc) == bool(uri.path.strip("/")) or uri.fragment):
        raise ConfigurationError(
            f"the storage is {_without_password(storage)!r}: a shared memory has either a name or "
            f"an absolute path, and no fragment; {_ACCEPTED}"
        )
    merged: dict[str, Any] = {}
    for name, value in [*parse_qsl(uri.query, keep_blank_values=True), *options.items()]:
        if name in merged:
            raise ConfigurationError(f"the storage option {name} was given twice")
        merged[name] = value
    if scheme == "shm":
        return _core.ShmStore(unquote(uri.netloc or uri.path), _capacity(merged))
    return _memory_store(merged)


def _memory_store(options: Mapping[str, Any]) -> _core.Store:
    capacity = _capacity(options)
    return _core.MemoryStore(_core.MemoryStore.DEFAULT_CAPACITY if capacity is None else capacity)


def _capacity(options: Mapping[str, Any]) -> int | None:
    unknown = sorted(options.keys() - {"capacity"})
    if unknown:
        raise ConfigurationError(
            f"unknown option {unknown_options(unknown, ['capacity'])}; accepted with memory:// and "
            "shm:// is capacity=KEYS"
        )
    given = options.get("capacity")
    return None if given is None else _whole_number("capacity", given)


def _whole_number(name: str, value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62:
        return value
    raise ConfigurationError(f"the storage option {name} is {value!r}; accepted is a whole number")


def _without_password(uri: str) -> str:
    """`uri` fit for a message: whatever could be a secret is left out."""
    scheme, separator, rest = uri.partition("://")
    rest = rest.partition("?")[0]
    user, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{'***@' if at else ''}{host if at else user + host}"
