"""Key functions by name, as configurations give them."""

from __future__ import annotations

from typing import Any, get_args

from tidegate.keys import first_of, peer, user
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.types import KeyName
from tidegate.web.callables import imported

__all__ = ["imported_function", "key_function"]


def key_function(key: Any) -> Any:
    """Returns the key function that `key` is or names."""
    if isinstance(key, str) and ":" in key:
        key = imported_function(key)
    if key is None or callable(key):
        return key
    if key == "ip":
        return peer
    if key == "user":
        return user()
    if key == "user_or_ip":
        return first_of(user(), peer)
    raise ConfigurationError(
        f"the key is {key!r}; expected a function of the request, "
        f"{', '.join(map(repr, get_args(KeyName)))}, or 'package.module:function'"
    )


def imported_function(name: str) -> Any:
    """Returns the function that ``package.module:function`` names."""
    found = imported(name)
    if not callable(found):
        raise ArgumentTypeError(f"{name!r} is {found!r}; expected a function")
    return found
