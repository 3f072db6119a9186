"""Creates a store from the URI of a Redis."""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import types
import weakref
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tidegate import _core
from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.storage.arguments import OF_LIMITERS, OF_LIMITERS_TEXT
from tidegate.limiter.storage.hints import unknown_options
from tidegate.limiter.storage.options import (
    AT,
    COUNTS,
    LEASES,
    NUMBERS,
    REDIS_OPTIONS,
    TEXTS,
    TLS,
    TLS_FILES,
    read_count,
    read_number,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Callable

    OpenStore = Callable[[Any, Mapping[str, Any]], _core.Store]

__all__ = ["open_redis"]

# The scheme: the kind of server, "s" for TLS, and how the server is found.
_SCHEME = re.compile(r"(?:redis|valkey)(s?)(?:\+(unix|sentinel|cluster))?")
_CLIENT_NAME = re.compile(r"[!-~]*")
_ACCEPTED = (
    "expected redis:// and rediss:// (TLS), redis+unix://, redis+sentinel://, "
    "redis+cluster://, the last two with rediss too, and all of them with valkey"
)

_shared: weakref.WeakValueDictionary[Any, _core.RedisStore] = weakref.WeakValueDictionary()

# A timeout in seconds from which on milliseconds were probably meant.
_LONG_WAIT = 20.0

log = logging.getLogger("tidegate")


def open_redis(uri: SplitResult, options: Mapping[str, Any], open_store: OpenStore) -> _core.Store:
    """The store that `uri` names, with options from its query and `options`.

    Callers with an equal URI and options share the store, its connection and breaker, as long as
    one of them keeps it. `open_store` opens the fallback.

    No message shows the URI: it may hold a password.
    """
    # By identity, since a key that held functions would hold the store that they refer to.
    named = {name: _identity(value) for name, value in options.items()}
    asked = uri, frozenset(named.items()) if _are_hashable(named) else object()
    store = _shared.get(asked)
    if store is None:
        store = _shared.setdefault(asked, _opened(uri, options, open_store))
    return store


def _identity(value: Any) -> Any:
    """What a function is known by while the store of these options holds it."""
    if isinstance(value, types.MethodType):
        return types.MethodType, id(value.__self__), id(value.__func__)
    return (types.FunctionType, id(value)) if callable(value) else value


def _are_hashable(options: Mapping[str, Any]) -> bool:
    try:
        hash(frozenset(options.items()))
    except TypeError:
        return False
    return True


def _opened(
    uri: SplitResult, options: Mapping[str, Any], open_store: OpenStore
) -> _core.RedisStore:
    scheme = _SCHEME.fullmatch(uri.scheme)
    if scheme is None or (scheme[1] and scheme[2] == "unix"):
        raise ConfigurationError(f"the storage has the scheme {uri.scheme}://; {_ACCEPTED}")
    if uri.fragment:
        raise ConfigurationError("the storage URI has a fragment; expected one without")
    given: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, value in [*parse_qsl(uri.query, keep_blank_values=True), *options.items()]:
        if any(each in name for each in AT):
            raise ConfigurationError(
                "the storage URI has an @ behind its question mark; expected %3F for the one of a "
                "password"
            )
        if name in given:
            raise ConfigurationError(f"the storage option {name} was given twice; expected it once")
        given[name] = value
    unknown = sorted(given.keys() - set(REDIS_OPTIONS))
    if unknown:
        raise ConfigurationError(
            f"unknown option {unknown_options(unknown, [*REDIS_OPTIONS, *OF_LIMITERS])}; expected "
            f"with this storage {', '.join(sorted(REDIS_OPTIONS))}, and of a Limiter "
            f"{OF_LIMITERS_TEXT}"
        )
    for name, (least, most) in NUMBERS.items():
        if name in given:
            values[name] = read_number(name, given[name], least, most)
    for name in ("timeout", "connect_timeout"):
        if values.get(name, 0.0) > _LONG_WAIT:
            log.warning(
                "rate limiting: the storage option %s is %g seconds, for which a request may have "
                "to wait; expected seconds such as 0.05, not milliseconds",
                *(name, values[name]),
            )
    for name in COUNTS:
        if name in given:
            values[name] = read_count(name, given[name])
    if "fallback" in given:
        values["fallback"] = _fallback(given["fallback"], open_store)
    hook = given.get("on_breaker")
    if hook is not None and not callable(hook):
        raise ConfigurationError(
            f"the storage option on_breaker is {hook!r}; expected a function of (open, reason)"
        )
    values["on_breaker"] = functools.partial(_breaker_changed, hook, _without_secrets(uri))
    values["on_failure"] = functools.partial(_failed, _without_secrets(uri))
    hook = given.get("on_script_error")
    if hook is not None and not callable(hook):
        raise ConfigurationError(
            f"the storage option on_script_error is {hook!r}; expected a function of (message)"
        )
    values["on_script_error"] = functools.partial(_script_failed, hook)
    for name in TEXTS:
        if name in given:
            if not isinstance(given[name], str):
                raise ConfigurationError(
                    f"the storage option {name} is of type {type(given[name]).__name__}; "
                    "expected a str"
                )
            values[name] = given[name]
    if not _CLIENT_NAME.fullmatch(values.get("client_name", "")):
        raise ConfigurationError(
            f"the storage option client_name is {values['client_name']!r}; expected ASCII without "
            "blanks, which Redis accepts"
        )
    password = given.get("password")
    if callable(password):
        values["password_source"] = functools.partial(password)
    elif isinstance(password, str):
        values["password"] = password
    elif password is not None:
        raise ConfigurationError(
            f"the storage option password is of type {type(password).__name__}; expected a str, "
            "or a function that returns one"
        )
    tls = _tls(given)
    if scheme[1]:
        values["tls"] = tls
    elif tls:
        raise ConfigurationError(
            f"options of TLS ({', '.join(each for each in TLS if each in given)}) were given with "
            f"{uri.scheme}://; expected rediss://, or none of them"
        )
    clock = given.get("clock", "server")
    if clock not in ("server", "client"):
        raise ConfigurationError(
            f"the storage option clock is {clock!r}; expected 'server' or 'client'"
        )
    values["client_clock"] = clock == "client"
    values["lease"] = _lease(given, clock)
    if values["lease"]:
        values["on_strict"] = functools.partial(_stays_strict, set())
    user, _, hosts = uri.netloc.rpartition("@")
    name, _, secret = user.partition(":")
    if name:
        values.setdefault("username", unquote(name))
    if secret and "password_source" not in values:
        values.setdefault("password", unquote(secret))
    path = uri.path.strip("/")
    hides = any(each in uri.path + uri.query + uri.fragment for each in AT)
    if scheme[2] == "unix":
        if not path:
            raise ConfigurationError(
                "the storage URI names no socket; expected redis+unix:///PATH?db=N"
            )
        if hosts:
            raise ConfigurationError(
                "the storage URI names a host before the path of its socket; expected "
                "redis+unix:///PATH?db=N, with three slashes"
            )
        values["unix_path"] = unquote(uri.path)
        path = ""
    elif scheme[2] is None:
        ((values["host"], values["port"]),) = _addresses(hosts, 6379, one=True, hides=hides)
    else:
        values["topology"] = scheme[2]
        values["nodes"] = _addresses(hosts, 26379 if scheme[2] == "sentinel" else 6379, hides=hides)
    if scheme[2] == "sentinel":
        values["service"], _, path = path.partition("/")
        if not values["service"]:
            raise ConfigurationError(
                "the storage URI names no service; expected "
                "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB"
            )
    values["database"] = _database(path, given.get("db"), hides)
    if scheme[2] == "cluster" and values["database"] != 0:
        raise ConfigurationError(
            f"the database is {values['database']}; expected 0, the only one of a cluster"
        )
    _warn_of_gevent()
    store = _core.RedisStore(**values)
    # The core refers to these functions weakly, so that the collector of garbage sees who holds
    # them.
    vars(store)["functions"] = tuple(value for value in values.values() if callable(value))
    return store


def _lease(given: Mapping[str, Any], clock: str) -> float:
    """The longest lease in seconds, 0 for none."""
    mode = given.get("mode", "strict")
    if mode not in ("strict", "leased"):
        raise ConfigurationError(
            f"the storage option mode is {mode!r}; expected 'strict' or 'leased'"
        )
    if mode == "strict":
        if "lease" in given:
            raise ConfigurationError(
                f"the storage option lease is {given['lease']!r}, and the mode is strict; expected "
                "lease= with mode=leased"
            )
        return 0.0
    if clock == "client":
        raise ConfigurationError(
            "the storage option mode is 'leased' and clock is 'client'; expected leases with "
            "clock=server"
        )
    least, most, usual = LEASES
    return read_number("lease", given.get("lease", usual), least, most)


def _warn_of_gevent() -> None:
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("socket"):
        log.warning(
            "rate limiting: gevent has patched this process, and a call that asks Redis holds the "
            "hub until the reply, at most for the timeout; expected "
            "gevent.get_hub().threadpool.apply(limiter.hit, (key,)), or workers with threads"
        )


def _shown_port(address: str, hides: bool) -> str:
    """The port for a message, unless it could be part of a password that holds a slash."""
    return "hidden here" if hides else repr(address.rpartition(":")[2])


def _addresses(
    hosts: str, default_port: int, one: bool = False, *, hides: bool = False
) -> list[tuple[str, int]]:
    found = []
    for address in [hosts] if one else hosts.split(","):
        if hosts and not address:
            raise ConfigurationError(
                "the storage URI has an empty address among others; expected HOST:PORT,HOST:PORT"
            )
        try:
            uri = urlsplit(f"//{address}")
            port = uri.port
        except ValueError:
            raise ConfigurationError(
                f"a port of the storage URI is {_shown_port(address, hides)}; expected 1 to 65535"
            ) from None
        found.append((uri.hostname or "127.0.0.1", default_port if port is None else port))
    return found


def _database(path: str, option: object, hides: bool) -> int:
    if path and option is not None:
        raise ConfigurationError(
            "the database was given twice, as path and as db; expected it once"
        )
    given = path or option
    if given is None or given == "":
        return 0
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 10:
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**31:
        shown = f" {given!r}," if option is not None or not hides else ""
        raise ConfigurationError(
            f"the database of the storage is{shown} no number; expected 0 up, as in redis://HOST/0"
        )
    return given


def _tls(given: dict[str, Any]) -> dict[str, Any]:
    tls: dict[str, Any] = {}
    for name, field in TLS_FILES.items():
        if name in given:
            path = given[name]
            if not isinstance(path, (str, os.PathLike)) or not os.path.exists(path):
                raise ConfigurationError(
                    f"the storage option {name} is {path!r}; expected an existing path"
                )
            tls[field] = os.fspath(path)
    if "ssl_cert_reqs" in given:
        if given["ssl_cert_reqs"] not in ("required", "none"):
            raise ConfigurationError(
                f"the storage option ssl_cert_reqs is {given['ssl_cert_reqs']!r}; expected "
                "'required' and 'none'"
            )
        tls["verify"] = given["ssl_cert_reqs"] == "required"
    if "ssl_check_hostname" in given:
        word = str(given["ssl_check_hostname"]).lower()
        if word not in ("true", "false", "1", "0"):
            raise ConfigurationError(
                f"the storage option ssl_check_hostname is {given['ssl_check_hostname']!r}; "
                "expected true and false"
            )
        tls["check_hostname"] = word in ("true", "1")
    return tls


def _without_secrets(uri: SplitResult) -> str:
    return f"{uri.scheme}://{uri.netloc.rpartition('@')[2]}{uri.path}"


def _breaker_changed(
    hook: Callable[[bool, str], object] | None, server: str, opened: bool, why: str
) -> None:
    """Called once at each change, on a thread of the core or of a caller."""
    log.log(logging.WARNING if opened else logging.INFO, "%s (%s)", why, server)
    if hook is not None:
        hook(opened, why)


def _stays_strict(logged: set[str], limit: str, why: str) -> None:
    """Called for each limit that is not leased; says it once."""
    if limit not in logged:
        logged.add(limit)
        log.info(
            "rate limiting: the limit %s is not leased, but asked for each call: %s", limit, why
        )


def _failed(server: str, message: str) -> None:
    """Called for the first failure and then once a minute, on a thread of the core or a caller."""
    log.warning("rate limiting: %s (%s)", message, server)


def _script_failed(hook: Callable[[str], object] | None, message: str) -> None:
    """Called for some script errors, on a thread of the core or of a caller."""
    log.error("%s", message)
    if hook is not None:
        hook(message)


def _fallback(storage: Any, open_store: OpenStore) -> _core.Store:
    try:
        store = open_store(storage, {})
    except ConfigurationError as exc:
        kind = type(exc)
        raise kind(f"the storage option fallback: {exc}") from None
    if store.blocks:
        raise ConfigurationError(
            f"the fallback of a Redis is a {store.kind} storage; expected a memory:// or shm:// "
            "storage"
        )
    return store
