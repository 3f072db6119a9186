"""Generated traffic, for tuning before there is a log: always the same for the same seed.

    from tidegate.tuning import traffic

    people = traffic.diurnal(20, days=2, clients=500, seed=1)
    attack = traffic.rotating_addresses(50, seconds=600, seed=2)
    log = traffic.mix(people, attack)
    tuning.recommend(log.keys, log.times)

Rates are requests a second of all clients of a call together. A generator with the same arguments
gives the same traffic with one release of NumPy, and usually with every release.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.tuning.columns import shown
from tidegate.tuning.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "START",
    "Traffic",
    "bursts",
    "changed_integration",
    "diurnal",
    "mix",
    "poisson",
    "rotating_addresses",
    "surge",
    "zipf",
]

START = 1_767_571_200 * 10**9
"""The default beginning of traffic: Monday, 5 January 2026, 00:00 UTC."""

_DAY = 86_400
_MOST_REQUESTS = 1_000_000_000
_FIRST_ADDRESS = (198 << 24) + (18 << 16)  # 198.18.0.0/15 is for benchmarks
_ADDRESSES = 1 << 17


class Traffic:
    """Requests in the order of their times."""

    __slots__ = ("costs", "keys", "times")
    times: NDArray[np.int64]
    """Nanoseconds since the epoch, ascending."""
    keys: Keys
    """The client of each request, a text."""
    costs: NDArray[np.int64] | None
    """The cost of each request; None means 1 each."""

    def __init__(
        self, times: NDArray[np.int64], keys: Keys, costs: NDArray[np.int64] | None = None
    ) -> None:
        """`times` are ascending; the other columns have the same length."""
        self.times = times
        self.keys = keys
        self.costs = costs

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        if not len(self):
            return "Traffic(0 requests)"
        seconds = (int(self.times[-1]) - int(self.times[0])) / 1e9
        clients = len(np.unique(self.keys.codes))
        return f"Traffic({len(self):,} requests of {clients:,} clients in {seconds:,.4g} s)"


def poisson(
    rate: float,
    seconds: float,
    *,
    clients: int = 1,
    seed: int = 0,
    start: int = START,
    name: str = "client",
) -> Traffic:
    """Requests that come independently of each other, each of any client with the same chance.

    The gaps between requests are exponential. Clients are called `name` and a number.
    """
    random = _random(seed, rate=rate, seconds=seconds)
    offsets = _even(random, rate, seconds)
    return _of_clients(random, offsets, clients, start, name)


def diurnal(
    rate: float,
    days: float,
    *,
    clients: int = 100,
    swing: float = 0.8,
    peak_hour: float = 15.0,
    seed: int = 0,
    start: int = START,
    name: str = "client",
) -> Traffic:
    """Like poisson(), with a rate that follows the hour of the day, in UTC, along a cosine.

    `rate` is the average of the whole day; at `peak_hour` the rate is 1 + `swing` times as much,
    half a day later 1 - `swing` times.
    """
    random = _random(seed, rate=rate, days=days)
    _within("swing", swing, 0, 1)
    _within("peak_hour", peak_hour, 0, 24)
    _start(start)
    seconds = days * _DAY

    def factor_at(offsets: NDArray[np.float64]) -> NDArray[np.float64]:
        hour = (start / 1e9 + offsets) / 3600
        factors: NDArray[np.float64] = 1 + swing * np.cos((hour - peak_hour) * (2 * math.pi / 24))
        return factors

    offsets = _varying(random, rate, 1 + swing, seconds, factor_at)
    return _of_clients(random, offsets, clients, start, name)


def zipf(
    rate: float,
    seconds: float,
    *,
    clients: int = 1_000,
    exponent: float = 1.1,
    seed: int = 0,
    start: int = START,
    name: str = "client",
) -> Traffic:
    """Like poisson(), with few busy clients and many quiet ones.

    Client number k, from 0 up, has a share of the requests in proportion to
    1 / (k + 1) ** `exponent`.
    """
    random = _random(seed, rate=rate, seconds=seconds)
    _within("exponent", exponent, 0, 10)
    _whole("clients", clients)
    offsets = _even(random, rate, seconds)
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    ends = np.cumsum(weights)
    codes = np.searchsorted(ends, random.random(len(offsets)) * ends[-1], side="right")
    return _traffic(offsets, np.minimum(codes, clients - 1), _names(name, clients), start)


def bursts(
    size: int,
    every: float,
    seconds: float,
    *,
    clients: int = 10,
    spacing: float = 0.05,
    seed: int = 0,
    start: int = START,
    name: str = "client",
) -> Traffic:
    """Clients that send many requests at once, such as a page with its images.

    Each client begins a burst of `size` requests every `every` seconds on average (at random, as
    in poisson()); the requests of a burst are `spacing` seconds apart. Requests of a burst that
    would come after `seconds` are left out.
    """
    random = _random(seed, every=every, seconds=seconds)
    _whole("size", size)
    _whole("clients", clients)
    _within("spacing", spacing, 0, 1e9)
    begins = _even(random, clients / every, seconds, each=size)
    codes = random.integers(0, clients, len(begins))
    offsets = (begins[:, None] + spacing * np.arange(size)).ravel()
    codes = np.repeat(codes, size)
    kept = offsets < seconds
    return _traffic(offsets[kept], codes[kept], _names(name, clients), start)


def surge(
    rate: float,
    seconds: float,
    *,
    factor: float = 10.0,
    at: float | None = None,
    rise: float = 90.0,
    hold: float = 180.0,
    fall: float = 300.0,
    clients: int = 2_000,
    seed: int = 0,
    start: int = START,
    name: str = "rider",
) -> Traffic:
    """A concert ends, and everybody opens the ride-hailing application.

    The rate is `rate`; from second `at` (by default after a third of the time) it rises within
    `rise` seconds to `factor` times as much, stays there for `hold` seconds, and falls back within
    `fall`. Each request is of any client with the same chance.
    """
    random = _random(seed, rate=rate, seconds=seconds, factor=factor)
    for what, value in (("rise", rise), ("hold", hold), ("fall", fall)):
        _within(what, value, 0, 1e9)
    begin = seconds / 3 if at is None else at
    _within("at", begin, 0, seconds)
    # Two points at one instant make a step; interp() takes the later height.
    corners, heights = np.cumsum([begin, rise, hold, fall]), [1, factor, factor, 1]
    offsets = _varying(
        random, rate, max(1.0, factor), seconds, lambda at: np.interp(at, corners, heights)
    )
    return _of_clients(random, offsets, clients, start, name)


def rotating_addresses(
    rate: float, seconds: float, *, each: int = 20, seed: int = 0, start: int = START
) -> Traffic:
    """An attacker who takes another address after `each` requests, so that no address is busy.

    Keys are addresses of 198.18.0.0/15 in a random order; after all 131,072 of them, they are used
    again.
    """
    random = _random(seed, rate=rate, seconds=seconds)
    _whole("each", each)
    offsets = _even(random, rate, seconds)
    order = random.permutation(_ADDRESSES)
    turns = np.arange(len(offsets)) // each
    used = order[: min(int(turns[-1]) + 1 if len(turns) else 0, _ADDRESSES)]
    names = [".".join(str(_FIRST_ADDRESS + at >> bits & 255) for bits in (24, 16, 8, 0))
             for at in used.tolist()]  # fmt: skip
    return _traffic(offsets, turns % _ADDRESSES, names, start)


def changed_integration(
    rate: float,
    seconds: float,
    *,
    at: float = 0.5,
    factor: float = 1.0,
    batch: int = 50,
    seed: int = 0,
    start: int = START,
    name: str = "integration",
) -> Traffic:
    """One client that changes how it calls: single requests first, whole batches later.

    For the share `at` of the time it sends single requests, as in poisson(). After that it sends
    `factor` times as many a second, in batches of `batch` requests at one instant.
    """
    random = _random(seed, rate=rate, seconds=seconds, factor=factor)
    _within("at", at, 0, 1)
    _whole("batch", batch)
    change = seconds * at
    before = _even(random, rate, change)
    after = change + _even(random, rate * factor / batch, seconds - change, each=batch)
    offsets = np.concatenate([before, np.repeat(after, batch)])
    return _traffic(offsets, np.zeros(len(offsets), np.int64), [name], start)


def mix(*traffics: Traffic) -> Traffic:
    """Joins several traffics in the order of their times; one name is one client."""
    if not traffics:
        raise ConfigurationError("no traffic was given; expected at least one")
    for each in traffics:
        if not isinstance(each, Traffic):
            raise ArgumentTypeError(f"{shown(each)} was given; expected Traffic")
    numbers: dict[Any, int] = {}
    codes = [
        np.array([numbers.setdefault(name, len(numbers)) for name in each.keys.names], np.uint32)[
            each.keys.codes
        ]
        for each in traffics
    ]
    times = np.concatenate([each.times for each in traffics])
    order = np.argsort(times, kind="stable")
    costs = None
    if any(each.costs is not None for each in traffics):
        costs = np.concatenate(
            [
                np.ones(len(each), np.int64) if each.costs is None else each.costs
                for each in traffics
            ]
        )[order]
    return Traffic(times[order], Keys(np.concatenate(codes)[order], list(numbers)), costs)


def _even(
    random: np.random.Generator, rate: float, seconds: float, each: int = 1
) -> NDArray[np.float64]:
    """Draws the ascending seconds of a Poisson process; each stands for `each` requests."""
    expected = rate * seconds * each
    if not expected <= _MOST_REQUESTS:
        raise ConfigurationError(
            f"the traffic would have about {expected:,.0f} requests; expected at most "
            f"{_MOST_REQUESTS:,}"
        )
    # Given their number, the points of a Poisson process are uniformly distributed.
    return np.sort(random.random(int(random.poisson(rate * seconds))) * seconds)


def _varying(
    random: np.random.Generator,
    rate: float,
    most: float,
    seconds: float,
    factor_at: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Like _even(), with `rate` multiplied by a factor of the time, which is at most `most`."""
    offsets = _even(random, rate * most, seconds)
    return offsets[random.random(len(offsets)) * most < factor_at(offsets)]


