"""The steps that turn measured load into a factor."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from hypothesis import given
from hypothesis import strategies as st
from tidegate.limiter.load.steps import FactorSteps

USUAL = ((0.6, 0.75), (0.8, 0.5))


def steps_of(steps: Any = USUAL, **options: float) -> FactorSteps:
    return FactorSteps(steps, **{"hysteresis": 0.05, "smoothing": 0.0, "recovery": 10.0, **options})


def factors(steps: FactorSteps, *loads: tuple[float, float]) -> list[float]:
    seen = []
    for now, load in loads:
        steps.observe(load, now)
        seen.append(steps.factor)
    return seen


def test_a_step_begins_above_its_load_and_not_at_it() -> None:
    assert factors(steps_of(), (0, 0.6), (1, 0.61), (2, 0.8), (3, 0.81)) == [1.0, 0.75, 0.75, 0.5]


def test_a_jump_of_load_takes_all_steps_at_once() -> None:
    assert factors(steps_of(), (0, 0.1), (1, 0.95)) == [1.0, 0.5]


def test_the_factor_rises_one_step_in_each_recovery_time() -> None:
    looks = [(float(second), 0.0) for second in range(1, 31)]
    seen = factors(steps_of(), (0, 0.9), *looks)
    assert seen[:10] == [0.5] * 10
    assert seen[10:20] == [0.75] * 10
    assert seen[20:] == [1.0] * 11


def test_load_just_below_a_step_keeps_its_factor() -> None:
    seen = factors(steps_of(), (0, 0.65), *((float(n), 0.56) for n in range(1, 100)))
    assert set(seen) == {0.75}
    assert factors(steps_of(), (0, 0.65), (10, 0.5499)) == [0.75, 1.0]


def test_load_around_a_step_does_not_swing_the_factor() -> None:
    steps = steps_of()
    loads = [(n / 10, 0.62 if n % 2 else 0.58) for n in range(1000)]
    changes = sum(1 for now, load in loads if steps.observe(load, now))
    assert changes == 1


def test_a_moment_of_load_is_smoothed_away() -> None:
    steps = steps_of(smoothing=3.0)
    assert factors(steps, (0, 0.1), (1, 1.0), (2, 0.1)) == [1.0, 1.0, 1.0]
    # 1 - 0.9 * exp(-t / 3) is above 0.8 after 4.5 s.
    seen = factors(steps_of(smoothing=3.0), (0, 0.1), *((float(t), 1.0) for t in range(1, 7)))
    assert seen == [1.0, 1.0, 1.0, 0.75, 0.75, 0.5, 0.5]


def test_a_clock_that_goes_back_does_not_break_the_smoothing() -> None:
    steps = steps_of(smoothing=3.0)
    assert factors(steps, (100, 0.2), (50, 1.0)) == [1.0, 1.0]
    assert 0.0 <= steps.load <= 1.0


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 2)), max_size=50))
def test_the_factor_is_always_one_of_the_steps_and_never_above_that_of_the_load(
    looks: list[tuple[float, float]],
) -> None:
    steps = steps_of()
    now = 0.0
    for pause, load in looks:
        now += pause
        steps.observe(load, now)
        most = min([1.0, *(factor for threshold, factor in USUAL if load > threshold)])
        assert steps.factor in (1.0, 0.75, 0.5)
        assert steps.factor <= most


@pytest.mark.parametrize(
    "steps",
    [
        [],
        0.5,
        [(0.6,)],
        [(0.6, 0.0)],
        [(0.6, -1)],
        [(0.6, 1.0)],
        [(0.6, "0.5")],
        [(0.8, 0.5), (0.6, 0.75)],
        [(0.6, 0.5), (0.8, 0.75)],
        [(float("nan"), 0.5)],
        [(True, 0.5)],
        [(0.5, 1e-4)],
        [(0.0, 0.5)],
        [(1.0, 0.5)],
        [(0.05, 0.5)],
    ],
)
def test_steps_that_make_no_sense_are_refused(steps: Any) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected"):
        steps_of(steps)


@pytest.mark.parametrize("name", ["hysteresis", "smoothing", "recovery"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", None, True])
def test_settings_that_are_not_numbers_are_refused(name: str, value: Any) -> None:
    with pytest.raises(tg.ConfigurationError, match=name):
        steps_of(**{name: value})
