"""Reads what a service's configuration says of rules, as text or as objects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tidegate.keys import user
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.web.callables import imported
from tidegate.web.rule_requests import checked_readers

__all__ = ["attributes_of", "load_of", "rules_of", "tiers_of", "violations_of"]

_SUFFIXES = (".yaml", ".yml", ".toml", ".json")


def rules_of(value: Any) -> Any:
    """Returns the RuleSet or RuleSource that `value` is, names or describes. Follows a file."""
    expected = (
        "expected a RuleSet, a RuleSource, a dict, the path of a .yaml, .toml or .json file, or "
        "'package.module:name'"
    )
    if isinstance(value, os.PathLike) or (isinstance(value, str) and _is_path(value)):
        from tidegate.rules import RuleFile

        try:
            return RuleFile(value)
        except OSError as exc:
            raise ConfigurationError(
                f"the file {os.fspath(value)!r} cannot be read ({exc.strerror}); {expected}"
            ) from exc
    if isinstance(value, str):
        value = imported(value, expected.partition(" ")[2])
    if isinstance(value, (Mapping, list, tuple)):
        from tidegate.rules import RuleSet

        return RuleSet(value)
    if hasattr(value, "_compiled") or hasattr(value, "attach"):
        return value
    raise ArgumentTypeError(
        f"the rules are {value!r:.80} of type {type(value).__name__}; {expected}"
    )


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns functions of the request by attribute. ``"user"`` is the framework's user."""
    if not isinstance(value, Mapping):
        return checked_readers(value)
    return checked_readers({name: _reader(name, reader) for name, reader in value.items()})


def tiers_of(value: Any) -> Any:
    """Returns a source of tiers: `value`, or Tiers of a table or a function."""
    value = _object(value)
    if hasattr(value, "of"):
        return value
    if isinstance(value, Mapping) or callable(value):
        from tidegate.rules.tiers import Tiers

        return Tiers(value)
    raise ArgumentTypeError(
        f"the tiers are {value!r:.80} of type {type(value).__name__}; expected "
        "tidegate.rules.Tiers(...), a dict, a function or 'package.module:name'"
    )


def violations_of(value: Any) -> Any:
    """Returns an object that records refusals."""
    return _with_method(
        value, "record", "the violations are", "tidegate.rules.violations.ViolationLog(...)"
    )


def load_of(value: Any) -> Any:
    """Returns an object that makes limiters charge by load."""
    return _with_method(value, "attach", "the load is", "tidegate.load.LoadShedding(...)")


def _is_path(text: str) -> bool:
    return text.endswith(_SUFFIXES) or "/" in text or os.sep in text


def _reader(name: Any, reader: Any) -> Any:
    if reader == "user":
        return user()
    expected = "'user', or 'package.module:function'"
    return imported(reader, expected) if isinstance(reader, str) else reader


def _with_method(value: Any, method: str, what: str, expected: str) -> Any:
    value = _object(value)
    if isinstance(value, type) or not hasattr(value, method):
        raise ArgumentTypeError(
            f"{what} {value!r:.80} of type {type(value).__name__}; expected {expected}, or "
            "'package.module:name'"
        )
    return value


def _object(value: Any) -> Any:
    return imported(value, "'package.module:name'") if isinstance(value, str) else value
