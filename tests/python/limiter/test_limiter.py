"""The guarantees of each method of a limiter."""

from __future__ import annotations

import asyncio
import copy
import datetime
import gc
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest
import tidegate as tg

SECOND = 1_000_000_000


def test_a_burst_runs_dry_and_recovers() -> None:
    clock = tg.ManualClock()
    limiter = tg.Limiter("3/minute", clock=clock)
    assert [limiter.hit("k").remaining for _ in range(3)] == [2, 1, 0]
    refused = limiter.hit("k")
    assert not refused
    assert (refused.retry_after, refused.reset_after, refused.limit) == (20.0, 60.0, 3)
    clock.advance_ns(20 * SECOND - 1)
    assert not limiter.hit("k")
    clock.advance_ns(1)
    assert limiter.hit("k")


def test_intervals_that_are_no_whole_nanoseconds_do_not_drift() -> None:
    clock = tg.ManualClock()
    limiter = tg.Limiter("3/second", clock=clock)
    assert limiter.hit("k", 3)
    clock.advance(1)
    assert limiter.peek("k").remaining == 3
    admitted = 0
    for _ in range(7000):
        clock.advance_ns(1_000_003)
        admitted += limiter.allow("k")
    assert admitted == 3 + 3 * 7000 * 1_000_003 // SECOND - 1


def test_decisions_are_values() -> None:
    limiter = tg.Limiter("10/second burst 40", clock=tg.ManualClock())
    a, b = limiter.hit("a"), limiter.hit("b")
    assert a == b
    assert a != limiter.hit("a")
    assert a != 5
    assert repr(a) == (
        "Decision(allowed=True, limit=40, remaining=39, retry_after=0.0, reset_after=0.1, "
        "delay=0.0, rule='10/second burst 40', degraded=False)"
    )
    with pytest.raises(TypeError):
        hash(a)
    with pytest.raises(AttributeError):
        a.allowed = False  # type: ignore[misc]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
)
def test_decisions_and_refusals_can_be_copied_and_pickled(copied: Callable[[Any], Any]) -> None:
    clock = tg.ManualClock(5)
    for limit in (
        tg.Limit("7/second burst 40", name="api"),
        tg.Limit("2/minute", algorithm="leaky-bucket"),
        tg.Limit("2/month", algorithm="fixed-window"),
        tg.Limit("2/minute", algorithm="concurrency"),
    ):
        limiter = tg.Limiter([limit, tg.Limit("3000/hour")], clock=clock)
        for cost in (1, 1, 40):
            decision = limiter.hit("k", cost)
            twin = copied(decision)
            assert twin == decision
            assert repr(twin) == repr(decision)
            assert type(twin) is tg.Decision
        refused = tg.RateLimitExceeded(decision)
        refused.note = "mine"  # type: ignore[attr-defined]
        again = copied(refused)
        assert (str(again), again.decision, again.note) == (str(refused), decision, "mine")


def test_exceptions_are_known_by_the_module_that_users_import() -> None:
    errors = [each for each in vars(tg).values() if inspect.isclass(each)]
    errors = [each for each in errors if issubclass(each, tg.TidegateError)]
    assert len(errors) == 7
    assert {each.__module__ for each in errors} == {"tidegate"}
    assert b"limiter" not in pickle.dumps(tg.StorageError("gone"))


def test_a_decision_outlives_its_limiter() -> None:
    decisions = [tg.Limiter(f"{n}/minute").hit("k") for n in range(1, 200)]
    gc.collect()
    assert [d.rule for d in decisions] == [f"{n}/minute" for n in range(1, 200)]
    assert [d.remaining for d in decisions] == list(range(199))


def test_several_limits_are_one_plan() -> None:
    clock = tg.ManualClock()
    limiter = tg.Limiter(["2/second", "3/hour"], clock=clock)
    assert limiter.hit("k", 2).rule == "2/second"
    assert limiter.hit("k").rule == "2/second"
    clock.advance(1)
    passed = limiter.hit("k")
    assert (passed.rule, passed.remaining) == ("3/hour", 0)
    refused = limiter.hit("k", 2)
    assert (refused.rule, refused.retry_after) == ("3/hour", 2399.0)
    assert tg.Limiter("2/second; 3/hour").limits == limiter.limits


def test_peek_refund_and_reset() -> None:
    limiter = tg.Limiter("5/minute", clock=tg.ManualClock())
    assert limiter.peek("k", 5).allowed
    limiter.hit("k", 4)
    assert not limiter.peek("k", 2)
    limiter.refund("k", 3)
    assert limiter.peek("k").remaining == 4
    limiter.refund("k", 100)
    assert limiter.peek("k").remaining == 5
    limiter.hit("k", 5)
    limiter.reset("k")
    assert limiter.peek("k").remaining == 5
    limiter.refund("new")
    assert limiter.peek("new").remaining == 5


