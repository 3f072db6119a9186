"""The options of middleware, decorators and dependencies: types, defaults and signatures.

Each public signature takes the options of one TypedDict as keywords. An option for all of them is
added to CommonOptions and DEFAULTS, and nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, TypedDict, TypeVar, Union

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.storage.arguments import explains_arguments
from tidegate.limiter.storage.hints import unknown_options
from tidegate.limiter.storage.options import StorageLike, StorageOptions
from tidegate.web.headers import FAMILIES
from tidegate.web.named_keys import key_function

if TYPE_CHECKING:
    from os import PathLike

    from tidegate.limiter.clock import ClockLike
    from tidegate.limiter.limit import LimitLike
    from tidegate.limiter.rule_limiter import LoadSource, RuleLimiter, TierLookup, Violations
    from tidegate.rules.rule_set import RuleSet
    from tidegate.rules.source import RuleSource
    from tidegate.types import Algorithm, KeyName

__all__ = [
    "DEFAULTS",
    "ASGIOptions",
    "ConfiguredRules",
    "DependencyOptions",
    "DjangoViewOptions",
    "FlaskOptions",
    "FlaskViewOptions",
    "MiddlewareOptions",
    "OptionReader",
    "RouteOptions",
    "RuleOptions",
    "charged_methods",
    "limiter_of",
    "methods_of",
    "of_requests",
]

Function = TypeVar("Function", bound=Callable[..., Any])
Jitter = Union[float, Callable[[float], Any]]


class CommonOptions(TypedDict, total=False):
    """The options of every signature."""

    exempt_when: Callable[[Any], Any] | None
    on_limit_error: LimitLike | None
    on_refused: Callable[..., Any] | None


class RequestOptions(CommonOptions, StorageOptions, total=False):
    """The options of limits that no framework's configuration describes."""

    key: Callable[[Any], Any] | KeyName | None
    cost: int | Callable[[Any], Any]
    cost_after: Callable[[Any, Any], Any] | None
    enabled: bool
    storage: StorageLike
    algorithm: Algorithm
    prefix: str
    clock: ClockLike
    on_no_key: str
    headers: Iterable[str]
    retry_jitter: Jitter


class RuleOptions(TypedDict, total=False):
    """The options of limits on whole applications, by rules."""

    rules: RuleSet | RuleSource | None
    attributes: Mapping[str, Callable[[Any], Any]] | None
    tiers: TierLookup | None
    violations: Violations | None
    load: LoadSource | None


class MiddlewareOptions(RequestOptions, RuleOptions, total=False):
    """The options of the WSGI middleware."""

    limiter: Limiter | RuleLimiter | None
    exempt_methods: Iterable[str]
    exempt_paths: Iterable[str] | None


class ASGIOptions(MiddlewareOptions, total=False):
    """The options of the ASGI middleware."""

    websockets: bool
    messages: LimitLike | Limiter | None
    message_cost: int | Callable[[Any], Any]
    on_message_refused: str | Callable[..., Any]


class SharedOptions(TypedDict, total=False):
    """The options of limits on routes."""

    methods: Iterable[str] | None
    scope: str | None
    wait: float | None


class DependencyOptions(RequestOptions, SharedOptions, total=False):
    """The options of tidegate.fastapi.RateLimit."""


class RouteOptions(DependencyOptions, total=False):
    """The options of tidegate.rate_limit."""


class ConfiguredOptions(CommonOptions, total=False):
    """The options for which None stands for the framework's configuration."""

    key: Callable[[Any], Any] | str | None
    algorithm: Algorithm | None
    on_no_key: str | None
    retry_jitter: Jitter | None


class ConfiguredStorage(StorageOptions, total=False):
    """The options of shared state for which None stands for the framework's configuration."""

    storage: StorageLike | None
    prefix: str | None
    clock: ClockLike
    headers: Iterable[str] | None


