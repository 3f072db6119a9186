"""Limits under load: the costs of requests, and the reserve for critical ones."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import tidegate as tg
from polling import eventually
from tidegate.load import EventLoopLag, LoadShedding, QueueWait, SystemLoad, highest
from tidegate.rules import RulesError, RuleSet

CEILING = {
    "rules": [{"id": "ceiling", "by": "user", "limit": "100/hour"}],
    "costs": [
        {"endpoint": "/pay", "priority": "critical"},
        {"endpoint": "/export", "priority": "background", "cost": 2},
    ],
}
NEVER = 3600.0


class Load:
    """A measure of load whose value tests set."""

    def __init__(self, value: Any = 0.0) -> None:
        self.value = value

    def __call__(self) -> float:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value  # type: ignore[no-any-return]


def shedding_of(load: Load, **options: Any) -> LoadShedding:
    return LoadShedding(
        load, **{"smoothing": 0.0, "interval": NEVER, "clock": lambda: 0.0, **options}
    )


def limiter_of(document: Any = CEILING, **options: Any) -> Any:
    options.setdefault("clock", tg.ManualClock(0))
    return tg.Limiter(rules=RuleSet(document), **options)


@contextlib.contextmanager
def limiter_under(load: float, document: Any = CEILING, **options: Any) -> Iterator[Any]:
    """A limiter whose requests cost what they cost under a load."""
    with shedding_of(Load(load)) as shedding:
        limiter = limiter_of(document, load=shedding, **options)
        shedding.refresh()
        yield limiter


def passed(limiter: Any, tries: int = 300, **ask: Any) -> int:
    return sum(1 for _ in range(tries) if limiter.check(**{"user": "1", **ask}))


def test_without_load_requests_cost_what_they_cost() -> None:
    with shedding_of(Load(0.3)) as shedding:
        limiter = limiter_of(load=shedding)
        assert shedding.refresh() == 1.0
        assert passed(limiter) == 100


def test_under_load_a_client_gets_the_factors_share_of_its_limit() -> None:
    with shedding_of(Load(0.9)) as shedding:
        limiter = limiter_of(load=shedding)
        assert shedding.refresh() == 0.5
        assert passed(limiter) == 50
    # 3 / 0.75 is a whole number, so the cost is exact. 1 / 0.75 is rounded at random.
    with shedding_of(Load(0.7)) as shedding:
        limiter = limiter_of(load=shedding)
        assert shedding.refresh() == 0.75
        assert passed(limiter, cost=3) == 25
        # The standard deviation of the mean of 200 users is far below 2.
        total = sum(passed(limiter, 110, user=str(user)) for user in range(2, 202))
        assert abs(total / 200 - 75) < 2


def test_load_raises_costs_by_priority_and_not_those_of_critical_requests() -> None:
    with limiter_under(0.9) as limiter:
        assert passed(limiter, user="a", endpoint="/pay") == 100
        assert passed(limiter, user="b", endpoint="/") == 50
        assert passed(limiter, user="c", endpoint="/export") == 12  # 2 units each, times 4
        assert passed(limiter, user="d", priority="critical") == 100
        assert passed(limiter, user="e", priority="background") == 25
        assert passed(limiter, user="f", priority="urgent!") == 50


def test_a_request_never_costs_more_than_its_limit_holds() -> None:
    rules = {"rules": [{"id": "one", "by": "user", "limit": "1/minute"}]}
    clock = tg.ManualClock(0)
    with limiter_under(0.9, rules, clock=clock) as limiter:
        assert limiter.check(user="1")
        refusal = limiter.check(user="1")
        assert refusal.retry_after == 60.0
        clock.advance(60)
        assert limiter.check(user="1")


def test_a_peek_assumes_the_highest_cost_and_a_refund_gives_back_the_plain_cost() -> None:
    with limiter_under(0.9) as limiter:
        hit = limiter.check(user="1", cost=10)
        assert hit.remaining == 80
        limiter.refund(user="1", cost=10, decision=hit)
        assert limiter.peek(user="1").remaining == 90
        assert not limiter.peek(user="1", cost=46)
        assert limiter.peek(user="1", cost=45)


def test_load_raises_the_cost_of_asynchronous_checks_too() -> None:
    async def ask() -> int:
        with limiter_under(0.9) as limiter:
            return sum([bool(await limiter.check_async(user="1")) for _ in range(100)])

    assert asyncio.run(ask()) == 50


def test_the_factor_stays_in_force_when_the_rules_change() -> None:
    with limiter_under(0.9) as limiter:
        limiter.use(RuleSet({"rules": [{"id": "other", "by": "user", "limit": "10/hour"}]}))
        assert passed(limiter) == 5


def test_a_limiter_attached_later_follows_the_current_load() -> None:
    with shedding_of(Load(0.9)) as shedding:
        shedding.refresh()
        limiter = limiter_of()
        shedding.attach(limiter)
        assert passed(limiter) == 50


def test_after_close_clients_have_their_whole_limits_again() -> None:
    shedding = shedding_of(Load(0.9))
    first = limiter_of(load=shedding)
    shedding.refresh()
    shedding.close()
    assert shedding.refresh() == shedding.factor == 1.0
    late = limiter_of(load=shedding)
    assert passed(first) == passed(late) == 100
    shedding.close()


def test_a_measurement_that_ends_after_close_changes_nothing() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def measure() -> float:
        begun.set()
        go_on.wait(30)
        return 0.9

    shedding = LoadShedding(measure, smoothing=0.0, interval=0.001)
    limiter = limiter_of(load=shedding)
    assert begun.wait(30)
    thread = shedding._thread
    assert thread is not None
    shedding.close()
    go_on.set()
    thread.join(30)
    assert passed(limiter) == 100


def test_a_limiter_has_one_load_shedding() -> None:
    with shedding_of(Load(0.9)) as one, shedding_of(Load(0.1)) as other:
        limiter = limiter_of(load=one)
        with pytest.raises(tg.ConfigurationError, match="another LoadShedding"):
            other.attach(limiter)
        one.close()
        other.attach(limiter)


def test_loads_out_of_range_count_as_the_nearest() -> None:
    load = Load(1e300)
    with LoadShedding(load, interval=NEVER, clock=iter(range(0, 10_000, 5)).__next__) as shedding:
        for value, most in (
            (1e300, 1.0),
            (float("inf"), 1.0),
            (-1e300, 0.2),
            (Decimal("0.5"), 0.5),
        ):
            load.value = value
            shedding.refresh()
            assert 0.0 <= shedding._steps.load <= most
        assert shedding.failures == 0


def test_a_measure_that_raises_system_exit_does_not_end_the_measuring() -> None:
    load = Load(SystemExit("no"))
    shedding = LoadShedding(load, smoothing=0.0, interval=0.001)
    limiter = limiter_of(load=shedding)
    eventually(lambda: shedding.failures > 2)
    load.value = 0.9
    eventually(lambda: shedding.factor == 0.5)
    assert passed(limiter) == 50
    shedding.close()


def test_a_closed_limiter_does_not_stop_the_others() -> None:
    load = Load(0.0)
    with shedding_of(load) as shedding:
        closed, open_ = limiter_of(load=shedding), limiter_of(load=shedding)
        closed.close()
        load.value = 0.9
        shedding.refresh()
        assert passed(open_) == 50


def test_a_measurement_that_fails_is_logged_once_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load = Load(0.9)
    with shedding_of(load) as shedding, caplog.at_level(logging.WARNING, "tidegate"):
        limiter = limiter_of(load=shedding)
        shedding.refresh()
        caplog.clear()
        for bad in (OSError("no sensor"), float("nan"), "high", None):
            load.value = bad
            assert shedding.refresh() == 0.5
        assert shedding.failures == 4
        assert [record.message for record in caplog.records] == [
            "the load cannot be measured, the factor stays: OSError('no sensor')"
        ]
        assert passed(limiter) == 50


def test_the_thread_measures_and_ends_with_the_limiters() -> None:
    load = Load(0.9)
    shedding = LoadShedding(load, smoothing=0.0, interval=0.001)
    limiter = limiter_of(load=shedding)
    eventually(lambda: shedding.factor == 0.5)
    gone = weakref.ref(limiter)
    del limiter
    gc.collect()
    assert gone() is None
    eventually(lambda: shedding._thread is None)
    shedding.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_child_of_fork_measures_on_its_own() -> None:
    code = """
