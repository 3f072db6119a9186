"""Fixtures for the tests of a service that uses tidegate.

In the ``conftest.py`` at the top of the tests::

    pytest_plugins = ["tidegate.pytest_plugin"]

No fixture acts unless a test asks for it. A fixture in conftest.py can ask for all tests of a
folder::

    @pytest.fixture(autouse=True)
    def _limits(tidegate_reset): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

import pytest

from tidegate.limiter.clock import ManualClock
from tidegate.testing import configured, limits_off, limits_on, reset_all
from tidegate.web.configuration import configure

__all__ = [
    "tidegate_clock",
    "tidegate_configure",
    "tidegate_limits_off",
    "tidegate_limits_on",
    "tidegate_reset",
]

# 2026-01-01 00:00 UTC, when windows of a minute, hour, day, month and year begin.
_START_NS = 1_767_225_600 * 10**9


@pytest.fixture
def tidegate_clock() -> ManualClock:
    """A clock that stands at the beginning of 2026 until the test moves it, for ``clock=``."""
    return ManualClock(_START_NS)


@pytest.fixture
def tidegate_configure() -> Iterator[Callable[..., None]]:
    """Forgets the options of tidegate.configure() during the test, which may call this value in its
    place."""
    with configured():
        yield configure


@pytest.fixture
def tidegate_reset() -> Iterator[None]:
    """Forgets what clients have used, before the test and after it: see reset_all()."""
    reset_all()
    yield
    reset_all()


@pytest.fixture
def tidegate_limits_off() -> Iterator[None]:
    """Switches limits off during the test, in any adapter: see limits_off()."""
    with limits_off():
        yield


@pytest.fixture
def tidegate_limits_on() -> Iterator[None]:
    """Switches limits on during the test, whatever TIDEGATE_ENABLED says: see limits_on()."""
    with limits_on():
        yield