class ConfiguredRules(TypedDict, total=False):
    """RuleOptions as a configuration has them: as data, or as names."""

    rules: RuleSet | RuleSource | Mapping[str, Any] | str | PathLike[str] | None
    attributes: Mapping[str, Callable[[Any], Any] | str] | None
    tiers: TierLookup | Mapping[str, str] | Callable[[str], str | None] | str | None
    violations: Violations | str | None
    load: LoadSource | str | None


class FlaskOptions(ConfiguredOptions, ConfiguredStorage, ConfiguredRules, total=False):
    """The options of tidegate.flask.RateLimiter."""

    enabled: bool | None

    endpoint_limit: LimitLike | Callable[..., Any] | None
    meta_limit: LimitLike | Callable[..., Any] | None
    cost: int | Callable[[Any], Any] | None
    exempt_methods: Iterable[str] | None
    exempt_paths: Iterable[str] | None


class FlaskViewOptions(ConfiguredOptions, SharedOptions, total=False):
    """The options of tidegate.flask.RateLimiter.limit()."""

    cost: int | Callable[[Any], Any]
    cost_after: Callable[[Any, Any], Any] | None


class DjangoViewOptions(FlaskViewOptions, ConfiguredStorage, total=False):
    """The options of tidegate.django.rate_limit."""


# The values of options that are not given; None for those that are not listed.
DEFAULTS: dict[str, Any] = {
    "enabled": True,
    "algorithm": "token-bucket",
    "prefix": "tg",
    "clock": None,
    "storage_options": {},
    "storage": "memory://",
    "limit": None,
    "endpoint_limit": None,
    "meta_limit": None,
    "key": None,
    "cost": 1,
    "exempt_when": None,
    "exempt_methods": ("OPTIONS",),
    "on_limit_error": "raise",
    "on_no_key": "address",
    "on_refused": None,
    "headers": FAMILIES,
    "retry_jitter": 0.0,
    "wait": 0.0,
    "websockets": True,
    "message_cost": 1,
    "on_message_refused": "close",
}


# These parameters are never given as keywords.
_NO_OPTIONS = ("self", "app", "options")