def test_a_refund_of_a_decision_that_charged_nothing() -> None:
    limiter = tg.Limiter(["5/minute", "9/hour"], clock=tg.ManualClock())
    hit, refused, peeked = limiter.hit("k", 4), limiter.hit("k", 4), limiter.peek("k")
    for decision in (refused, peeked, pickle.loads(pickle.dumps(peeked))):
        limiter.refund("k", 4, decision=decision)
        asyncio.run(limiter.refund_async("k", 4, decision=decision))
        assert limiter.peek("k").remaining == 1
    limiter.refund("k", 2, decision=hit)
    asyncio.run(limiter.refund_async("k", decision=pickle.loads(pickle.dumps(hit))))
    assert limiter.peek("k").remaining == 4


def test_a_pickled_decision_finds_its_place_though_the_clock_went_back(storage: str) -> None:
    clock = tg.ManualClock(10**18)
    limiter = tg.Limiter(
        tg.Limit(2, "minute", algorithm="concurrency"), storage=storage, clock=clock
    )
    limiter.hit("k")
    clock.advance(-0.05)
    second = limiter.hit("k")
    limiter.refund("k", decision=pickle.loads(pickle.dumps(second)))
    assert limiter.peek("k").remaining == 1


def test_a_leaky_bucket_reports_how_long_to_wait() -> None:
    limiter = tg.Limiter("2/second burst 3", algorithm="leaky-bucket", clock=tg.ManualClock())
    assert [limiter.hit("k").delay for _ in range(3)] == [0.0, 0.5, 1.0]
    assert (limiter.hit("k").allowed, limiter.hit("k").delay) == (False, 0.0)


def test_hit_many_answers_each_key_in_order() -> None:
    numpy = pytest.importorskip("numpy")
    for algorithm in ("token-bucket", "fixed-window", "sliding-log"):
        limiter = tg.Limiter("2/minute", algorithm=algorithm, clock=tg.ManualClock())
        assert limiter.hit_many([]) == []
        assert limiter.hit_many(["a", "a", "b", "a"]) == [True, True, True, False]
        assert limiter.hit_many(("c", b"c", "\u00e9"), costs=[2, 1, 3]) == [True, False, False]
        array = limiter.hit_many(numpy.array(["d", "d", "d"]))
        assert array.dtype == bool
        assert array.tolist() == [True, True, False]
        assert limiter.stats().allowed == 6
        assert limiter.stats().denied == 4
        assert asyncio.run(limiter.hit_many_async(["e"] * 3)) == [True, True, False]
    square = numpy.array([["f", "f"], ["g", "f"]])
    costs = numpy.array([[1, 2], [3, 1]])
    assert tg.Limiter("2/minute").hit_many(square, costs).tolist() == [True, False, False, True]
    many = tg.Limiter("1/minute")
    keys = [f"user:{i % 50_000}" for i in range(100_000)]
    assert many.hit_many(keys) == [True] * 50_000 + [False] * 50_000


@pytest.mark.parametrize("algorithm", ["token-bucket", "sliding-log"])
def test_hit_many_keeps_its_arguments_alive(algorithm: str) -> None:
    # Code of the caller runs while it reads: that of a cost, and that of a clock.
    names = [f"key {i} " * 20 for i in range(50)]
    keys: list[str] = []
    costs: list[object] = []

    def drop() -> None:
        keys.clear()
        costs.clear()
        for i in range(50):  # takes the places of what was let go
            keys.append(f"other {i} " * 20)
            costs.append(7_000_000 + i)

    class Dropping:
        def __index__(self) -> int:
            drop()
            return 1

    def clock() -> int:
        drop()
        return 5

    for given, limiter in (
        ([Dropping(), *[1] * 49], tg.Limiter("1/hour", algorithm=algorithm)),
        (None, tg.Limiter("1/hour", algorithm=algorithm, clock=clock)),
    ):
        keys[:] = ["".join(list(name)) for name in names]
        costs[:] = given or []
        assert limiter.hit_many(keys, costs if given else None) == [True] * 50  # type: ignore[arg-type]
        assert [limiter.peek(name).allowed for name in names] == [False] * 50


