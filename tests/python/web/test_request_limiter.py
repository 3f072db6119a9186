"""Keys, costs and exemptions, and the functions that fail to return them."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import json
import logging
import typing
import uuid
import weakref

import pytest
import tidegate as tg
from servers import ask, hello, limited, statuses
from tidegate.fastapi import RateLimit
from tidegate.web.active_limits import ActiveLimits
from tidegate.web.combined import CombinedLimiter, combined
from tidegate.web.dynamic_limit import DynamicLimit
from tidegate.web.execution import BLOCKING
from tidegate.web.request_limiter import RequestLimiter


def path_key(scope):
    return scope["path"]


async def path_key_async(scope):
    await asyncio.sleep(0)
    return scope["path"].encode()


@pytest.mark.parametrize("key", [path_key, path_key_async, lambda scope: path_key_async(scope)])
def test_a_key_function_tells_clients_apart(key):
    app = limited("1/minute", key=key)
    assert [ask(app, path).status for path in ("/a", "/a", "/b")] == [200, 429, 200]


def broken_key(scope):
    raise LookupError("no such user")


NO_KEYS = {
    "raised": broken_key,
    "returned no key": lambda scope: None,
}


@pytest.mark.parametrize("why", NO_KEYS)
def test_without_a_key_the_address_is_charged(why, caplog):
    app = limited("1/minute", key=NO_KEYS[why])
    assert statuses(app, 2) == [200, 429]
    assert statuses(app, 1, client=("203.0.113.10", 1)) == [200]
    (record,) = caplog.records  # one record for three failures of a kind
    assert why in record.getMessage()
    assert record.name == "tidegate"
    assert record.levelno == logging.ERROR
    assert (record.exc_info is not None) == (why == "raised")


@pytest.mark.parametrize("kind", [int, uuid.UUID])
def test_the_id_of_a_user_may_be_an_int_or_a_uuid(kind, caplog):
    ids = {"/a": kind("1" * 32), "/b": kind("2" * 32)}
    app = limited("1/minute", key=lambda scope: ids[scope["path"]])
    assert [ask(app, path).status for path in ("/a", "/a", "/b")] == [200, 429, 200]
    assert not app.limiter.peek(str(ids["/a"])).allowed, "it counts by its text"
    assert not caplog.records


@pytest.mark.parametrize("policy", ["address", "open", "closed"])
@pytest.mark.parametrize("wrong", [("acme", 42), 4.2, True, ["a"], {"a": 1}, object()])
def test_what_cannot_be_a_key_raises(wrong, policy):
    async def later(scope):
        return wrong

    for key in (lambda scope: wrong, later):
        with pytest.raises(tg.ArgumentTypeError, match=f"returned a {type(wrong).__name__}"):
            ask(limited("1/minute", key=key, on_no_key=policy))


def test_a_function_that_is_annotated_to_return_no_key_is_refused():
    def pair(request) -> tuple[str, int]: ...
    async def several(request) -> list[str]: ...
    def switch(request) -> typing.Optional[bool]: ...  # noqa: UP045

    class Pairs:
        def __call__(self, request) -> dict[str, int]: ...

    def decorated(limit, key):
        return tg.rate_limit(limit, key=key)(path_key_async)

    for key in (pair, several, switch, Pairs()):
        for make in (limited, decorated, RateLimit):
            with pytest.raises(tg.ArgumentTypeError, match="which returns a"):
                make("1/minute", key=key)


def test_a_function_with_any_other_annotation_is_accepted():
    def text(request) -> str: ...
    def maybe(request) -> typing.Union[int, uuid.UUID, None]: ...  # noqa: UP007
    def unknown(request) -> NotDefinedHere: ...  # noqa: F821
    async def later(request) -> bytes: ...

    for key in (text, maybe, unknown, later, functools.partial(text)):
        assert limited("1/minute", key=key)


@pytest.mark.parametrize("empty", ["", b""])
def test_an_empty_key_counts_as_missing(empty, caplog):
    app = limited("1/minute", key=lambda scope: empty)
    assert statuses(app, 2) == [200, 429]
    assert "returned no key" in caplog.text


def test_no_client_has_the_key_of_a_stand_in():
    app = limited("1/minute", key=lambda scope: scope["path"][1:] or None)
    assert [ask(app, path).status for path in ("/", "/203.0.113.9", "/")] == [200, 200, 429]


@pytest.mark.parametrize("why", NO_KEYS)
def test_a_request_without_a_key_passes_under_open(why, caplog):
    caplog.set_level(logging.INFO, "tidegate")
    app = limited("1/minute", key=NO_KEYS[why], on_no_key="open")
    answers = [ask(app) for _ in range(3)]
    assert {answer.status for answer in answers} == {200}
    assert "ratelimit" not in answers[0]
    (record,) = [each for each in caplog.records if "let through" in each.getMessage()]
    assert (record.levelno == logging.INFO) == (why == "returned no key")


@pytest.mark.parametrize("why", NO_KEYS)
def test_a_request_without_a_key_is_refused_under_closed(why, caplog):
    caplog.set_level(logging.INFO, "tidegate")
    app = limited("1/minute", key=NO_KEYS[why], on_no_key="closed")
    answer = ask(app)
    assert answer.status == 429
    assert "retry-after" not in answer
    assert answer.json()["retry_after"] is None
    (record,) = [each for each in caplog.records if "is refused" in each.getMessage()]
    assert (record.levelno == logging.INFO) == (why == "returned no key")
    assert app.limiter.stats().keys == 0


def test_without_a_key_one_limit_of_several_refuses_before_any_is_charged():
    charged, closed = (
        RequestLimiter(tg.Limiter(limit), address=address, headers=(), **options)
        for limit, address, options in (
            ("2/minute", lambda request: "a", {}),
            ("5/minute", lambda request: None, {"key": lambda r: None, "on_no_key": "closed"}),
        )
    )
    both = CombinedLimiter([charged, closed])
    for _ in range(3):
        refused = both.check({}, BLOCKING)
        assert not refused.decision
        assert refused.decision.rule == "5/minute"
    assert charged.limiter.peek("a").remaining == 2


def test_ever_new_limits_of_several_take_no_more_memory():
    rates = iter(range(1, 1_000))
    options = {"address": lambda request: "a", "headers": ()}
    fixed = tg.Limiter("1000/minute", prefix="fixed")

    def activate(limit):
        return ActiveLimits([tg.Limiter(limit, storage=fixed.storage)], ())

    chosen = DynamicLimit(lambda: f"{next(rates)}/minute", activate)
    both = CombinedLimiter([RequestLimiter(each, **options) for each in (chosen, fixed)])
    for _ in range(600):
        assert both.check({}, BLOCKING).decision
    assert len(both._plans) <= 256


def test_functions_without_a_signature_are_accepted():
    def by_path(scope):
        return scope["path"]

    async def app(scope, receive, send):
        await hello(scope, receive, send)

    # As of some functions in C.
    by_path.__signature__ = app.__signature__ = "unknown"
    with pytest.raises(TypeError):
        inspect.signature(by_path)
    limited_app = limited("1/minute", app, key=by_path)
    assert [ask(limited_app, path).status for path in ("/a", "/a", "/b")] == [200, 429, 200]


def test_a_synchronous_call_never_waits_for_an_event_loop():
    async def suspends():
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="must not suspend"):
        BLOCKING.run(suspends())


def test_clients_without_an_address_share_one_limit(caplog):
    app = limited("1/minute")
    assert statuses(app, 2, client=None) == [200, 429]
    assert statuses(app, 1) == [200]
    assert "the client has no address; all such clients share one limit" in caplog.text


def test_a_permanent_failure_does_not_flood_the_log(caplog, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("tidegate.web.hooks.time.monotonic", lambda: now)
    app = limited("100/minute", key=broken_key)
    statuses(app, 20)
    assert len(caplog.records) == 1
    now += 10
    statuses(app, 20)
    assert len(caplog.records) == 2


def test_a_cost_may_be_a_number_or_a_function():
    assert statuses(limited("5/minute", cost=3), 2) == [200, 429]

    async def cost(scope):
        return len(scope["path"])

    app = limited("5/minute", cost=cost)
    assert [ask(app, path).status for path in ("/ab", "/abc", "/a", "/")] == [200, 429, 200, 429]


def test_a_cost_above_the_capacity_is_refused():
    answer = ask(limited("5/minute", cost=lambda scope: 6))
    assert answer.status == 429
    assert "retry-after" not in answer
    assert answer["x-ratelimit-remaining"] == "5"


@pytest.mark.parametrize("cost", [0, -1, 2.5, True, "2", None, 10**400, LookupError])
def test_a_wrong_cost_charges_one_and_is_logged(cost, caplog):
    def wrong(scope):
        if cost is LookupError:
            raise LookupError
        return cost

    app = limited("5/minute", cost=wrong)
    answer = ask(app)
    if cost == 10**400:
        assert answer.status == 429
        return
    assert answer["x-ratelimit-remaining"] == "4"
    assert "1 is charged" in caplog.text


def test_exempt_requests_are_not_charged(caplog):
    app = limited("1/minute", exempt_when=lambda scope: scope["path"] == "/health")
    answers = [ask(app, "/health") for _ in range(3)]
    assert {answer.status for answer in answers} == {200}
    assert "ratelimit" not in answers[0]
    assert statuses(app, 2) == [200, 429]

    app = limited("1/minute", exempt_when=broken_key)
    assert statuses(app, 2) == [200, 429]
    assert "the request is not exempt" in caplog.text


def test_a_reference_cycle_through_a_limiter_is_collected():
    limiter = tg.Limiter("1/hour")
    limiter.request_limiter = RequestLimiter(
        limiter, address=lambda request: "a", headers=("ietf",)
    )
    request_limiter = weakref.ref(limiter.request_limiter)
    assert limiter.request_limiter.check({}).fields()
    del limiter
    gc.collect()
    assert request_limiter() is None


def test_body_and_fields_agree_on_long_waits():
    limiter = tg.Limiter(
        "1/3650 days", algorithm="fixed-window", clock=tg.ManualClock(1_700_000_000 * 10**9)
    )
    request_limiter = RequestLimiter(limiter, address=lambda request: "a", headers=("ietf",))
    request_limiter.check({})
    outcome = request_limiter.check({})
    fields = dict(outcome.fields())
    assert int(fields[b"retry-after"]) == outcome.wait
    assert json.loads(outcome.problem())["retry_after"] == outcome.wait
    assert request_limiter.check({}, BLOCKING).wait == outcome.wait


def test_limits_before_one_route_send_a_family_once_however_it_is_named():
    limiters = [
        RequestLimiter(tg.Limiter(limit), address=lambda request: "a", headers=headers)
        for limit, headers in (("5/minute", "ietf"), ("9/hour", ["ietf-11"]))
    ]
    fields = combined(limiters).check({}, BLOCKING).fields()
    assert [name for name, _ in fields] == [b"ratelimit-policy", b"ratelimit"]