class OptionReader:
    """Reads the keywords of a signature whose options are those of a TypedDict.

    `defaults` replace DEFAULTS. If the TypedDict has the options of storages, the class checks only
    its own keywords: storages know their options, and the options of other limiters.
    """

    def __init__(
        self,
        kind: Any,
        defaults: Mapping[str, Any] = DEFAULTS,
        hints: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        # The names that options of other limiters have in this signature.
        self._hints = hints
        self._name = "the call"
        self._parameters: list[str] = []
        of_storages = StorageOptions.__annotations__
        self._types = {
            name: getattr(annotation, "__forward_arg__", annotation)
            for name, annotation in kind.__annotations__.items()
            if name not in of_storages
        }
        self._defaults = {name: defaults.get(name) for name in self._types}
        self._takes_storage_options = of_storages.keys() <= kind.__annotations__.keys()

    def read(self, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Returns the options as attributes, with defaults, and the keywords for the storage."""
        rest = {name: value for name, value in options.items() if name not in self._types}
        of_storages = StorageOptions.__annotations__ if self._takes_storage_options else {}
        unknown = rest.keys() - of_storages
        if unknown:
            accepted = [*self._parameters, *self._types]
            told = unknown_options(unknown, [*accepted, *of_storages], self._hints)
            storages = ", and the options of storages" if self._takes_storage_options else ""
            raise ArgumentTypeError(
                f"{self._name} got the unknown option {told}; expected "
                f"{', '.join(f'{name}=' for name in accepted)}{storages}"
            )
        given = {name: options.get(name, default) for name, default in self._defaults.items()}
        if isinstance(given.get("key"), str):
            given["key"] = key_function(given["key"])
        return SimpleNamespace(**given), rest

    def shown(self, function: Function) -> Function:
        """Returns `function` with a signature that names the options in place of ``**options``."""
        signature = inspect.signature(function)
        self._name = f"{function.__qualname__.partition('.__init__')[0]}()"
        self._parameters = [name for name in signature.parameters if name not in _NO_OPTIONS]
        parameters = list(signature.parameters.values())
        rest = parameters.pop()
        assert rest.kind is rest.VAR_KEYWORD
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=self._types[name]
            )
            for name, default in self._defaults.items()
        ]
        if self._takes_storage_options:
            parameters.append(rest.replace(name="storage_options", annotation="StorageOptions"))
        of_storages = StorageOptions.__annotations__ if self._takes_storage_options else {}
        shown: Any = explains_arguments(self._name[:-2], self._types, of_storages)(function)
        shown.__signature__ = signature.replace(parameters=parameters)
        result: Function = shown
        return result


def limiter_of(
    limit: LimitLike | None, options: Any, storage_options: Mapping[str, Any]
) -> Limiter:
    """Returns the limiter among the options of a middleware, or a new one of `limit`."""
    chosen = {name: getattr(options, name) for name in _OF_LIMITERS}
    limiter = options.limiter
    if limiter is None:
        if limit is None:
            raise ConfigurationError("no limit was given; expected limit= or limiter=")
        return Limiter(limit, **chosen, **storage_options)
    if not isinstance(limiter, Limiter):
        raise ArgumentTypeError(
            f"the limiter is {limiter!r} of type {type(limiter).__name__}; "
            "expected a tidegate.Limiter"
        )
    defaults = {name: DEFAULTS[name] for name in _OF_LIMITERS}
    if limit is not None or chosen != defaults or storage_options:
        raise ConfigurationError(
            "a limiter was given with options of its own; expected limiter= without "
            "limit=, storage=, algorithm=, prefix=, clock= and storage options"
        )
    return limiter


def of_requests(options: Any) -> dict[str, Any]:
    """Returns the options that a RequestLimiter takes."""
    found = {name: getattr(options, name) for name in _OF_REQUESTS if hasattr(options, name)}
    if hasattr(options, "methods"):
        found["methods"] = charged_methods(options.methods)
    return found


_OF_LIMITERS = ("storage", "algorithm", "prefix", "clock")
_OF_REQUESTS = (
    "enabled",
    "key",
    "cost",
    "cost_after",
    "exempt_when",
    "on_limit_error",
    "on_no_key",
    "on_refused",
    "headers",
    "retry_jitter",
    "wait",
)


# The methods in IANA's registry, without the rarest, and those that caches know.
_METHODS = (
    *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"),
    *("COPY", "LOCK", "MKCOL", "MOVE", "PROPFIND", "PROPPATCH", "SEARCH", "UNLOCK", "REPORT"),
    *("LINK", "UNLINK", "BIND", "ACL", "PURGE"),
)


def methods_of(methods: Iterable[str], name: str = "exempt_methods") -> frozenset[str]:
    """Returns `methods` in upper case; `name` is the option that they were given as."""
    if isinstance(methods, (str, bytes)) or not isinstance(methods, Iterable):
        raise ArgumentTypeError(
            f"{name} is {methods!r}; expected a list of methods such as ['OPTIONS']"
        )
    result = []
    for method in methods:
        if not isinstance(method, str) or not method.isalpha():
            raise ConfigurationError(f"{name} has {method!r}; expected names such as 'OPTIONS'")
        known = method.upper()
        near = () if known in _METHODS else get_close_matches(known, _METHODS, n=1)
        if near:
            # A service may have methods of its own, but a misspelt method would limit nothing.
            raise ConfigurationError(
                f"{name} has {method!r}, which is not an HTTP method; expected perhaps {near[0]!r}"
            )
        result.append(known)
    return frozenset(result)


def charged_methods(methods: Iterable[str] | None) -> frozenset[str] | None:
    """Returns the methods that are charged, with HEAD if GET is one of them; None for all."""
    if methods is None:
        return None
    charged = methods_of(methods, "methods")
    if not charged:
        raise ConfigurationError(
            f"methods is {methods!r}, which limits nothing; expected at least one method, or "
            "None for all"
        )
    return charged | {"HEAD"} if "GET" in charged else charged
