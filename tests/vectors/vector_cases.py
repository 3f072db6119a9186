"""What the vectors play: thought of by hand first, then drawn at random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from oracle import ALGORITHMS, BUCKETS, TOLERANCE_NS, Algorithm, Limit
from vector_recorder import DAY, HOUR, LATE, MS, SECOND, YEAR, Case, mixed, some_limit

# Rates whose interval is, and is not, a whole number of nanoseconds.
RATES = [
    (1, SECOND),
    (3, SECOND),
    (7, SECOND),
    (3, 1000 * SECOND),
    (100, 60 * SECOND),
    (1, DAY),
    (10**6, SECOND),
    (10**9, SECOND),
    (999_999_937, SECOND),
    (1_000_003, 7 * SECOND + 1),
    (5, 7),
    (1, 1),
]
FEW = [(1, SECOND), (3, SECOND), (7, 7), (10, SECOND + 7), (3, 1000 * SECOND), (5, DAY)]
WINDOWS = ("fixed-window", "sliding-window")


def _rate(count: int, period_ns: int) -> str:
    return f"{count} in {period_ns} ns"


def drained(algorithm: Algorithm) -> Iterator[Case]:
    """Empty it at once, then every edge on the way back to full."""
    for count, period in RATES if algorithm in (*BUCKETS, *WINDOWS) else FEW:
        for start in (0, LATE):
            case = Case(
                f"drained, {_rate(count, period)}, from {start}",
                Limit(count, period, None, algorithm),
            )
            case.peek(start)
            case.hit(start, count)
            case.hit(start, count + 1)
            case.peek(start, count + 1)
            now = case.edge(start, 1)
            now = case.edge(now, max(1, count // 2))
            case.peek(now, count)
            now = case.edge(now, count)
            case.refund(now, max(1, count // 3))
            now = case.edge(now, max(1, count // 3) + 1)
            now += 2 * period - 1
            case.peek(now)
            case.hit(now + 1, count)
            case.peek(now + 10 * period)
            case.hit(now + 10 * period)
            yield case


def paced(algorithm: Algorithm) -> Iterator[Case]:
    """One unit after another, each at the first instant it may: where intervals drift apart."""
    for count, period in [(3, SECOND), (7, SECOND), (3, 1000 * SECOND), (999_999_937, SECOND)]:
        burst = 2 if algorithm in BUCKETS else None
        small = count if count < 10 or burst else 10
        case = Case(f"paced, {_rate(small, period)}", Limit(small, period, burst, algorithm))
        now = case.edge(LATE, small if burst is None else burst)
        for step in range(12):
            now = case.edge(now) + (step == 6)
        yield case


def costs(algorithm: Algorithm) -> Iterator[Case]:
    """Costs of all sizes, refunds of too much, resets, keys apart, and calls at one instant."""
    case = Case("costs and refunds", Limit(10, SECOND, None, algorithm))
    for now, cost in [(5, 4), (5, 4), (5, 4), (5, 2), (6, 1)]:
        case.hit(now, cost)
    case.refund(6, 3)
    case.hit(7, 4)
    case.hit(7, 3)
    case.hit(7, 10, key=1)
    case.hit(7, 1, key=1)
    case.refund(8, 10)
    case.peek(8, 10)
    case.refund(8, 1)
    case.hit(8, 11)
    case.hit(8, 10)
    case.reset(9)
    case.hit(9, 10)
    case.hit(9, 1, key=1)
    case.refund(9 + 3 * SECOND, 5)
    case.hit(9 + 3 * SECOND, 10)
    case.hit(9 + 3 * SECOND, 1)
    case.reset(10 + 3 * SECOND, key=1)
    case.hit(10 + 3 * SECOND, 10, key=1)
    yield case
    case = Case("a limit of one", Limit(1, SECOND, None, algorithm))
    now = LATE
    for _ in range(6):
        now = case.edge(now)
        case.refund(now)
        case.hit(now)
        case.hit(now, 2)
    yield case


def bursts(algorithm: Algorithm) -> Iterator[Case]:
    for count, period, burst in [
        (10, SECOND, 40),
        (10, SECOND, 1),
        (3, 1000 * SECOND, 2),
        (10**9, SECOND, 3),
        (999_999_937, SECOND, 5),
        (7, SECOND, 10**6),
    ]:
        case = Case(
            f"burst {burst}, {_rate(count, period)}", Limit(count, period, burst, algorithm)
        )
        case.hit(LATE, burst)
        now = case.edge(LATE)
        for part in (2, 3, 1):
            now = case.edge(now, -(-burst // part))
            case.peek(now + period // count)
        case.hit(now, burst + 1)
        yield case
    case = Case("every nanosecond, 999999937 in 1 s", Limit(999_999_937, SECOND, 1, algorithm))
    for now in range(LATE, LATE + 20):
        case.hit(now)
    yield case


def window_edges(algorithm: Algorithm) -> Iterator[Case]:
    """The last and the first instant of windows, and the weight of the one before."""
    for period in (7, SECOND, SECOND + 7, DAY):
        start = LATE // period * period
        case = Case(f"window edges, 10 in {period} ns", Limit(10, period, None, algorithm))
        case.hit(start, 6)
        case.hit(start + period - 1, 4)
        case.hit(start + period - 1)
        case.hit(start + period, 1)
        case.hit(start + period, 10)
        for share in (1, 2, 3, 4, 5, 6):
            now = start + period + period * share // 7
            case.peek(now, share)
            case.hit(now, share)
        case.hit(start + 2 * period - 1, 1)
        now = start + 2 * period
        case.edge(now, 3)
        now = start + 5 * period - 1
        case.hit(now, 9)
        case.hit(now + 1, 2)
        case.refund(now + 1, 9)
        case.edge(now + 1, 10)
        yield case


def log_edges(algorithm: Algorithm) -> Iterator[Case]:
    """Units that were taken one by one come back one by one."""
    case = Case("one by one", Limit(5, SECOND, None, algorithm))
    for i in range(5):
        case.hit(LATE + i * 100 * MS + i)
    for cost in (1, 2, 5, 4, 3):
        case.peek(LATE + 500 * MS, cost)
    now = case.edge(LATE + 500 * MS, 2)
    now = case.edge(now, 3)
    case.refund(now, 2)
    case.hit(now, 2)
    case.refund(now, 1)
    now = case.edge(now, 4)
    case.refund(now + SECOND, 1)
    case.edge(now + SECOND, 5)
    case.refund(now + SECOND, 5)
    case.peek(now + SECOND, 5)
    yield case


def one_algorithm(algorithm: Algorithm) -> Iterator[Case]:
    yield from drained(algorithm)
    yield from paced(algorithm)
    yield from costs(algorithm)
    if algorithm in BUCKETS:
        yield from bursts(algorithm)
    elif algorithm in WINDOWS:
        yield from window_edges(algorithm)
    else:
        yield from log_edges(algorithm)
    for i in range(10):
        name = f"random {algorithm} {i}"
        yield mixed(name, some_limit(random.Random(f"limit of {name}"), algorithm), keys=2)


def plans() -> Iterator[Case]:
    case = Case("the second refuses", Limit(10, SECOND), Limit(12, HOUR))
    for now in (0, 0, SECOND, SECOND, 2 * SECOND):
        case.hit(LATE + now, 5)
    case.edge(LATE + 2 * SECOND, 3)
    yield case
    for first, second in [(10, 10), (10, 11), (11, 10)]:
        case = Case(f"who binds, {first} and {second}", Limit(first, SECOND), Limit(second, SECOND))
        case.peek(LATE)
        case.hit(LATE, 4)
        case.hit(LATE, 7)
        case.hit(LATE, 11)
        case.hit(LATE, 12)
        case.edge(LATE, 10)
        yield case
    for algorithm in ALGORITHMS:
        case = Case(
            f"nothing is charged, {algorithm}",
            Limit(6, SECOND, None, algorithm),
            Limit(2, SECOND, None, "sliding-log"),
        )
        for _ in range(6):
            case.hit(LATE)
        case.hit(LATE, 3)
        case.hit(LATE, 7)
        now = case.edge(LATE, 2)
        case.refund(now)
        case.peek(now, 2)
        case.hit(now)
        case.reset(now)
        case.hit(now, 2)
        yield case
    case = Case(
        "the longest queue sets the delay",
        Limit(10, SECOND, 20, "leaky-bucket"),
        Limit(5, SECOND, 10, "leaky-bucket"),
        Limit(100, SECOND),
    )
    for _ in range(4):
        case.hit(LATE, 3)
    case.peek(LATE)
    case.edge(LATE, 4)
    yield case
    case = Case("all six", *(Limit(5, SECOND, None, algorithm) for algorithm in ALGORITHMS))
    now = LATE
    for cost in (2, 3, 1, 5, 2, 4):
        now = case.edge(now, cost)
    yield case
    for i in range(18):
        name = f"random plan {i}"
        rng = random.Random(f"limits of {name}")
        parts = [some_limit(rng, rng.choice(ALGORITHMS)) for _ in range(rng.randint(2, 4))]
        yield mixed(name, *parts, keys=2)


def one_step(algorithm: Algorithm) -> Iterator[Case]:
    tolerance = TOLERANCE_NS
    backs = [1, tolerance - 1, tolerance, tolerance + 1, SECOND, HOUR, LATE]
    limit = Limit(7, SECOND, None, algorithm)
    start = LATE // SECOND * SECOND  # of a window, so that a step back leaves it
    for back in backs:
        case = Case(f"back by {back} ns, {algorithm}", limit)
        case.hit(start, 7)
        now = max(0, start - back)
        case.peek(now)
        case.hit(now)
        case.peek(now + 1)
        now = case.edge(now + 1, 2)
        case.edge(now, 7)
        yield case
    case = Case(f"back with room left, {algorithm}", limit)
    case.hit(start, 3)
    case.hit(start - HOUR, 2)
    case.edge(start - HOUR, 6)
    case.hit(start - HOUR - tolerance)
    case.edge(start, 7)
    yield case
    case = Case(f"back, first seen by a call that never can pass, {algorithm}", limit)
    case.hit(start, 7)
    case.hit(start - HOUR, 8)
    case.edge(start - HOUR + 1)
    yield case
    case = Case(f"ten years ahead and home again, {algorithm}", limit)
    case.hit(start, 7)
    case.hit(start + 10 * YEAR, 7)
    case.hit(start + 10 * YEAR)
    case.hit(start)
    case.edge(start + 1)
    case.hit(start + 10 * YEAR + 1, 7)
    yield case


def clock_steps() -> Iterator[Case]:
    for algorithm in ALGORITHMS:
        yield from one_step(algorithm)
    for algorithm in BUCKETS:
        for period in (7000, SECOND):  # an interval of whole nanoseconds, and one of sevenths
            case = Case(
                f"the tolerance, {_rate(7, period)}, {algorithm}", Limit(7, period, 3, algorithm)
            )
            last = LATE - TOLERANCE_NS - period // 7
            case.hit(LATE, 2)
            for now in (last, last - 1):
                case.peek(now)
                case.hit(now)
            case.edge(last)
            yield case
    case = Case("a plan goes back", Limit(5, SECOND), Limit(20, HOUR), Limit(9, DAY))
    for now in (LATE, LATE - DAY, LATE - DAY + SECOND, LATE - DAY + HOUR, LATE - 2 * DAY):
        case.hit(now, 3)
        case.hit(now, 5)
    case.edge(now, 5)
    yield case
    for i in range(24):
        name = f"random steps {i}"
        rng = random.Random(f"limits of {name}")
        parts = [some_limit(rng, rng.choice(ALGORITHMS)) for _ in range(rng.choice([1, 1, 1, 2]))]
        yield mixed(name, *parts, steps=True)


OWED = [(1, 7, None), (3, SECOND, None), (7, SECOND, 2), (10, SECOND + 7, 40), (5, DAY, None)]


def debts() -> Iterator[Case]:
    """Charges beyond what there is room for, and every edge on the way back."""
    for algorithm in ALGORITHMS:
        if algorithm == "concurrency":
            continue
        for count, period, given in OWED:
            burst = given if algorithm in BUCKETS else None
            limit = Limit(count, period, burst, algorithm, max_debt=10 * (burst or count))
            yield from _one_debt(limit)
        limit = Limit(7, SECOND, None, algorithm, max_debt=30, oversize="debt")
        yield _oversize(limit)
        for i in range(8):
            name = f"random debts, {algorithm} {i}"
            rng = random.Random(f"limit of {name}")
            plain = some_limit(rng, algorithm)
            most = rng.choice([0, 1, 10 * plain.capacity, rng.randint(1, 10 * plain.capacity)])
            yield _random_debts(name, replace(plain, max_debt=most))
    plan = (
        Limit(10, SECOND, max_debt=100),
        Limit(60, 60 * SECOND, None, "fixed-window", max_debt=9),
    )
    case = Case("a plan owes, and one writes off more", *plan)
    case.hit(LATE, 4)
    case.charge(LATE, 30)
    case.charge(LATE, 500)
    case.peek(LATE)
    case.edge(LATE, 3)
    yield case


def _one_debt(limit: Limit) -> Iterator[Case]:
    start = LATE // limit.period_ns * limit.period_ns  # of a window
    name = f"{limit.algorithm}, {_rate(limit.count, limit.period_ns)}, burst {limit.burst}"
    case = Case(f"owes, {name}", limit)
    now = start + limit.period_ns // 3
    case.hit(now)
    case.charge(now, 2 * limit.capacity + 1)
    case.peek(now)
    case.peek(now, limit.capacity)
    case.charge(now + 1, limit.count)
    now = case.edge(now + 1)
    now = case.edge(now, limit.capacity)
    case.charge(now, limit.capacity)
    case.charge(now, 10**12)  # most is written off
    case.refund(now, 3 * limit.capacity)
    case.peek(now)
    now = case.edge(now, limit.capacity)
    case.charge(now + 20 * limit.period_ns, 1)
    yield case
    case = Case(f"settled at once, {name}", limit)  # a replay plays these too
    now = start
    for more in (1, limit.capacity, 3 * limit.capacity, 10**9, 1):
        now = case.edge(now)
        case.charge(now, more)
    case.edge(now)
    yield case


def _oversize(limit: Limit) -> Case:
    case = Case(f"oversize, {limit.algorithm}", limit)
    now = LATE // SECOND * SECOND
    case.hit(now, 38)
    case.hit(now, 30)
    now = case.edge(now)
    now = case.edge(now, 37)
    now = case.edge(now, 8)
    case.hit(now, 38)
    now += 10 * SECOND
    case.hit(now, 7)
    case.charge(now, 5)
    case.edge(now, 8)
    return case


def _random_debts(name: str, limit: Limit) -> Case:
    rng = random.Random(name)
    case = Case(name, limit)
    now, wait = LATE + rng.randrange(10**10), 0
    for _ in range(24):
        now += rng.choice(
            [0, 0, 1, max(0, wait - 1), wait, wait, rng.randrange(3 * limit.period_ns)]
        )
        cost = rng.choice(
            [1, 2, rng.randint(1, limit.capacity), rng.randint(1, 4 * limit.capacity)]
        )
        lot = rng.random()
        if lot < 0.45:
            wait = case.hit(now, min(cost, limit.capacity)).retry_after_ns or 0
        elif lot < 0.85:
            case.charge(now, cost)
            wait = case.peek(now).retry_after_ns or 0
        else:
            case.refund(now, cost)
    return case


def utc(year: int, month: int, day: int, hour: int = 0) -> int:
    since = datetime(year, month, day, hour, tzinfo=timezone.utc) - datetime(
        1970, 1, 1, tzinfo=timezone.utc
    )
    return since // timedelta(hours=1) * HOUR


def calendar() -> Iterator[Case]:
    month, year = 30 * DAY, 365 * DAY

    def limit(count: int, unit: str, n: int = 1) -> Limit:
        if unit == "month":
            return Limit(count, n * month, None, "fixed-window", "month", n)
        return Limit(count, n * year, None, "fixed-window", "year", n)

    ends = [  # the first instants of windows, for the limits they are windows of
        (limit(2, "month"), [(1970, 2, 1), (2023, 3, 1), (2024, 2, 1), (2024, 3, 1), (2025, 1, 1)]),
        (limit(2, "month"), [(2000, 3, 1), (2100, 3, 1), (2023, 12, 1), (2023, 5, 1)]),
        (limit(2, "month", 3), [(1970, 4, 1), (2024, 4, 1), (2025, 1, 1)]),
        (limit(2, "month", 5), [(1970, 6, 1), (1970, 11, 1), (1971, 4, 1), (2024, 2, 1)]),
        (limit(2, "year"), [(1971, 1, 1), (2024, 1, 1), (2025, 1, 1), (2101, 1, 1)]),
        (limit(2, "year", 2), [(1972, 1, 1), (2024, 1, 1), (2026, 1, 1)]),
        (limit(2, "year", 7), [(1977, 1, 1), (2026, 1, 1)]),
    ]
    for one, dates in ends:
        name = f"{one.count} in {one.calendar_n} {one.calendar}s"
        for date in dates:
            end = utc(*date)
            case = Case(f"{name}, round {date[0]}-{date[1]:02}-01", one)
            case.hit(max(0, end - 27 * DAY - 11 * HOUR))
            case.hit(end - DAY)
            case.edge(end - DAY + 1)
            case.hit(end, 2)
            case.hit(end, 3)
            case.refund(end + DAY)
            case.hit(end + DAY, 2)
            case.edge(end + 2 * DAY)
            case.edge(end + 3 * DAY, 2)
            yield case
    case = Case("a year of edges, 1 in 1 months", limit(1, "month"))
    now = case.edge(utc(2023, 12, 31, 23))
    for _ in range(14):
        now = case.edge(now)
    yield case
    case = Case("the epoch itself", limit(3, "month"))
    case.hit(0, 3)
    case.edge(0)
    yield case
    case = Case("the clock goes back", limit(3, "month"))
    march = utc(2024, 3, 1)
    case.hit(march, 2)
    for now in (march - 1, march - TOLERANCE_NS, march - TOLERANCE_NS - 1, march - 40 * DAY):
        case.peek(now, 2)
        case.hit(now, 2)
    case.edge(march - 40 * DAY, 2)
    yield case
    case = Case("a day and a month", Limit(2, DAY, None, "fixed-window"), limit(3, "month"))
    now = utc(2024, 2, 27, 12)
    for _ in range(5):
        now = case.edge(now, 2)
    yield case
    for i in range(12):
        rng = random.Random(f"calendar {i}")
        unit = rng.choice(["month", "year"])
        yield mixed(f"random calendar {i}", limit(rng.randint(1, 5), unit, rng.randint(1, 4)))