def test_hit_many_says_what_it_expects() -> None:
    limiter = tg.Limiter("1/hour")
    for keys, costs, message in (
        (5, None, r"the keys are 5 of type int; expected a list of str or bytes"),
        ("ab", None, r"the keys are 'ab' of type str; expected a list"),
        (["a"], 5, r"the costs are 5 of type int; expected a list of int"),
    ):
        with pytest.raises(TypeError, match=message) as raised:
            limiter.hit_many(keys, costs)  # type: ignore[arg-type]
        assert isinstance(raised.value, tg.ConfigurationError)
    assert limiter.peek("a").allowed


def test_async_twins_do_the_same() -> None:
    limiter = tg.Limiter("10/minute", clock=tg.ManualClock())

    async def calls() -> list[int]:
        left = [(await limiter.hit_async("k", 4)).remaining]
        await limiter.refund_async("k", 1)
        left.append((await limiter.peek_async("k")).remaining)
        await limiter.reset_async("k")
        return [*left, (await limiter.peek_async("k")).remaining]

    assert asyncio.run(calls()) == [6, 7, 10]


@pytest.mark.parametrize("name", ["acquire", "refund", "reset"])
def test_an_async_twin_has_the_same_defaults(name: str) -> None:
    def defaults(method: Any) -> dict[str, Any]:
        return {each.name: each.default for each in inspect.signature(method).parameters.values()}

    twin = getattr(tg.Limiter, f"{name}_async")
    assert defaults(twin) == defaults(getattr(tg.Limiter, name))


def test_a_cost_that_is_not_given_is_one_unit() -> None:
    limiter = tg.Limiter("6/minute", clock=tg.ManualClock())

    async def left_after_each() -> list[int]:
        await limiter.hit_async("k")
        left = [limiter.peek("k").remaining]
        await limiter.allow_async("k")
        left.append(limiter.peek("k").remaining)
        await limiter.acquire_async("k")
        left.append(limiter.peek("k").remaining)
        limiter.acquire("k")
        left.append(limiter.peek("k").remaining)
        limiter.refund("k")
        left.append(limiter.peek("k").remaining)
        await limiter.refund_async("k")
        left.append(limiter.peek("k").remaining)
        return left

    assert asyncio.run(left_after_each()) == [5, 4, 3, 2, 3, 4]


def test_a_look_without_a_cost_asks_for_one_unit() -> None:
    limiter = tg.Limiter("1/minute", clock=tg.ManualClock())
    assert asyncio.run(limiter.peek_async("k")).allowed
    limiter.hit("k")
    assert not asyncio.run(limiter.peek_async("k")).allowed


def test_stats_count_decisions_and_keys() -> None:
    limiter = tg.Limiter("1/minute")
    limiter.hit("a")
    limiter.allow("a")
    limiter.hit("b")
    assert limiter.stats() == tg.Stats(2, 1, 0, 0, 2, 0, 0)
    assert tg.Stats(2, 1, 0, 0, 2, 0, 0)[7:] == (0, 0, 0, False, 0, 0, 0, 0, 0, 0, 0, 0)


def test_a_storage_may_be_shared() -> None:
    first = tg.Limiter("2/minute")
    same = tg.Limiter("2/minute", storage=first.storage)
    other_prefix = tg.Limiter("2/minute", storage=first.storage, prefix="other")
    other_limit = tg.Limiter("3/minute", storage=first.storage)
    first.hit("k", 2)
    assert [limiter.allow("k") for limiter in (same, other_prefix, other_limit)] == [
        False,
        True,
        True,
    ]


def test_memory_is_bounded() -> None:
    clock = tg.ManualClock(SECOND)
    limiter = tg.Limiter("1/hour", storage="memory://?capacity=5000", clock=clock)
    for i in range(100_000):
        assert limiter.hit(f"{i}")
    stats = limiter.stats()
    assert stats.keys <= 8192
    assert stats.keys + stats.evicted_live == 100_000
    clock.advance(3700)
    for i in range(5000):
        assert limiter.hit(f"again {i}")
    assert limiter.stats().evicted_live == stats.evicted_live


def test_context_managers_close() -> None:
    with tg.Limiter("1/minute") as limiter:
        assert limiter.hit("k")
    exports = tg.Limiter("1/minute", algorithm="concurrency")
    exports.close()
    for call in (
        lambda: limiter.hit("k"),
        limiter.stats,
        limiter.ping,
        lambda: exports.slot("k", timeout=None),
    ):
        with pytest.raises(tg.LimiterClosedError, match="closed"):
            call()

    async def main() -> None:
        async with tg.Limiter("1/minute") as inner:
            assert await inner.hit_async("k")
        with pytest.raises(tg.LimiterClosedError):
            await inner.hit_async("k")

    asyncio.run(main())


