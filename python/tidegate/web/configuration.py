"""The options of a process that its limits on requests share, unless they are given their own."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.storage.hints import unknown_options
from tidegate.limiter.storage.options import StorageOptions
from tidegate.web.callables import check_function
from tidegate.web.headers import SHADOW, check_families
from tidegate.web.hooks import log

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate._core import Store
    from tidegate.limiter.limit import LimitLike
    from tidegate.limiter.storage.options import StorageLike
    from tidegate.web.request_limiter import RequestLimiter

__all__ = [
    "SLIPS_OF_TIDEGATE",
    "configure",
    "configured",
    "current",
    "follow",
    "following",
    "following_limiter",
    "note_storage",
    "with_configured",
]

Owner = TypeVar("Owner")

_OPTIONS = ("storage", "storage_options", "prefix", "key", "on_refused", "headers", "attributes")
_OF_ONE = "the limit of @rate_limit, DefaultRateLimit or middleware"
_HINTS = {"limit": _OF_ONE, "default_limit": _OF_ONE, "default_limits": _OF_ONE, "limits": _OF_ONE}

# Variables of the environment that are easily taken for one that is read.
_MISTAKEN = {
    **dict.fromkeys(
        ("REDIS", "REDIS_URI", "REDIS_URL", "STORAGE_URI", "STORAGE_URL"), "TIDEGATE_STORAGE"
    ),
    **dict.fromkeys(("KEY_FUNC", "KEY_FUNCTION"), "TIDEGATE_KEY"),
    "KEY_PREFIX": "TIDEGATE_PREFIX",
    **dict.fromkeys(("DEFAULT_LIMIT", "DEFAULT_LIMITS", "LIMIT", "LIMITS"), _OF_ONE),
}

# The variables that are read, without their prefix.
_VARIABLES = ("storage", "prefix", "key", "headers")
SLIPS_OF_TIDEGATE = frozenset(
    ("TIDGATE", "TIDEGAT", "TIEDGATE", "TIDEGAET", "TIDEGATES", "TIDGEATE")
)

# Those that the log has named.
_logged: set[str] = set()

_lock = threading.RLock()
_configured: dict[str, Any] = {}
_where: str | None = None
# The objects that were made with options of the process, and the functions that read them again.
_followers: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def configure(
    *,
    storage: StorageLike | None = None,
    prefix: str | None = None,
    key: Callable[[Any], Any] | str | None = None,
    on_refused: Callable[..., Any] | None = None,
    headers: Iterable[str] | None = None,
    attributes: Mapping[str, Callable[[Any], Any]] | None = None,
    **storage_options: Unpack[StorageOptions],
) -> None:
    """Sets the options that all limits on requests of this process share.

    ::

        tidegate.configure(storage="redis://localhost", key=keys.user())

    They apply to every @rate_limit, Depends(RateLimit), middleware and extension that is not given
    the option itself, whether it was made before the call or after it. `attributes` are those of
    middleware with rules. `key` may also be ``"ip"``, ``"user"`` or ``"user_or_ip"``; `key` and
    `on_refused` get what the adapter passes: the request of the framework, in middleware the scope
    or the environ. The functions of tidegate.keys take all of them.

    What is not given here is read from Django's setting TIDEGATE if there is one, and then from the
    environment variables TIDEGATE_STORAGE, TIDEGATE_PREFIX, TIDEGATE_KEY and TIDEGATE_HEADERS
    (separated by commas). A service calls this function once, when it starts: a call elsewhere
    raises ConfigurationError, which names the place of the first. If the same line runs again, as
    where a module is ``__main__`` and imported too, its options are the last ones. In tests, use
    tidegate.testing.configured(). Raises ConfigurationError for invalid options. Thread-safe.
    """
    frame = sys._getframe(1)
    _set(
        f"{frame.f_code.co_filename}:{frame.f_lineno}",
        storage=storage,
        storage_options=dict(storage_options) or None,
        prefix=prefix,
        key=key,
        on_refused=on_refused,
        headers=headers,
        attributes=attributes,
    )


@contextlib.contextmanager
def configured(**options: Any) -> Iterator[None]:
    """Within it the options of the process are these, and none of an earlier configure()."""
    global _where
    with _lock:
        before = dict(_configured), _where
        _configured.clear()
        _where = None
    try:
        storage_options = {name: options.pop(name) for name in options.keys() - set(_OPTIONS)}
        if options or storage_options:
            _set("configured()", storage_options=storage_options or None, **options)
        else:
            _refresh()
        yield
    finally:
        with _lock:
            _configured.clear()
            _configured.update(before[0])
            _where = before[1]
            _refresh()


def _set(where: str, **options: Any) -> None:
    global _where
    given = {name: value for name, value in options.items() if value is not None}
    with _lock:
        # One line may run twice: as __main__ and as the module that uvicorn.run("app:app") imports.
        if _where not in (None, where):
            raise ConfigurationError(
                f"configure() was called at {where}, and before at {_where}; expected one call in "
                "a process, and in tests tidegate.testing.configured()"
            )
        before = dict(_configured), _where
        checked = _checked(given)
        _configured.clear()
        _configured.update(checked)
        _where = where
        try:
            _refresh()
        except BaseException:
            _configured.clear()
            _configured.update(before[0])
            _where = before[1]
            _refresh()
            raise


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    from tidegate.web.named_keys import key_function
    from tidegate.web.rule_requests import checked_readers
    from tidegate.web.shared_counters import shared_store

    options = given.get("storage_options", {})
    unknown = options.keys() - {*StorageOptions.__annotations__, "clock"}
    if unknown:
        accepted = [name for name in _OPTIONS if name != "storage_options"]
        raise ConfigurationError(
            f"unknown option {unknown_options(unknown, accepted, _HINTS)}; "
            f"expected {', '.join(f'{name}=' for name in accepted)}, and the options of storages"
        )
    if options and "storage" not in given:
        raise ConfigurationError(
            f"the storage options {', '.join(options)} were given without a "
            "storage; expected storage= too"
        )
    if "storage" in given:
        shared_store(given["storage"], options)
    if "key" in given:
        given["key"] = key_function(given["key"])
        check_function("key", given["key"], ("the request",))
    if "on_refused" in given:
        check_function("on_refused", given["on_refused"], ("the request", "the decision"))
    if "headers" in given:
        if not isinstance(given["headers"], str):
            given["headers"] = tuple(given["headers"])
        given["headers"] = check_families(given["headers"], of_rules=True)
    if "attributes" in given:
        given["attributes"] = checked_readers(given["attributes"])
    if not isinstance(given.get("prefix", ""), str):
        raise ConfigurationError(f"the prefix is {given['prefix']!r}; expected a str")
    return given


def current(*, of_django: bool = True) -> dict[str, Any]:
    """Returns the options of the process: of configure(), Django's setting and the environment."""
    found = _of_environment()
    for layer in (_of_django() if of_django else {}, dict(_configured)):
        if "storage" in layer:
            found.pop("storage_options", None)
        found.update(layer)
    return found


