"""Options that a service may give in its code or in its framework's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

from tidegate.keys import peer
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limit import as_limits
from tidegate.limiter.limiter import Limiter
from tidegate.types import Algorithm
from tidegate.web.configuration import current
from tidegate.web.dynamic_limit import check_limit_error_policy
from tidegate.web.exempt_paths import ExemptPaths, exempt_paths_of
from tidegate.web.headers import SHADOW, check_families
from tidegate.web.named_keys import imported_function, key_function
from tidegate.web.options import DEFAULTS, methods_of
from tidegate.web.request_limiter import RequestLimiter
from tidegate.web.rule_requests import RuleRequests
from tidegate.web.rule_settings import (
    attributes_of,
    load_of,
    rules_of,
    tiers_of,
    violations_of,
)
from tidegate.web.shared_counters import (
    OF_RULES,
    limiter_in_scope,
    rule_limiter_of,
    rule_requests_of,
)

__all__ = ["Settings"]

# The order in which options are read: later ones depend on earlier ones.
_ORDER = (
    "enabled",
    "algorithm",
    "prefix",
    "clock",
    "storage_options",
    "storage",
    "limit",
    "endpoint_limit",
    "meta_limit",
    "rules",
    "attributes",
    "tiers",
    "violations",
    "load",
    "key",
    "cost",
    "cost_after",
    "exempt_when",
    "exempt_methods",
    "exempt_paths",
    "on_limit_error",
    "on_no_key",
    "on_refused",
    "headers",
    "retry_jitter",
)
_FUNCTIONS = (
    "limit",
    "endpoint_limit",
    "meta_limit",
    "key",
    "cost",
    "cost_after",
    "exempt_when",
    "on_refused",
    "retry_jitter",
)
# The options whose values a RequestLimiter checks.
_OF_REQUESTS = ("cost", "cost_after", "exempt_when", "on_no_key", "on_refused", "retry_jitter")
# The functions that read the options about rules.
_RULE_READERS = {
    "rules": rules_of,
    "attributes": attributes_of,
    "tiers": tiers_of,
    "violations": violations_of,
    "load": load_of,
}
# The options that rules replace, and what is expected instead.
_REPLACED_BY_RULES = {
    "limit": "expected one of them",
    "endpoint_limit": "expected a rule that counts by endpoint",
    "key": "which count by attributes; expected attributes, such as {'user': 'user'}",
}


class Settings:
    """The options that a service has set, as attributes of the same names.

    `given` are the options in code; those that are not None come before `configured`. `name` is the
    format of an option's name in the configuration, for messages; `accepted` are the options that
    it may have. `open_store` is called with the storage and its options. If `reads_rules` is false,
    rules stay as they are given. Raises ConfigurationError, which names the option.
    """

    enabled: bool
    algorithm: Algorithm
    prefix: str
    clock: Any
    storage_options: dict[str, Any]
    storage: Any
    limit: Any
    endpoint_limit: Any
    meta_limit: Any
    rules: Any
    attributes: Any
    tiers: Any
    violations: Any
    load: Any
    key: Any
    cost: Any
    cost_after: Any
    exempt_when: Any
    exempt_methods: frozenset[str]
    exempt_paths: ExemptPaths | None
    on_limit_error: Any
    on_no_key: str
    on_refused: Any
    headers: Any
    retry_jitter: Any

    def __init__(
        self,
        given: Mapping[str, Any],
        configured: Mapping[str, Any],
        *,
        name: str,
        accepted: frozenset[str],
        open_store: Callable[[Any, dict[str, Any]], Any],
        reads_rules: bool = True,
    ) -> None:
        known = {option: name.format(option.upper()) for option in _ORDER if option in accepted}
        for option in configured:
            if option not in known:
                raise ConfigurationError(
                    f"{name.format(str(option).upper())} is an unknown setting; expected "
                    f"{', '.join(known.values())}"
                )
        self._open_store = open_store
        self._reads_rules = reads_rules
        self._names = {
            option: f"{option}=" if given.get(option) is not None else known.get(option, option)
            for option in _ORDER
        }
        defaults = {**DEFAULTS, **(self._of_process(given, configured))}
        for option in _ORDER:
            value = given.get(option)
            is_configured = value is None and option in configured
            if value is None:
                value = configured[option] if is_configured else defaults.get(option)
            named = [option] if is_configured else []
            if option == "storage" and self._has_options(given, configured):
                is_chosen = is_configured or given.get(option) is not None
                named = [*(["storage"] if is_chosen else []), "storage_options"]
            try:
                setattr(self, option, self._read(option, value))
            except ConfigurationError as exc:
                if not named:
                    raise
                kind = ArgumentTypeError if isinstance(exc, TypeError) else ConfigurationError
                raise kind(f"{' and '.join(self._names[each] for each in named)}: {exc}") from exc
        self._check_with_rules()
        self._families = self.headers
        if self.rules is not None:
            chosen = (self.headers,) if isinstance(self.headers, str) else self.headers
            self.headers = tuple(family for family in chosen if family != SHADOW)

    def _has_options(self, given: Mapping[str, Any], configured: Mapping[str, Any]) -> bool:
        """Whether the storage has options of the configuration."""
        is_given = given.get("storage_options") is not None
        return bool(configured.get("storage_options")) and not is_given

    def _of_process(
        self, given: Mapping[str, Any], configured: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the options of the process that apply."""
        found = current(of_django=False)
        set_here = {
            name for each in (given, configured) for name, v in each.items() if v is not None
        }
        skipped = {"key"} if "rules" in set_here else {"attributes"}
        if {"storage", "storage_options"} & set_here:
            skipped |= {"storage", "storage_options"}
        return {name: value for name, value in found.items() if name not in skipped}

    def _check_with_rules(self) -> None:
        if self.rules is None:
            return
        for option, advice in _REPLACED_BY_RULES.items():
            if getattr(self, option) is not None:
                link = ", " if advice.startswith("wh") else "; "
                raise ConfigurationError(
                    f"{self._names[option]} was given with rules{link}{advice}"
                )

    def check_complete(self) -> None:
        """Raises ConfigurationError for options that need rules, if there are none."""
        if self.rules is not None:
            return
        for option in OF_RULES:
            if getattr(self, option) is not None:
                raise ConfigurationError(
                    f"{self._names[option]} was given without rules; expected "
                    f"{self._names['rules']} too"
                )
        try:
            check_families(self.headers)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{self._names['headers']}: {exc}") from exc

    def rule_requests(self) -> RuleRequests | None:
        """Returns what decides on requests by the rules, or None if there are none."""
        if self.rules is None:
            return None
        return rule_requests_of(rule_limiter_of(self, {}), self, self._families)

    def limiter(self, limit: Any, scope: str, **options: Any) -> RequestLimiter:
        """Returns a request limiter that counts in `scope`, with these settings as defaults."""
        chosen = {
            option: getattr(self, option)
            for option in (
                "algorithm",
                "key",
                "exempt_when",
                "on_limit_error",
                "on_no_key",
                "on_refused",
                "retry_jitter",
            )
        }
        return limiter_in_scope(
            limit,
            scope=scope,
            store=self.storage,
            prefix=self.prefix,
            clock=self.clock,
            headers=self.headers,
            **{**chosen, **options},
        )

    def _read(self, option: str, value: Any) -> Any:
        if option in _RULE_READERS:
            is_read = value is not None and self._reads_rules
            return _RULE_READERS[option](value) if is_read else value
        # No limit has a colon in it.
        if isinstance(value, str) and ":" in value and option in _FUNCTIONS:
            value = imported_function(value)
        if option == "enabled" and not isinstance(value, bool):
            raise ArgumentTypeError(f"enabled is {value!r}; expected True and False")
        if option in ("algorithm", "prefix") and not isinstance(value, str):
            raise ArgumentTypeError(f"the {option} is {value!r}; expected a str")
        if option == "algorithm":
            as_limits("1/second", value)
        if option == "storage_options" and not isinstance(value, dict):
            raise ArgumentTypeError(f"the storage options are {value!r}; expected a dict")
        if option == "storage":
            return self._open_store(value, self.storage_options)
        if option.endswith("limit"):
            return value if value is None or callable(value) else as_limits(value, self.algorithm)
        if option == "key":
            return key_function(value)
        if option == "exempt_methods":
            return methods_of(value)
        if option == "exempt_paths":
            return exempt_paths_of(value)
        if option == "headers":
            if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
                value = tuple(value)
            check_families(value, of_rules=True)
        if option == "on_limit_error":
            check_limit_error_policy(value, self.algorithm)
        if option in _OF_REQUESTS:
            # A request limiter without limits checks the values.
            nothing = Limiter("1000000000/second", storage=self.storage)
            RequestLimiter(nothing, address=peer, headers=(), **{option: value})
        return value
