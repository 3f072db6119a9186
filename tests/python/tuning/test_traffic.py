"""Generated traffic has the given rates and is the same for the same seed."""

from __future__ import annotations

import ipaddress
import math
from typing import Any

import numpy as np
import pytest
from tidegate import tuning
from tidegate.tuning import traffic
from tidegate.tuning.traffic import START, Traffic

HOUR = 3600
GENERATORS: dict[str, Any] = {
    "poisson": lambda seed: traffic.poisson(5, 600, clients=7, seed=seed),
    "diurnal": lambda seed: traffic.diurnal(0.1, 2, seed=seed),
    "zipf": lambda seed: traffic.zipf(5, 600, clients=50, seed=seed),
    "bursts": lambda seed: traffic.bursts(6, 60, 1200, seed=seed),
    "surge": lambda seed: traffic.surge(2, 1200, clients=100, seed=seed),
    "rotating_addresses": lambda seed: traffic.rotating_addresses(5, 600, seed=seed),
    "changed_integration": lambda seed: traffic.changed_integration(2, 1200, seed=seed),
}


def seconds(log: Traffic) -> Any:
    return (log.times - START) / 1e9


def assert_near(count: float, expected: float, each: float = 1) -> None:
    """Expects a count within five standard deviations of a Poisson number of groups of `each`."""
    assert abs(count - expected) <= 5 * math.sqrt(expected * each)


@pytest.mark.parametrize("name", GENERATORS)
def test_traffic_is_ordered_and_the_same_for_a_seed(name: str) -> None:
    first, again, other = (GENERATORS[name](seed) for seed in (1, 1, 2))
    assert first.times.dtype == np.int64
    assert (np.diff(first.times) >= 0).all()
    assert first.times.tolist() == again.times.tolist()
    assert list(first.keys) == list(again.keys)
    assert first.times.tolist() != other.times.tolist()
    assert tuning.replay("1000/minute", first.keys, first.times, first.costs).allowed.any()


def test_poisson_has_the_given_rate_split_equally_among_clients() -> None:
    log = traffic.poisson(20, HOUR, clients=4, seed=1)
    assert_near(len(log), 20 * HOUR)
    for count in np.bincount(log.keys.codes):
        assert_near(count, 20 * HOUR / 4)
    gaps = np.diff(log.times) / 1e9
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # a property of exponential gaps


def test_a_day_is_busiest_at_its_peak_hour() -> None:
    log = traffic.diurnal(5, 4, swing=0.8, peak_hour=15, seed=1)
    assert_near(len(log), 5 * 4 * 24 * HOUR)
    hours = (seconds(log) % 86_400) // HOUR
    for hour in (3, 9, 14, 20):
        middle = (hour + 0.5 - 15) * math.pi / 12
        expected = (
            4 * HOUR * 5 * (1 + 0.8 * math.cos(middle) * math.sin(math.pi / 24) * 24 / math.pi)
        )
        assert_near(np.count_nonzero(hours == hour), expected)


def test_zipf_clients_have_shares_by_their_rank() -> None:
    log = traffic.zipf(50, HOUR, clients=100, exponent=1.2, seed=1)
    assert_near(len(log), 50 * HOUR)
    weights = np.arange(1, 101) ** -1.2
    counts = np.bincount(log.keys.codes, minlength=100)
    for client in (0, 1, 9, 99):
        assert_near(counts[client], 50 * HOUR * weights[client] / weights.sum())


def test_bursts_have_the_given_size_and_spacing() -> None:
    log = traffic.bursts(5, 1000, 100 * HOUR, clients=1, spacing=0.5, seed=1)
    assert_near(len(log), 5 * 360, each=5)
    gaps = np.diff(log.times)
    within = np.count_nonzero(np.abs(gaps - 500_000_000) <= 1)
    assert within > 0.75 * len(gaps)
    assert seconds(log)[-1] < 100 * HOUR


def test_a_surge_reaches_ten_times_the_rate_and_ends() -> None:
    log = traffic.surge(20, 1800, at=600, rise=90, hold=180, fall=300, seed=1)
    at = seconds(log)

    def between(begin: float, end: float) -> int:
        return int(np.count_nonzero((at >= begin) & (at < end)))

    assert_near(between(0, 600), 20 * 600)
    assert_near(between(600, 690), 20 * 90 * 5.5)
    assert_near(between(690, 870), 200 * 180)
    assert_near(between(870, 1170), 20 * 300 * 5.5)
    assert_near(between(1170, 1800), 20 * 630)


