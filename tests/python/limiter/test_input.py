"""Wrong input raises where it is written, says what was given and what is accepted, and
charges nothing."""

from __future__ import annotations

import asyncio
import datetime
import math
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
import tidegate as tg

if TYPE_CHECKING:
    from collections.abc import Callable


class NoScalar:
    """Behaves as a NumPy array, which may be an int but usually is not."""

    def __index__(self) -> int:
        raise TypeError("only integer scalar arrays can be converted to a scalar index")


def limiter() -> tg.Limiter:
    return tg.Limiter("10/minute", clock=tg.ManualClock())


def untouched(limiter: tg.Limiter, key: str | bytes = "k") -> bool:
    return limiter.peek(key).remaining == 10 and limiter.stats().allowed == 0


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "abc", "100", "100/", "/minute", "100/parsec", "0/minute burst 5", "-1/minute",
        "1.5/minute", "1e3/minute", "100 minute", "100//minute", "100/0 seconds", "100/minute x",
        "100/minute burst", "100/minute burst 0", "100/minute burst -1", "100/-5 seconds",
        "99999999999999999999/second", "1/99999999999 years", "1/0.0000000001 seconds",
        "1/1.5 months", "100/M", "100/mo", "100 per mon", "5/2M",
        "100/minute\x00", "100/\u00b5s", "1/minute;", "1" * 5000,
    ],
)  # fmt: skip
def test_wrong_limit_texts_are_refused(text: str) -> None:
    with pytest.raises(tg.ConfigurationError) as caught:
        tg.Limiter(text)
    message = str(caught.value)
    assert "expected" in message
    assert len(message) < 600


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((0, 60), {"algorithm": "concurrency"}, "count of a limit is 0"),
        ((-5, 60), {}, "-5"),
        ((True, 60), {}, "True"),
        ((1.5, 60), {}, "1.5"),
        ((5,), {}, "without a period"),
        ((2**60, 60), {}, str(2**60)),
        ((2**70, 60), {}, str(2**70)),
        ((5, 0), {}, "period is 0"),
        ((5, -1.0), {}, "-1.0"),
        ((5, math.nan), {}, "nan"),
        ((5, math.inf), {}, "inf"),
        ((5, True), {}, "True"),
        ((5, 2**80), {}, str(2**80)),
        ((5, datetime.timedelta(0)), {}, "period"),
        ((5, datetime.timedelta(days=-1)), {}, "period"),
        (("5/minute", 60), {}, "period"),
        ((None,), {}, "None"),
        ((b"5/minute",), {}, "5/minute"),
        (("5/minute",), {"burst": 0}, "burst of a limit is 0"),
        (("5/minute",), {"burst": True}, "True"),
        (("5/minute",), {"burst": 2.0}, "2.0"),
        (("5/minute burst 6",), {"burst": 7}, "7"),
        (("5/minute",), {"burst": 9, "algorithm": "fixed-window"}, "burst"),
        (("1/year",), {"burst": 2**50}, "100 years"),
        (("5/minute",), {"algorithm": "magic"}, "magic"),
        (("5/minute",), {"algorithm": 7}, "7"),
        (("5/minute",), {"name": ""}, "name"),
        (("5/minute",), {"name": "a\nb"}, "name"),
        (("5/minute",), {"name": "\u00e9"}, "name"),
        ((2**40, 60), {"algorithm": "sliding-window"}, str(2**40)),
        ((2**21, 60), {"algorithm": "sliding-log"}, str(2**21)),
    ],
)
def test_wrong_limits_are_refused(
    args: tuple[object, ...], kwargs: dict[str, object], said: str
) -> None:
    with pytest.raises(tg.ConfigurationError) as caught:
        tg.Limit(*args, **kwargs)  # type: ignore[call-overload]
    assert said in str(caught.value)
    assert "expected" in str(caught.value) or "only" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [f"{2**70}/second", f"1/second burst {2**70}", "5/second;", ";5/second", "5/second;;6/minute"],
)
def test_the_message_shows_the_given_value(text: str) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected") as caught:
        tg.parse_many(text)
    assert f"'{text}'" in str(caught.value)


@pytest.mark.parametrize("algorithm", ["magic", None, 7])
def test_an_invalid_algorithm_is_refused_also_beside_a_limit(algorithm: Any) -> None:
    one = tg.Limit("5/minute")
    for given in (one, [one], [one, "6/minute"], "6/minute"):
        with pytest.raises(tg.ConfigurationError, match="expected"):
            tg.Limiter(given, algorithm=algorithm)
        with pytest.raises(tg.ConfigurationError, match="expected"):
            tg.replay(given, [], [], algorithm=algorithm)


