"""replay() takes logs as they come: unordered, with datetimes, and in the wrong unit."""

from __future__ import annotations

import random
import warnings
from datetime import datetime, timedelta, timezone

import numpy
import pytest
import tidegate as tg
import tidegate.tuning

SECOND = 10**9
START = 1_700_000_000 * SECOND


@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-log"])
def test_times_that_run_backwards_are_taken_in_order(algorithm):
    # One each second where one each second may pass: nothing is refused.
    times = [START + n * SECOND for n in range(2000)]
    decisions = tg.replay("1/second", ["k"] * 2000, times[::-1], algorithm=algorithm)
    assert sum(not decision.allowed for decision in decisions) == 0


def test_decisions_stay_with_their_requests():
    times = [START + n * SECOND // 3 for n in range(200)]
    keys = [f"k{n % 3}" for n in range(200)]
    costs = [1 + n % 2 for n in range(200)]
    wanted = tg.replay("3/minute", keys, times, costs)
    order = random.Random(7).sample(range(200), 200)
    shuffled = [[given[at] for at in order] for given in (keys, times, costs)]
    assert tg.replay("3/minute", *shuffled) == [wanted[at] for at in order]


def test_requests_of_one_time_stay_in_their_order():
    decisions = tg.replay("2/minute", ["k"] * 4, [START + 5, START, START, START])
    assert [decision.allowed for decision in decisions] == [False, True, True, False]


@pytest.mark.parametrize(
    ("times", "allowed"),
    [
        ([1, 0], [False, True]),
        ([0, 0], [True, False]),
        ([2**62 - 1, 2**62 - 2], [False, True]),
        ([2**62, 2**62], [True, False]),
    ],
)
def test_times_at_the_bounds_are_taken(times, allowed):
    decisions = tg.replay("1/minute", ["k"] * 2, times)
    assert [decision.allowed for decision in decisions] == allowed


@pytest.mark.parametrize("replay", [tg.replay, tg.tuning.replay])
@pytest.mark.parametrize(
    "time",
    [
        *(-1, 2**62 + 1, 2**63, 2**70, -(2**70), numpy.int64(-5)),
        *(datetime(1969, 12, 31, tzinfo=timezone.utc), datetime(2117, 1, 1, tzinfo=timezone.utc)),
    ],
)
def test_times_beyond_the_bounds_are_refused(replay, time):
    with pytest.raises(tg.ConfigurationError, match=r"time at index 1 is .*; expected one from"):
        replay("1/minute", ["k"] * 2, [START, time])


@pytest.mark.parametrize("replay", [tg.replay, tg.tuning.replay])
@pytest.mark.parametrize("year", ["1600-01-01", "1969-12-31", "2200-01-01", "3000-01-01"])
@pytest.mark.parametrize("unit", ["D", "s", "us"])
def test_years_beyond_the_bounds_are_refused(replay, year, unit):
    times = numpy.array(["2024-02-29", year], f"datetime64[{unit}]")
    with pytest.raises(tg.ConfigurationError, match=r"time at index 1 is .*; expected one from"):
        replay("1/minute", ["k"] * 2, times)


@pytest.mark.parametrize("argument", ["keys", "times_ns", "costs", "used"])
@pytest.mark.parametrize("columns", [1, 2])
def test_arrays_of_two_dimensions_are_refused(argument, columns):
    arguments = {"keys": ["k"] * 2, "times_ns": [1, 2], "costs": [1, 1], "used": [1, 1]}
    arguments[argument] = numpy.ones((2, columns), numpy.int64)
    with pytest.raises(tg.ConfigurationError, match="expected"):
        tg.replay("1/minute", **arguments)
    if argument == "times_ns":
        arguments[argument] = arguments[argument].astype("datetime64[ns]")
        with pytest.raises(tg.ConfigurationError, match="expected"):
            tg.replay("1/minute", **arguments)


class NanosecondTime(datetime):
    """A datetime that is finer than a microsecond, as those of pandas are."""

    nanosecond = 7


def test_datetimes_with_nanoseconds_are_exact():
    first = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)
    second = NanosecondTime(2024, 2, 29, 12, tzinfo=timezone.utc)
    ns = int(first.timestamp()) * SECOND
    decisions = tg.replay("1/minute", ["k"] * 2, [first, second])
    assert decisions == tg.replay("1/minute", ["k"] * 2, [ns, ns + 7])
    assert decisions != tg.replay("1/minute", ["k"] * 2, [ns, ns])