def _of_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in os.environ:
        meant = _meant_by(name)
        if meant is not None and name not in _logged:
            _logged.add(name)
            # An error would be wrong: it may be the application's own variable.
            log.warning(
                "rate limiting: the environment has %s, which tidegate does not read; expected "
                "%s, unless the application reads it",
                name, meant,
            )  # fmt: skip
    for name in _VARIABLES:
        value = os.environ.get(f"TIDEGATE_{name.upper()}")
        if value:
            found[name] = value
    if "headers" in found:
        found["headers"] = tuple(each.strip() for each in found["headers"].split(","))
    try:
        return _checked(found) if found else {}
    except ConfigurationError as exc:
        names = ", ".join(f"TIDEGATE_{name.upper()}" for name in found)
        raise ConfigurationError(f"the environment has {names}: {exc}") from exc


def _meant_by(variable: str) -> str | None:
    """Returns what is likely meant by a variable that is not read; None for other variables."""
    prefix, _, name = variable.upper().partition("_")
    if prefix != "TIDEGATE" and prefix not in SLIPS_OF_TIDEGATE:
        return None
    if name in _MISTAKEN:
        return _MISTAKEN[name]
    near = difflib.get_close_matches(name, [each.upper() for each in _VARIABLES], 1, 0.8)
    meant = f"TIDEGATE_{near[0]}" if near else None
    return None if meant == variable else meant