@pytest.mark.parametrize("cost", [0, -1, -(2**70), True, False, "1", 1.0, math.nan, None, [1]])
@pytest.mark.parametrize("call", ["hit", "allow", "peek", "refund", "acquire"])
def test_wrong_costs_are_refused(call: str, cost: object) -> None:
    one = limiter()
    with pytest.raises(tg.ConfigurationError, match=r"the cost is .*; expected an int from 1"):
        getattr(one, call)("k", cost)
    assert untouched(one)


@pytest.mark.parametrize("key", ["", b"", None, 42, 1.5, ["k"], bytearray(b"k"), object()])
@pytest.mark.parametrize("call", ["hit", "allow", "peek", "refund", "reset", "acquire"])
def test_wrong_keys_are_refused(call: str, key: object) -> None:
    one = limiter()
    with pytest.raises(tg.ConfigurationError, match=r"the key is .*; expected a non-empty"):
        getattr(one, call)(key)
    assert untouched(one)


@pytest.mark.parametrize("decision", [True, 1, "decision", object()])
def test_wrong_decisions_are_refused(decision: Any) -> None:
    one = limiter()
    one.hit("k", 2)
    plan = tg.Plan([one])
    for wrong in (
        lambda: one.refund("k", decision=decision),
        lambda: asyncio.run(one.refund_async("k", decision=decision)),
        lambda: plan.refund(["k"], decision=decision),
        lambda: asyncio.run(plan.refund_async(["k"], decision=decision)),
    ):
        with pytest.raises(tg.ConfigurationError, match=r"the decision is .* Decision"):
            wrong()
    assert one.peek("k").remaining == one.limits[0].capacity - 2
    with pytest.raises(TypeError):
        one.refund("k", 1, one.hit("k"))  # type: ignore[misc]


def test_wrong_types_are_type_errors_too() -> None:
    with pytest.raises(TypeError):
        limiter().hit(42)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cost"):
        limiter().hit("k", 0)


def test_keys_are_data() -> None:
    one = limiter()
    keys: list[str | bytes] = [
        "k", "K", "k\x00", "k\x00\x00", "\x00", "\ud800", "\ud801", "\udfff\ud800", "\u00e9",
        "e\u0301", "\U0001f30a", "x" * 1_000_000, "x" * 1_000_001, b"\xff",
        b"\xff\xfe", " ", "{k}", "k\n", "*",
    ]  # fmt: skip
    for key in keys:
        assert one.hit(key, 10).allowed, key
    for key in keys:
        assert not one.hit(key).allowed, key
    assert one.stats().keys == len(keys)


def test_a_str_and_its_bytes_are_one_key() -> None:
    one = limiter()
    one.hit("\u00e9", 10)
    assert not one.hit("\u00e9".encode())


def test_a_cost_that_cannot_be_an_index_is_refused() -> None:
    numpy = pytest.importorskip("numpy")
    one = limiter()
    with pytest.raises(tg.ConfigurationError, match=r"the cost is array.*expected an int"):
        one.hit("k", numpy.array([1]))
    assert one.hit("k", numpy.int64(1)).remaining == 9


def test_a_prefix_is_data() -> None:
    store = tg.Limiter("1/minute").storage
    prefixes = ["", "tg", "\x00", "\ud800", "\u00e9", "x" * 100_000]
    assert all(tg.Limiter("1/minute", storage=store, prefix=each).allow("k") for each in prefixes)


@pytest.mark.parametrize("cost", [11, 2**62, 2**63, 2**64, 10**40])
def test_a_cost_beyond_the_capacity_never_passes(cost: int) -> None:
    one = limiter()
    decision = one.hit("k", cost)
    assert (decision.allowed, decision.retry_after) == (False, math.inf)
    assert one.peek("k").remaining == 10


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("", "expected"), ("memory", "memory"), ("redis://:secret@h/x", "expected"),
        ("memory://host", "host"), ("memory://?capacity=0", "0"), ("memory://?capacity=x", "x"),
        ("memory://?size=5", "size"), ("memory://?capacity=1&capacity=2", "twice"),
        (None, "None"), (5, "5"),
    ],
)  # fmt: skip
def test_wrong_storages_are_refused(storage: object, said: str) -> None:
    with pytest.raises(tg.ConfigurationError) as caught:
        tg.Limiter("5/minute", storage=storage)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 0}, {"capacity": -1}, {"capacity": True}, {"capacity": 1.5},
        {"capacity": 2**40}, {"colour": 1}, {"algorithm": "magic"}, {"algorithm": None},
        {"prefix": 5}, {"clock": 5}, {"clock": lambda: "now"}, {"clock": lambda: True},
        {"clock": lambda: math.nan},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises((tg.ConfigurationError, TypeError)) as caught:
        tg.Limiter("5/minute", **options)  # type: ignore[arg-type]
    assert str(caught.value)


