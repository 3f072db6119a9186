"""Creates a store from a storage URI."""

from __future__ import annotations

import weakref

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tidegate.limiter.storage.options import StorageLike

__all__ = ["clear_open_stores", "open_store", "without_password"]

_ACCEPTED = (
    f"expected {' and '.join(kind.uris for kind in _core.LOCAL_STORES.values())}, each with an "
    "optional capacity=KEYS, 'redis://HOST:PORT/DB', 'rediss://', 'redis+unix:///PATH', "
    "'redis+sentinel://HOST:PORT,HOST:PORT/SERVICE' and 'redis+cluster://HOST:PORT,HOST:PORT'"
)


_open: weakref.WeakSet[_core.Store] = weakref.WeakSet()


def clear_open_stores() -> None:
    """Forgets the usage of all keys that only this process holds."""
    while True:
        try:
            stores = list(_open)
        except RuntimeError:  # another thread has just opened one
            continue
        break
    for store in stores:
        store._clear()


def open_store(storage: StorageLike, options: Mapping[str, Any]) -> _core.Store:
    """Opens the store that `storage` names, with options from its query and `options`."""
    store = _opened(storage, options)
    _open.add(store)
    return store


def _opened(storage: StorageLike, options: Mapping[str, Any]) -> _core.Store:
    if isinstance(storage, _core.Store):
        if options:
            raise ConfigurationError(
                f"the options {', '.join(sorted(options))} were given with a store that is "
                "open already; expected options with a URI"
            )
        return storage
    if not isinstance(storage, str):
        raise ArgumentTypeError(
            f"the storage is {storage!r} of type {type(storage).__name__}; {_ACCEPTED}"
        )
    # Importing it takes longer than importing tidegate, and most storages do not need it.
    if storage == "memory://":
        return _core.LOCAL_STORES["memory"].open("", _capacity(options))
    from urllib.parse import parse_qsl, unquote, urlsplit

    try:
        uri = urlsplit(storage)
    except ValueError:
        raise ConfigurationError(f"the storage is no URI; {_ACCEPTED}") from None
    if uri.scheme.startswith(("redis", "valkey")) and "://" in storage:
        from tidegate.limiter.storage import redis_uri

        return redis_uri.open_redis(uri, options, open_store)
    kind = _core.LOCAL_STORES.get(uri.scheme)
    if kind is None or not storage.lower().startswith(f"{uri.scheme}://"):
        raise ConfigurationError(f"the storage is {without_password(storage)!r}; {_ACCEPTED}")
    has_host, has_path = bool(uri.netloc), bool(uri.path.strip("/"))
    fits = has_host != has_path if kind.has_place else not (has_host or has_path)
    if not fits or uri.fragment:
        raise ConfigurationError(
            f"the storage is {without_password(storage)!r}: {kind.place}; {_ACCEPTED}"
        )
    merged: dict[str, Any] = {}
    for name, value in [*parse_qsl(uri.query, keep_blank_values=True), *options.items()]:
        if name in merged:
            raise ConfigurationError(f"the storage option {name} was given twice; expected it once")
        merged[name] = value
    place = unquote(uri.netloc or uri.path) if kind.has_place else ""
    return kind.open(place, _capacity(merged))


def _capacity(options: Mapping[str, Any]) -> int | None:
    unknown = sorted(options.keys() - {"capacity"})
    if unknown:
        from tidegate.limiter.storage.arguments import OF_LIMITERS, OF_LIMITERS_TEXT
        from tidegate.limiter.storage.hints import unknown_options
        from tidegate.limiter.storage.options import StorageOptions

        with_capacity = " and ".join(f"{scheme}://" for scheme in _core.LOCAL_STORES)
        of_redis = [name for name in unknown if name in StorageOptions.__annotations__]
        if of_redis:
            raise ConfigurationError(
                f"the options {', '.join(of_redis)} were given with a storage that is no Redis; "
                f"expected storage='redis://HOST', or capacity=KEYS with {with_capacity}"
            )
        raise ConfigurationError(
            f"unknown option {unknown_options(unknown, ['capacity', *OF_LIMITERS])}; expected "
            f"capacity=KEYS with {with_capacity}, and of a Limiter {OF_LIMITERS_TEXT}"
        )
    given = options.get("capacity")
    return None if given is None else _whole_number("capacity", given)


def _whole_number(name: str, value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62:
        return value
    raise ConfigurationError(f"the storage option {name} is {value!r}; expected a whole number")


def without_password(uri: str) -> str:
    """`uri`, which may be malformed, for a message, without any part that could be a secret."""
    from tidegate.limiter.storage.options import AT

    scheme, separator, _ = uri.partition("://")
    begin = f"{scheme}{separator}" if separator and scheme.replace("+", "").isalnum() else ""
    first, question, query = uri.partition("?")
    if question and any(each in query for each in AT):
        return f"{begin}***"  # either the password has a question mark, or the query a password
    ends = [first.rfind(each) for each in AT]
    return f"{begin}***@{first[max(ends) + 1 :]}" if max(ends) >= 0 else first