def test_a_text_instead_of_a_list_is_shown_up_to_80_characters():
    with pytest.raises(tg.ArgumentTypeError) as raised:
        tg.replay("1/minute", "k" * 100, [START])
    assert str(raised.value) == (
        f"the keys are '{'k' * 79} of type str; expected a list of str or bytes"
    )


@pytest.mark.parametrize("times", [[1, None], ["2024-02-29", 1], [1, 2.5]])
def test_times_that_cannot_be_put_in_order_are_refused(times):
    with pytest.raises(tg.ConfigurationError, match="expected"):
        tg.replay("1/minute", ["k"] * 2, times)


@pytest.mark.parametrize(("keys", "costs"), [(1, 2), (3, 2), (2, 1), (2, 3), (1, 3), (3, 1)])
def test_lengths_that_differ_are_refused_whatever_the_order_of_the_times(keys, costs):
    for times in ([2, 1], [1, 2]):
        with pytest.raises(tg.ConfigurationError, match="expected"):
            tg.replay("1/minute", ["k"] * keys, times, [1] * costs)


def test_times_may_be_datetimes_with_a_zone():
    start = datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=5)))
    times = [start + timedelta(microseconds=n) for n in (0, 1, 60_000_000, 59_999_999)]
    ns = [int(start.timestamp()) * SECOND + n * 1000 for n in (0, 1, 60_000_000, 59_999_999)]
    assert tg.replay("1/minute", ["k"] * 4, times) == tg.replay("1/minute", ["k"] * 4, ns)
    array = numpy.array(ns).astype("datetime64[ns]").astype("datetime64[us]")
    assert tg.replay("1/minute", ["k"] * 4, array) == tg.replay("1/minute", ["k"] * 4, ns)
    with pytest.raises(tg.ConfigurationError, match=r"2024.*no time zone.*expected"):
        tg.replay("1/minute", ["k"], [datetime(2024, 2, 29)])


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_times_may_be_a_column_of_pandas(unit, zone):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    seconds = numpy.array([0, 30, 61, 50], "timedelta64[s]")
    array = (numpy.datetime64("2024-02-29") + seconds).astype(f"datetime64[{unit}]")
    column = pandas.Series(array).dt.tz_localize(zone)
    decisions = tg.replay("1/minute", ["k"] * 4, column)
    assert [each.allowed for each in decisions] == [True, False, True, False]


def test_a_missing_time_is_refused():
    array = numpy.array(["2024-02-29", "NaT", "2024-02-29"], "datetime64[us]")
    with pytest.raises(tg.ConfigurationError, match="time at index 1 is NaT; expected"):
        tg.replay("1/minute", ["k"] * 3, array)
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for zone in (None, "UTC"):
        column = pandas.Series(array).dt.tz_localize(zone)
        with pytest.raises(tg.ConfigurationError, match=r"NaT.*expected"):
            tg.replay("1/minute", ["k"] * 3, column)


@pytest.mark.parametrize(
    ("unit", "scale"), [("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6)]
)
@pytest.mark.parametrize("start", [631_152_000, 807_271_201, 1_700_000_001, 4_102_444_797])
def test_another_unit_than_nanoseconds_is_suspected(unit, scale, start):
    times = [start * scale + n for n in range(3)]
    with pytest.warns(UserWarning, match=f"look like {unit}.*times {10**9 // scale}[)]") as caught:
        tg.replay("1/minute", ["k"] * 3, times)
    assert str(times[0]) in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "times",
    [
        *([], [0, 1, 2], [n * SECOND for n in range(1, 5)], [START], [5_000_000_000_000_000]),
        *([631_151_999], [631_151_999, 631_152_001], [4_102_444_801]),
    ],
)
def test_nanoseconds_are_not_suspected(times):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tg.replay("1/minute", ["k"] * len(times), times)


def test_microseconds_are_suspected_where_all_are_whole_seconds():
    times = [(1_700_000_000 + n) * 10**6 for n in range(3)]
    with pytest.warns(UserWarning, match="look like microseconds"):
        tg.replay("1/minute", ["k"] * 3, times)


@pytest.mark.parametrize(
    ("unit", "scale"), [("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6)]
)
def test_units_that_are_mixed_are_suspected(unit, scale):
    times = [START, START + SECOND, (START + 2 * SECOND) // SECOND * scale]
    with pytest.warns(UserWarning, match=f"the first looks like {unit}.*the last like nanosec"):
        tg.replay("1/minute", ["k"] * 3, times)