def test_a_lull_is_a_surge_with_a_factor_below_one() -> None:
    log = traffic.surge(50, 900, factor=0.1, at=300, rise=0, hold=300, fall=0, seed=1)
    at = seconds(log)
    assert_near(np.count_nonzero((at >= 300) & (at < 600)), 5 * 300)
    assert_near(np.count_nonzero(at < 300), 50 * 300)


def test_no_rotating_address_is_busy() -> None:
    log = traffic.rotating_addresses(50, 600, each=20, seed=1)
    assert_near(len(log), 50 * 600)
    counts = np.bincount(log.keys.codes)
    assert set(counts[:-1]) == {20}
    benchmarks = ipaddress.ip_network("198.18.0.0/15")
    assert all(ipaddress.ip_address(name) in benchmarks for name in log.keys.names)
    assert len(set(log.keys.names)) == len(log.keys.names)


def test_addresses_are_reused_when_all_were_used() -> None:
    log = traffic.rotating_addresses(200, 1000, each=1, seed=1)
    assert len(log) > 131_072
    assert len(log.keys.names) == 131_072
    assert log.keys[0] == log.keys[131_072]


def test_a_changed_integration_comes_in_batches_at_the_same_rate() -> None:
    log = traffic.changed_integration(2, 4 * HOUR, at=0.5, factor=1, batch=50, seed=1)
    at = seconds(log)
    before, after = at[at < 2 * HOUR], at[at >= 2 * HOUR]
    assert_near(len(before), 2 * 2 * HOUR)
    assert_near(len(after), 2 * 2 * HOUR, each=50)
    assert len(np.unique(before)) == len(before)
    assert len(np.unique(after)) == len(after) / 50


def test_a_mix_is_ordered_and_joins_clients_of_one_name() -> None:
    one = traffic.poisson(5, 60, clients=2, seed=1)
    two = traffic.poisson(5, 60, clients=3, seed=2)
    both = traffic.mix(one, two)
    assert len(both) == len(one) + len(two)
    assert sorted(both.keys.names) == ["client-0", "client-1", "client-2"]
    assert sorted(zip(both.times, both.keys)) == sorted(
        [*zip(one.times, one.keys), *zip(two.times, two.keys)]
    )
    assert both.costs is None
    costly = Traffic(two.times, two.keys, np.full(len(two), 7))
    costs = traffic.mix(one, costly).costs
    assert costs is not None
    assert costs.sum() == len(one) + 7 * len(two)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: traffic.poisson(0, 10), "rate is 0; expected a number above 0"),
        (lambda: traffic.poisson(math.nan, 10), "rate is nan; expected"),
        (lambda: traffic.poisson("5", 10), "rate is '5' of type str; expected a number"),
        (lambda: traffic.poisson(5, -1), "seconds is -1; expected a number above 0"),
        (lambda: traffic.poisson(5, 10, clients=0), "clients is 0; expected an int from 1"),
        (lambda: traffic.poisson(5, 10, clients=1.5), "clients is 1.5 .*expected an int"),
        (lambda: traffic.poisson(5, 10, seed=-1), "seed is -1 .*expected an int"),
        (lambda: traffic.poisson(5, 10, start=-1), "start is -1; expected nanoseconds"),
        (lambda: traffic.poisson(5, 10, name=""), "name is '' .*expected a text"),
        (lambda: traffic.poisson(1e9, 1e9), "about .* requests; expected at most"),
        (lambda: traffic.diurnal(1, 1, swing=2), "swing is 2; expected 0 to 1"),
        (lambda: traffic.diurnal(1, 1, peak_hour=25), "peak_hour is 25; expected 0 to 24"),
        (lambda: traffic.zipf(1, 1, exponent=-1), "exponent is -1; expected 0 to 10"),
        (lambda: traffic.bursts(0, 1, 1), "size is 0; expected an int from 1"),
        (lambda: traffic.bursts(1, 1, 1, spacing=-1), "spacing is -1; expected"),
        (lambda: traffic.bursts(10**6, 1, 10**6), "about .* requests; expected at most"),
        (lambda: traffic.surge(1, 10, at=11), "at is 11; expected 0 to 10"),
        (lambda: traffic.surge(1, 10, hold=-1), "hold is -1; expected"),
        (lambda: traffic.rotating_addresses(1, 1, each=0), "each is 0; expected an int from 1"),
        (lambda: traffic.changed_integration(1, 1, at=2), "at is 2; expected 0 to 1"),
        (lambda: traffic.mix(), "no traffic was given; expected"),
        (lambda: traffic.mix(["a"]), "expected Traffic"),
    ],
)
def test_bad_parameters_are_errors_that_say_what_is_expected(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