def _of_django() -> dict[str, Any]:
    settings = getattr(sys.modules.get("django.conf"), "settings", None)
    setting = getattr(settings, "TIDEGATE", None) if getattr(settings, "configured", 0) else None
    if not isinstance(setting, Mapping):
        return {}  # tidegate.django names what is wrong
    names = [name for name in _OPTIONS if name != "attributes" and setting.get(name.upper())]
    try:
        return _checked({name: setting[name.upper()] for name in names}) if names else {}
    except ConfigurationError as exc:
        said = ", ".join(name.upper() for name in names)
        raise ConfigurationError(f"Django's setting TIDEGATE has {said}: {exc}") from exc


def with_configured(
    given: Any, options: Iterable[str], storage_options: Mapping[str, Any]
) -> tuple[Any, Mapping[str, Any]]:
    """Returns `given` and `storage_options`, with the options of the process where a limit was
    given none; `options` are the names of those that it was given."""
    known = current()
    merged = SimpleNamespace(**vars(given))
    limiter = getattr(given, "limiter", None)
    by_rules = getattr(given, "rules", None) is not None or hasattr(limiter, "check")
    skipped = set(options) | ({"key"} if by_rules else {"attributes"})
    if limiter is not None:
        skipped |= {"storage", "prefix"}
    if storage_options:
        skipped.add("storage")
    for name in known.keys() - skipped - {"storage_options"}:
        if hasattr(given, name):
            setattr(merged, name, known[name])
    if "headers" in known and "headers" not in skipped and not by_rules:
        merged.headers = tuple(each for each in known["headers"] if each != SHADOW)
    if "storage" in known and "storage" not in skipped:
        storage_options = known.get("storage_options", {})
    return merged, storage_options


def follow(owner: Owner, refresh: Callable[[Owner], None]) -> None:
    """Calls `refresh` with `owner` when the options of the process change, while it exists.

    `refresh` must not refer to `owner`, which would never be collected.
    """
    with _lock:
        _followers[owner] = refresh


def following(make: Callable[[], Owner]) -> Owner:
    """Returns what `make` returns, whose attributes are made again when the options change."""
    made = make()
    follow(made, lambda owner: vars(owner).update(vars(make())))
    return made


def following_limiter(
    limit: LimitLike | Callable[..., Any],
    name: str,
    scope: str,
    given: Any,
    options: Iterable[str],
    storage_options: Mapping[str, Any],
) -> RequestLimiter:
    """Returns the limiter of the route or dependency `name`, which counts in `scope` and is made
    again when the options of the process change; see with_configured() for the other arguments."""
    from tidegate.web.options import of_requests
    from tidegate.web.shared_counters import limiter_in_scope, shared_store

    def make() -> RequestLimiter:
        chosen, of_storage = with_configured(given, options, storage_options)
        store = shared_store(chosen.storage, of_storage)
        note_storage(store, name, was_chosen="storage" in options or bool(storage_options))
        return limiter_in_scope(
            limit,
            scope=scope,
            store=store,
            algorithm=chosen.algorithm,
            prefix=chosen.prefix,
            clock=chosen.clock,
            **of_requests(chosen),
        )

    return following(make)


def _refresh() -> None:
    for owner, refresh in list(_followers.items()):
        refresh(owner)


_noted: dict[bool, str] = {}


def note_storage(store: Store, where: str, *, was_chosen: bool) -> None:
    """Warns, once in a process, if `where` counts in the process only because it was given no
    storage, while another limit has a shared one."""
    shared = store.kind != "memory"
    if not shared and was_chosen:
        return
    with _lock:
        if shared in _noted:
            return
        _noted[shared] = where
        if len(_noted) < 2:
            return
    log.warning(
        "rate limiting: %s counts in this process alone, while %s has a shared storage; expected "
        "storage= there, or tidegate.configure(storage=...)",
        _noted[False],
        _noted[True],
    )
