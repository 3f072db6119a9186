"""What the tests of all frameworks share."""

from __future__ import annotations

import pytest
import tidegate as tg


@pytest.fixture
def clock() -> tg.ManualClock:
    return tg.ManualClock(1_700_000_000 * 10**9)
