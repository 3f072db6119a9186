"""What the check of intervals sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lease_calls import Step, most_over

RECORDED = Path(__file__).with_name("leases_spent_late.csv")


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


def test_a_step_of_the_clock_is_allowed_for_where_it_may_show() -> None:
    more = calls([10.0] * 20 + [10.1] * 6)
    assert most_over(more, 10, 20) == pytest.approx(5)
    assert most_over(more, 10, 20, [Step(10.05, 10.3, 5)]) == pytest.approx(0)
    assert most_over(more, 10, 20, [Step(10.05, 10.3, 2), Step(10.08, 10.3, 2)]) == pytest.approx(1)
    # It began after the interval, or its effect was over before.
    assert most_over(more, 10, 20, [Step(10.2, 10.3, 5)]) == pytest.approx(5)
    assert most_over(more, 10, 20, [Step(9.0, 9.9, 5)]) == pytest.approx(5)


def test_leases_that_were_spent_past_their_end_are_noticed() -> None:
    """A wave of `leases_campaign.py --broken late` with 100 calls a second, in microseconds."""
    recorded = np.loadtxt(RECORDED, delimiter=",", skiprows=1)
    recorded[:, :2] /= 1e6
    assert most_over(recorded, 100, 100) == pytest.approx(78.99, abs=0.01)
    # The same calls, of processes that pause until each has room.
    paced = recorded.copy()
    paced[:, 1] = paced[:, 0] = np.maximum(
        recorded[:, 0], np.arange(1, len(recorded) + 1) / 100 - 1
    )
    assert most_over(paced, 100, 100) == pytest.approx(0)
