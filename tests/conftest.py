"""Settings of every test run."""

from __future__ import annotations

from collections.abc import Iterator

import processes
import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_process_outlives_the_run() -> Iterator[None]:
    with processes.guarded():
        yield