def _of_clients(
    random: np.random.Generator, offsets: NDArray[np.float64], clients: int, start: int, name: str
) -> Traffic:
    _whole("clients", clients)
    codes = random.integers(0, clients, len(offsets))
    return _traffic(offsets, codes, _names(name, clients), start)


def _traffic(
    offsets: NDArray[np.float64], codes: NDArray[Any], names: Sequence[str], start: int
) -> Traffic:
    times = _start(start) + (offsets * 1e9).astype(np.int64)
    order = np.argsort(times, kind="stable")
    return Traffic(times[order], Keys(codes[order].astype(np.uint32), list(names)))


def _names(name: str, clients: int) -> list[str]:
    if not isinstance(name, str) or not name:
        raise ArgumentTypeError(f"name is {shown(name)}; expected a text such as 'client'")
    return [f"{name}-{number}" for number in range(clients)]


def _random(seed: int, **positive: float) -> np.random.Generator:
    """Returns a seeded generator. Raises ConfigurationError if an argument is not above 0."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ArgumentTypeError(f"seed is {shown(seed)}; expected an int from 0 up")
    for what, value in positive.items():
        if not 0 < _number(what, value) < math.inf:
            raise ConfigurationError(f"{what} is {value}; expected a number above 0")
    return np.random.default_rng(seed)


def _start(start: Any) -> int:
    if isinstance(start, bool) or not isinstance(start, (int, np.integer)):
        raise ArgumentTypeError(
            f"start is {shown(start)}; expected nanoseconds since the epoch as an int"
        )
    if not 0 <= start < 2**61:
        raise ConfigurationError(f"start is {start}; expected nanoseconds since the epoch")
    return int(start)


def _number(what: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise ArgumentTypeError(f"{what} is {shown(value)}; expected a number")
    return float(value)


def _within(what: str, value: Any, least: float, most: float) -> None:
    if not least <= _number(what, value) <= most:
        raise ConfigurationError(f"{what} is {value}; expected {least:g} to {most:g}")


def _whole(what: str, value: Any) -> None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ArgumentTypeError(f"{what} is {shown(value)}; expected an int from 1 up")
    if not 1 <= value <= 100_000_000:
        raise ConfigurationError(f"{what} is {value}; expected an int from 1 to 100,000,000")
