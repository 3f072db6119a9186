"""What the check of intervals sees."""

from __future__ import annotations

import numpy as np
import pytest
from lease_calls import most_over


def calls(instants: list[float], late: float = 0.0) -> np.ndarray:
    return np.array([(at, at + late, True) for at in instants])


def test_one_call_too_many_is_seen() -> None:
    burst = [10.0] * 20
    assert most_over(calls(burst), 10, 20) == 0
    assert most_over(calls([*burst, 10.0]), 10, 20) == 1
    # A tenth of a second brings one back.
    assert most_over(calls([*burst, 10.1]), 10, 20) == pytest.approx(0)
    assert most_over(calls([*burst, 10.05]), 10, 20) == pytest.approx(0.5)
    # Of whatever interval.
    later = [50 + at / 10 for at in range(100)] + [60.0] * 20
    assert most_over(calls([*burst, *later]), 10, 20) == pytest.approx(0, abs=1)


def test_a_call_that_may_lie_outside_is_not_counted() -> None:
    assert most_over(calls([10.0] * 21, late=0.1), 10, 20) == pytest.approx(0)