def test_clocks_that_python_supplies() -> None:
    now = [5 * SECOND]

    class Clock:
        def now_ns(self) -> int:
            return now[0]

    for clock in (Clock(), lambda: now[0], lambda: now[0] / SECOND):
        now[0] = 5 * SECOND
        limiter = tg.Limiter("1/second", clock=clock)
        assert limiter.hit("k")
        assert limiter.hit("k").retry_after == 1.0
        now[0] = 6 * SECOND
        assert limiter.hit("k")


def test_a_manual_clock_may_be_read_by_code_of_its_own() -> None:
    class Ticking(tg.ManualClock):
        def now_ns(self) -> int:
            self.advance_ns(SECOND)
            return super().now_ns()

    limiter = tg.Limiter("1/second", clock=Ticking())
    assert [limiter.allow("k") for _ in range(3)] == [True, True, True]


def test_seconds_mean_the_decimal_that_is_written() -> None:
    # As tests do that freeze time: the nearest doubles lie up to 119 ns before the instants.
    now = [0.0]
    limiter = tg.Limiter("10/second burst 1", clock=lambda: now[0])
    for start in (1000.0, 1700000000.0, 1767225600.0):
        now[0] = start
        assert limiter.hit("k")
        for tenth in range(1, 100):
            now[0] = start + tenth / 10 - 0.000001
            assert not limiter.hit("k")
            now[0] = start + tenth / 10
            assert limiter.hit("k")


@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-log"])
def test_a_wait_of_years_is_not_reported_too_short(algorithm: str) -> None:
    # Beyond 26 days a product of seconds and 1e9 may fall short of the nanoseconds.
    for days in range(20, 36500, 97):
        clock = tg.ManualClock()
        limiter = tg.Limiter(
            tg.Limit(f"1/{days * 86_400 * SECOND + 1} ns", algorithm=algorithm), clock=clock
        )
        assert limiter.hit("k")
        clock.advance_ns(days * 7919 + 12345)
        wait = limiter.hit("k").retry_after
        instant = clock.now_ns() + round(wait * 1e9)
        clock.advance(wait)
        assert limiter.peek("k"), (days, wait)
        clock.set_ns(instant)
        assert limiter.peek("k"), (days, wait)


def test_a_clock_that_cannot_be_read_is_refused_at_once() -> None:
    class Clock:
        def now_ns(self) -> str:
            return "now"

    with pytest.raises(tg.ConfigurationError, match="the clock returned 'now'"):
        tg.Limiter("1/second", clock=Clock())  # type: ignore[arg-type]


def test_a_manual_clock_shows_its_time() -> None:
    clock = tg.ManualClock(5)
    clock.advance_ns(2)
    assert repr(clock) == "ManualClock(start_ns=7)"


def test_a_clock_moves_exactly_as_far_as_requested() -> None:
    clock = tg.ManualClock(5 * SECOND)
    clock.advance(10**400)
    assert clock.now_ns() == 2**62
    clock.advance(-(10**400))
    assert clock.now_ns() == 0


def test_an_exception_of_a_clock_is_raised_by_the_call() -> None:
    broken = False

    def read() -> int:
        if broken:
            raise RuntimeError("no time")
        return 0

    limiter = tg.Limiter("1/second", clock=read)
    broken = True
    for call in (limiter.hit, limiter.allow, limiter.peek, limiter.reset):
        with pytest.raises(RuntimeError, match="no time"):
            call("k")


def test_limits_are_values() -> None:
    limit = tg.Limit("10/second burst 40", name="api")
    assert limit == tg.Limit(10, 1, burst=40, name="api") == pickle.loads(pickle.dumps(limit))
    assert copy.deepcopy(limit) == limit
    assert len({limit, tg.Limit(10, "second", burst=40, name="api"), tg.Limit("10/second")}) == 2
    assert (limit.count, limit.period, limit.period_ns, limit.burst) == (10, 1.0, SECOND, 40)
    assert (limit.name, str(limit), limit.algorithm) == (
        "api",
        "10/second burst 40",
        "token-bucket",
    )
    assert tg.Limit(5, datetime.timedelta(minutes=2)) == tg.Limit("5/2 minutes")
    assert tg.Limit("5/m", algorithm="gcra").algorithm == "token-bucket"
    assert tg.Limit("5/m") != tg.Limit("5/m", algorithm="leaky-bucket")
    assert eval(repr(limit), {"Limit": tg.Limit}) == limit


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("100/minute", "100/minute"), ("100 per minute", "100/minute"), ("1 PER Day", "1/day"),
        ("5/2 seconds", "5/2 seconds"), ("5/2seconds", "5/2 seconds"), ("5/60s", "5/minute"),
        ("5 / 90 s", "5/90 seconds"), ("1/h", "1/hour"), ("1/d", "1/day"), ("1/w", "1/week"),
        ("1/7 days", "1/week"), ("9/500ms", "9/500 ms"), ("9/0.5 seconds", "9/500 ms"),
        ("100perminute", "100/minute"), ("\n10/s burst 4\r\n", "10/second burst 4"),
        ("9/1.5 minutes", "9/90 seconds"), ("1/ns", "1/ns"), ("10/s burst 10", "10/second"),
        ("10/second burst 40", "10/second burst 40"), ("1/30 days", "1/30 days"),
    ],
)  # fmt: skip
def test_a_parsed_limit_prints_its_canonical_text(text: str, canonical: str) -> None:
    limit = tg.parse(text)
    assert str(limit) == canonical
    assert tg.parse(canonical) == limit


