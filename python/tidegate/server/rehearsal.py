"""Finds out whether the service would start, without creating anything (`serve --check`)."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from tidegate._core import ShmStore
from tidegate.limiter.storage.uri import without_password
from tidegate.rules.sql.connection import engine_of, name_of
from tidegate.rules.sql.upgrade import missing_tables
from tidegate.server.anomalies.state_file import folder_of
from tidegate.server.service import Service, tls_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tidegate.server.settings import Address, Settings

__all__ = ["Rehearsal", "rehearse"]


class Rehearsal(NamedTuple):
    """The effects that a start would have."""

    lines: list[str]
    problems: list[str]
    """The problems of the addresses and folders that are not available."""


def rehearse(settings: Settings) -> Rehearsal:
    """Reads all that a start reads, and tries its addresses.

    Creates no file, no table and no shared memory, and does not listen. Raises ConfigurationError
    and StorageError for anything that would keep the service from starting.
    """
    storage, storage_note = _storage_of(settings.storage)
    database, database_note = settings.database, None
    problems = []
    if database is not None:
        database_note = missing_tables(database)
        if database_note is not None:
            problems = _problem_of_folder(database)
            database = None
    there = settings.model_copy(update={"storage": storage, "database": database})
    service = Service(there, makes_tables=False)
    try:
        _check_servers(settings)
        rules = len(service.limiter.rule_stats())
        warnings = service.warnings()
    finally:
        service.close()
    shown = settings.database and name_of(engine_of(settings.database, creates=True))
    place = settings.rules or shown
    lines = [
        f"checks: {settings.checks.listen or settings.checks.unix}"
        + (", with a token" if settings.checks.needs_token else ", without a token"),
        f"storage: {without_password(settings.storage)}" + _first(storage_note),
        f"database: {shown or 'none'}" + _first(database_note),
        f"rules: {f'{rules} of {place}' if place else 'none'}",
        f"admin: {settings.admin.listen or 'none'}",
    ]
    if settings.envoy is not None:
        lines.append(f"envoy: {settings.envoy.config}")
    lines += [f"warning: {each}" for each in warnings]
    return Rehearsal(lines, problems + _problems(settings))


def _first(note: str | None) -> str:
    return f" (the first start {note})" if note else ""


def _storage_of(storage: str) -> tuple[str, str | None]:
    """Returns the storage; if it does not exist yet, one in memory with the same options."""
    if not storage.lower().startswith("shm://"):
        return storage, None
    uri = urlsplit(storage)
    if os.path.lexists(ShmStore.path_of(unquote(uri.netloc or uri.path))):
        return storage, None
    return f"memory://?{uri.query}" if uri.query else "memory://", "makes it"


def _check_servers(settings: Settings) -> None:
    tls_of(settings.checks.tls)
    admin = settings.admin
    if admin.listen is not None:
        from tidegate.server.admin_server import AdminServer, behind_proxies, probes

        app = probes(lambda: False, lambda: None, None)
        if admin.trusted_proxies:
            app = behind_proxies(app, admin.trusted_proxies)
        AdminServer(app, admin.tls)
        if admin.oidc is not None and settings.database is not None:
            from tidegate.server.admin.oidc import Oidc

            Oidc(**admin.oidc.model_dump())


def _problem_of_folder(database: str) -> list[str]:
    """The problem of the folder in which a start would make the file of SQLite."""
    folder = folder_of(database)
    if folder is None or _is_writable(folder):
        return []
    name = name_of(engine_of(database, creates=True))
    return [
        f"database: {name} is in a directory that this user cannot write to; expected one that "
        "exists and is writable"
    ]


def _is_writable(folder: Path) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _problems(settings: Settings) -> list[str]:
    found = _problem_of_both(settings.checks.listen, settings.admin.listen)
    for name, address in (
        ("checks.listen", settings.checks.listen),
        ("admin.listen", settings.admin.listen),
    ):
        if address is not None:
            found += _problem_of(name, address)
    if settings.checks.unix is not None:
        found += _problem_of_path(settings.checks.unix)
    return found


def _problem_of_both(checks: Address | None, admin: Address | None) -> list[str]:
    """The problem of two addresses that are one."""
    if checks is None or admin is None or checks.port != admin.port or not checks.port:
        return []
    places = []
    for address in (checks, admin):
        try:
            places.append({(family, place[0]) for family, _, place in _places_of(address)})
        except OSError:  # which _problem_of() names
            return []
    if not any(
        one == other and (host == another or {host, another} & {"0.0.0.0", "::"})
        for one, host in places[0]
        for other, another in places[1]
    ):
        return []
    return [f"admin.listen: {admin} is taken by checks.listen; expected another port"]


def _places_of(address: Address) -> list[tuple[Any, Any, Any]]:
    found = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return [(family, kind, place) for family, kind, _, _, place in found]


def _problem_of(name: str, address: Address) -> list[str]:
    try:
        for family, kind, place in _places_of(address):
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:  # the front skips such addresses too
            return []
        why = "is in use" if error.errno == errno.EADDRINUSE else f"fails: {error.strerror}"
        return [f"{name}: {address} {why}; expected a free address"]
    return []


def _problem_of_path(path: Path) -> list[str]:
    def problem(what: str) -> list[str]:
        return [f"checks.unix: {path} {what}; expected a path that is free"]

    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        is_possible = os.access(path.parent, os.W_OK | os.X_OK)
        return [] if is_possible else problem("is in a directory that this user cannot write to")
    except OSError as error:
        return problem(f"fails: {error.strerror}")
    if not stat.S_ISSOCK(mode):
        return problem("is a file")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(os.fspath(path))
        except OSError:  # no process listens there any more, so a start would replace it
            return []
    return problem("is in use")
