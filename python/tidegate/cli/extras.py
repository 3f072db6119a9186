"""Imports of what an extra installs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["naming_missing_package"]


@contextlib.contextmanager
def naming_missing_package() -> Iterator[None]:
    """Raises ConfigurationError in place of an ImportError, whose message says what to install."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(str(error)) from None