def test_a_limit_that_is_not_a_text_is_named_with_its_type() -> None:
    with pytest.raises(TypeError, match="the limit is 5 of type int; expected a text such as"):
        tg.parse(5)  # type: ignore[arg-type]


def test_parse_many_separates_limits() -> None:
    assert list(map(str, tg.parse_many("5/2 seconds; 100/hour"))) == ["5/2 seconds", "100/hour"]
    assert len(tg.parse_many("1/s,2/m | 3/h")) == 3
    assert len(tg.parse_many("1/s;\n2/m;\n3/h\n")) == 3
    assert str(tg.Limit("3/month", algorithm="fixed-window")) == "3/month"


def test_importing_is_light() -> None:
    code = (
        "import sys, threading; before = set(sys.modules); import tidegate; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)), threading.active_count())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "['tidegate'] 1"


# What takes milliseconds to import is imported where it is needed.
SLOW = {"asyncio", "base64", "datetime", "enum", "hashlib", "inspect", "logging", "re", "typing"}
SLOW |= {f"tidegate.{room}" for room in ("outbound", "rules", "server", "tuning", "web")}
SLOW |= {
    f"tidegate.limiter.{module}"
    for module in ("plan", "replay", "rule_limiter", "stats", "storage.hints", "usage_cost",
                   "waiting.leases", "waiting.slot", "waiting.turn")
}  # fmt: skip


def test_importing_is_quick() -> None:
    package = Path(tg.__file__).parent
    if Path(tg._core.__file__).parent != package:
        pytest.skip("an editable install needs a hook of `site`, which imports some of them")
    code = f"import sys; sys.path.append({str(package.parent)!r}); import tidegate"
    out = subprocess.run(
        [sys.executable, "-S", "-c", f"{code}; print(*sys.modules)"],
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    assert SLOW.intersection(out.split()) == set()


def test_importing_in_a_sub_interpreter_raises_import_error() -> None:
    """In a process of its own: while a sub-interpreter lives, no fork of its process succeeds."""
    code = """
import sys, tidegate
code = '''
import sys
for finder in sys.meta_path:
    if hasattr(finder, 'rebuilt'):
        finder.rebuilt = True  # an editable install would start a compiler: from here it cannot
try:
    import tidegate
except ImportError as exc:
    assert 'sub-interpreter' in str(exc) or 'subinterpreter' in str(exc), exc
else:
    raise AssertionError('it was imported')
'''
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
    interpreter = interpreters.create("legacy")
else:
    import _xxsubinterpreters as interpreters
    interpreter = interpreters.create()
failure = interpreters.run_string(interpreter, code)
assert failure is None, failure
interpreters.destroy(interpreter)
assert tidegate.Limiter("1/minute").hit("k")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["hit", "allow"])
def test_hot_calls_are_the_classs_own_and_subclasses_may_override_them(name: str) -> None:
    # The interpreter takes the short way only to descriptors of the object's very class.
    assert vars(tg.Limiter)[name].__objclass__ is tg.Limiter

    class Counting(tg.Limiter):
        calls = 0

        def hit(self, key: str | bytes, cost: int = 1) -> tg.Decision:
            self.calls += 1
            return super().hit(key, cost)

    limiter = Counting("1/minute", clock=tg.ManualClock())
    assert limiter.hit("k")
    assert not limiter.allow("k")
    assert limiter.calls == 1
    with pytest.raises(TypeError):
        getattr(tg.Limiter, name)(object(), "k")
    with pytest.raises(TypeError, match="expected a subclass of Limiter"):
        tg.Limiter._add_fast_methods(int)  # type: ignore[arg-type]