import os, threading, tidegate as tg
from tidegate.load import LoadShedding
from tidegate.rules import RuleSet
load = [0.1]
shedding = LoadShedding(lambda: load[0], smoothing=0.0, interval=0.001)
rules = RuleSet({"rules": [{"id": "r", "by": "user", "limit": "9/hour"}]})
limiter = tg.Limiter(rules=rules, load=shedding)
child = os.fork()
if child == 0:
    load[0] = 0.9
    waited = threading.Event()
    for _ in range(2000):
        if shedding.factor == 0.5:
            os._exit(0)
        waited.wait(0.005)
    os._exit(1)
_, status = os.waitpid(child, 0)
print(os.WEXITSTATUS(status), shedding.factor)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "0 1.0\n", ran.stderr


def test_the_interpreter_ends_while_a_measurement_runs() -> None:
    code = """
import threading, tidegate as tg
from tidegate.load import LoadShedding
from tidegate.rules import RuleSet
begun = threading.Event()
def measure():
    begun.set()
    threading.Event().wait(0.2)
    return 0.9
limiter = tg.Limiter(rules=RuleSet({"rules": [{"id": "r", "by": "user", "limit": "9/hour"}]}),
                     load=LoadShedding(measure, interval=0.001))
begun.wait(10)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Fatal" not in ran.stderr


# --------------------------------------------------------------------- reserve


def reserve_of(reserve: Any, limit: str = "100/hour") -> Any:
    return limiter_of(
        {"rules": [{"id": "all", "by": "global", "limit": limit, "reserve": reserve}]}
    )


def test_a_reserve_is_left_for_critical_requests() -> None:
    limiter = reserve_of("20%")
    assert passed(limiter, priority="normal") == 80
    assert passed(limiter, priority="background") == 0
    assert passed(limiter, priority="critical") == 20


def test_critical_requests_may_take_everything() -> None:
    limiter = reserve_of("20%")
    assert passed(limiter, priority="critical") == 100
    assert passed(limiter, priority="normal") == 0


def test_background_requests_are_refused_first() -> None:
    limiter = reserve_of({"normal": "20%", "background": "50%"})
    assert passed(limiter, priority="background") == 50
    assert passed(limiter, priority="normal") == 30
    assert passed(limiter, priority="critical") == 20


def test_a_refusal_by_a_reserve_charges_nothing_and_names_the_rule() -> None:
    limiter = reserve_of("20%")
    passed(limiter, 80)
    refusal = limiter.check(user="1")
    assert (refusal.rule, refusal.limit, refusal.allowed) == ("all", 80, False)
    assert limiter.peek(priority="critical").remaining == 20


def test_a_tenth_of_a_limit_is_rounded_down() -> None:
    assert passed(reserve_of("50%", "5/hour")) == 2
    assert passed(reserve_of("100%", "5/hour")) == 0
    assert passed(reserve_of("100%", "5/hour"), priority="critical") == 5


def test_each_tier_has_the_reserve_of_its_own_limit() -> None:
    limiter = limiter_of(
        {
            "rules": [
                {
                    "id": "tenant",
                    "by": "tenant",
                    "limits": {"free": "10/hour", "paid": ["100/hour", "500/day"]},
                    "reserve": "20%",
                }
            ]
        }
    )
    assert passed(limiter, tenant="a", tier="free") == 8
    assert passed(limiter, tenant="b", tier="paid") == 80
    outcomes = limiter.peek(tenant="b", tier="paid").outcomes
    assert [outcome.limit for outcome in outcomes] == [100, 500, 80, 400]


def test_an_override_has_no_reserve() -> None:
    limiter = limiter_of(
        {
            "rules": [{"id": "t", "by": "tenant", "limit": "10/hour", "reserve": "50%"}],
            "overrides": [{"rule": "t", "key": "big", "limit": "20/hour"}],
        }
    )
    assert passed(limiter, tenant="small") == 5
    assert passed(limiter, tenant="big") == 20


@pytest.mark.parametrize(
    "algorithm", ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]
)
def test_load_does_not_use_up_the_reserve(algorithm: str) -> None:
    rule = {"id": "all", "by": "global", "limit": "10/hour", "reserve": "50%"}
    limiter = limiter_of({"algorithm": algorithm, "rules": [rule]})
    with shedding_of(Load(1.0), steps=[(0.5, 0.1)]) as shedding:
        shedding.attach(limiter)
        shedding.refresh()
        assert passed(limiter, priority="normal", cost=1) == 1
        assert passed(limiter, priority="critical") == 5


def test_a_rule_that_counts_requests_and_its_share_are_charged_alike() -> None:
    rule = {"id": "all", "by": "global", "limit": "1000/hour", "counts": "requests"}
    for _ in range(10):
        limiter = limiter_of({"algorithm": "fixed-window", "rules": [{**rule, "reserve": "10%"}]})
        with shedding_of(Load(0.7)) as shedding:
            shedding.attach(limiter)
            shedding.refresh()
            passed(limiter, 1000)
            assert limiter.peek(priority="critical").remaining >= 100


def test_a_place_of_a_concurrency_limit_costs_one_under_any_load() -> None:
    rule = {"id": "c", "by": "user", "limit": "10/hour", "algorithm": "concurrency"}
    limiter = limiter_of({"rules": [rule]})
    with shedding_of(Load(0.9)) as shedding:
        shedding.attach(limiter)
        shedding.refresh()
        held = [limiter.check(user="1") for _ in range(10)]
        assert all(held)
        for decision in held:
            limiter.refund(user="1", decision=decision)
        assert limiter.peek(user="1").remaining == 10


def test_a_reserve_and_a_rule_with_its_name_count_apart() -> None:
    limiter = limiter_of(
        {
            "rules": [
                {"id": "api", "by": "user", "limit": "100/minute", "reserve": "20%"},
                {"id": "api/normal", "by": "user", "endpoint": "/x", "limit": "100/minute"},
            ]
        }
    )
    assert passed(limiter, 80, endpoint="/x") == 80
    assert limiter.check(user="1", endpoint="/y")


@pytest.mark.parametrize(
    ("limit", "reserve", "algorithm"),
    [
        ("1/minute", "1%", "token-bucket"),
        ("1/second burst 4", "50%", "token-bucket"),
        ("10/second burst 1", "50%", "token-bucket"),
        ("1/minute", "100%", "concurrency"),
    ],
)
def test_a_reserve_that_leaves_nothing_is_refused(limit: str, reserve: str, algorithm: str) -> None:
    rule = {"id": "r", "by": "user", "limit": limit, "reserve": reserve, "algorithm": algorithm}
    with pytest.raises(RulesError, match=r"reserve of .* leaves nothing of") as caught:
        RuleSet({"rules": [rule]})
    assert caught.value.problems[0].where == "rules[0].reserve"


def test_a_rule_in_shadow_takes_no_reserve() -> None:
    rule = {"id": "r", "by": "user", "limit": "10/hour", "reserve": "20%", "shadow": True}
    with pytest.raises(RulesError, match="in shadow"):
        RuleSet({"rules": [rule]})


def test_explain_shows_what_the_reserve_leaves() -> None:
    limiter = reserve_of("20%")
    (rule,) = limiter.explain(user="1")
    assert [limit.count for limit in rule.limits] == [100, 80]


@pytest.mark.parametrize("reserve", [20, "20", "101%", "-1%", "", {"critical": "20%"}, True, [1]])
def test_a_reserve_that_is_not_a_share_is_refused(reserve: Any) -> None:
    with pytest.raises(RulesError, match="expected"):
        reserve_of(reserve)


def test_an_entry_of_costs_needs_a_cost_or_a_priority() -> None:
    with pytest.raises(RulesError, match="expected one of them"):
        RuleSet({"costs": [{"endpoint": "/pay"}]})
    with pytest.raises(RulesError, match="critical"):
        RuleSet({"costs": [{"endpoint": "/pay", "priority": "high"}]})


# -------------------------------------------------------------------- measures


def test_the_load_of_the_machine_is_from_zero_to_one() -> None:
    load = SystemLoad()
    assert 0.0 <= load() <= 1.0


def test_event_loop_lag_is_the_time_that_a_callback_takes() -> None:
    lag = EventLoopLag(full=0.01, interval=0.001)

    async def block() -> float:
        lag.watch(asyncio.get_running_loop())
        await asyncio.sleep(0.01)
        lag()
        threading.Event().wait(0.05)
        return lag()

    assert asyncio.run(block()) >= 4.0
    lag.stop()
    assert lag() == 0.0


def test_a_closed_loop_has_no_lag() -> None:
    lag = EventLoopLag(full=0.001, interval=0.001)

    async def watch() -> None:
        lag.watch(asyncio.get_running_loop())

    asyncio.run(watch())
    lag()
    assert lag() == 0.0
    closed = asyncio.new_event_loop()
    closed.close()
    with pytest.raises(RuntimeError):
        lag.watch(closed)
    assert lag() == 0.0


def test_the_load_of_a_queue_is_its_longest_wait() -> None:
    wait = QueueWait(full=2.0)
    for seconds in (0.1, 1.0, 0.5, -3.0):
        wait.record(seconds)
    assert wait() == 0.5
    assert wait() == 0.0


def test_highest_returns_the_highest_of_several_measures() -> None:
    assert highest(lambda: 0.2, lambda: 0.7)() == 0.7


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: LoadShedding(0.5),  # type: ignore[arg-type]
        lambda: LoadShedding(Load(), interval=0),
        lambda: LoadShedding(Load(), interval=float("nan")),
        lambda: LoadShedding(Load()).attach(tg.Limiter("1/minute")),
        lambda: limiter_of(load=0.5),
        lambda: tg.Limiter("1/minute", load=LoadShedding(Load())),
        lambda: EventLoopLag(full=0),
        lambda: QueueWait(full=-1),
        lambda: highest(),
        lambda: highest(0.5),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_named(mistake: Any) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected"):
        mistake()