@pytest.mark.parametrize(
    ("unit_ns", "unit"), [(10**9, "seconds"), (10**6, "milliseconds"), (10**3, "microseconds")]
)
def test_a_clock_of_ints_in_another_unit_than_nanoseconds_is_refused(
    unit_ns: int, unit: str
) -> None:
    with pytest.raises(tg.ConfigurationError, match=f"is the time of now in {unit}; expected int"):
        tg.Limiter("5/minute", clock=lambda: time.time_ns() // unit_ns)
    for clock in (time.time, time.time_ns, lambda: unit_ns, lambda: 0, lambda: 1_700_000_000):
        assert tg.Limiter("5/minute", clock=clock).hit("k")


def test_limits_of_one_plan_have_names_of_their_own() -> None:
    second, hour = tg.Limit("10/second", name="api"), tg.Limit("3/hour", name="api")
    with pytest.raises(
        tg.ConfigurationError,
        match="name 'api': 10/second and 3/hour; expected names that tell them apart",
    ):
        tg.Limiter([second, hour])
    with pytest.raises(tg.ConfigurationError, match="names that tell them apart"):
        tg.replay([second, hour], [], [])
    both = [tg.Limit("10/second"), tg.Limit("10/second", algorithm="fixed-window")]
    with pytest.raises(tg.ConfigurationError, match=r"\(token-bucket\) and .* \(fixed-window\)"):
        tg.Limiter(both)


@pytest.mark.parametrize("limit", [None, 5, [], [5], [None], {}, b"5/minute", object()])
def test_wrong_limiters_are_refused(limit: object) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected"):
        tg.Limiter(limit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "costs"),
    [
        (["a", "", "b"], None), (["a", 5, "b"], None), (["a", "b"], [1]), (["a", "b"], [1, 0]),
        (["a", "b"], [1, 2.0]), ("ab", None), (b"ab", None), (5, None), (None, None), (["a"], 5),
    ],
)  # fmt: skip
def test_wrong_batches_charge_nothing(keys: object, costs: object) -> None:
    one = limiter()
    with pytest.raises((tg.ConfigurationError, TypeError)):
        one.hit_many(keys, costs)
    assert untouched(one, "a")
    assert untouched(one, "b")


def test_wrong_calls_say_so() -> None:
    one = limiter()
    for args, kwargs in [
        ((), {}),
        (("k", 1, 2), {}),
        (("k",), {"price": 1}),
        (("k",), {"key": "k"}),
    ]:
        with pytest.raises(TypeError):
            one.hit(*args, **kwargs)  # type: ignore[arg-type]
    assert untouched(one)
    assert one.hit(key="k", cost=2).remaining == 8


def test_decisions_are_not_made_by_hand() -> None:
    with pytest.raises(TypeError):
        tg.Decision()


@pytest.mark.parametrize(
    ("keys", "times", "costs"),
    [
        ("k", [1], None), (["k"], [0.5], None), (["k"], [True], None), (["k"], [None], None),
        (["k"], [1, 2], None), ([""], [1], None), (["k"], [1], [0]), (["k"], [1], [1, 1]),
        (None, [1], None), (["k"], 1, None), (["k"], "1", None), (["k"], [1], 1), (["k"], [1], "1"),
        (["k"], [NoScalar()], None),
    ],
)  # fmt: skip
def test_invalid_requests_cannot_be_replayed(keys: Any, times: Any, costs: Any) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected"):
        tg.replay("3/minute", keys, times, costs)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: tg.Limiter("\uff11\uff10\uff10/minute"), "'\uff11\uff10\uff10/minute'"),
        (lambda: tg.Limiter("10/minuté\n"), r"'10/minuté\x0a'"),
        (lambda: tg.Limiter("\uff11" * 100 + "/minute"), "'" + "\uff11" * 26 + "...'"),
        (lambda: tg.Limiter("1/s", storage="shm://größe"), "'größe'"),
        (lambda: tg.Limiter("1/s", storage="shm://a%01b"), r"'a\x01b'"),
        (lambda: tg.Limiter("1/s", algorithm="gcrä"), "'gcrä'"),  # type: ignore[arg-type]
        (lambda: tg.Limit("1/s", name="größe"), "'größe' of type str"),
        (lambda: tg.Limit("1/s", id="é" * 100 + "\n"), "'" + "é" * 39 + "... of type str"),
        (lambda: tg.Limit("1/s", id="é\ud800\u202e"), r"'é\ud800\u202e' of type str"),
        (lambda: tg.Limiter("1/s").hit("k", cost="é"), "'é' of type str"),  # type: ignore[arg-type]
    ],
)
def test_errors_show_what_was_given_as_it_was_written(
    make: Callable[[], object], shown: str
) -> None:
    with pytest.raises(tg.ConfigurationError, match=re.escape(shown)):
        make()
