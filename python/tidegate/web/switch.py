"""Switches all limits on or off: with the environment variable TIDEGATE_ENABLED, or in tests."""

from __future__ import annotations

import logging
import os

from tidegate.limiter.errors import ConfigurationError

__all__ = ["VARIABLE", "Switch", "switch"]

VARIABLE = "TIDEGATE_ENABLED"
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

log = logging.getLogger("tidegate")


class Switch:
    """The switch of the process. `on` may change at any time."""

    __slots__ = ("on",)

    def __init__(self, text: str | None) -> None:
        """`text` is the value of the environment variable; raises ConfigurationError if it is
        invalid."""
        self.on = text is None or text.lower() in _ON
        if not self.on and str(text).lower() not in _OFF:
            raise ConfigurationError(
                f"the environment variable {VARIABLE} is {text!r}; expected "
                f"{', '.join((*_ON, *_OFF))}"
            )
        if not self.on:
            log.warning("rate limiting is off, since %s=%s", VARIABLE, text)


switch = Switch(os.environ.get(VARIABLE))
