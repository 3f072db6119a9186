"""The decisions and fields of the C++ path equal those of Python."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import weakref
from types import MappingProxyType, SimpleNamespace

import pytest
import tidegate as tg
from hypothesis import given
from hypothesis import strategies as st
from tidegate import _core
from tidegate.keys import peer
from tidegate.refusals import watch
from tidegate.web.execution import BLOCKING
from tidegate.web.observers import observers
from tidegate.web.request_access import connection_of
from tidegate.web.request_limiter import RequestDecision, RequestLimiter
from tidegate.web.rule_requests import RuleRequests


def made_limiter(limit="2/minute", **options):
    limiter = tg.Limiter(limit, clock=tg.ManualClock())
    return RequestLimiter(limiter, address=peer, headers=("x-ratelimit",), **options)


def scope(**items):
    return {"type": "http", "method": "GET", "client": ("192.0.2.1", 1), "headers": [], **items}


HOSTS = st.sampled_from(
    ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "fe80::1%eth0", "testclient", "", "é", 7, None]
)
CLIENTS = st.one_of(
    st.none(), st.tuples(HOSTS, st.integers()), st.lists(HOSTS, min_size=1), st.just(())
)
KINDS = st.sampled_from(["http", "websocket", "lifespan", None, 7])


class Dict(dict):
    """A subclass of dict."""


@given(CLIENTS, KINDS, HOSTS, st.sampled_from(["scope", "environ", "META", "dict", "Dict"]))
def test_the_peer_equals_that_of_keys(client, kind, remote, place):
    source = {"type": kind, "client": client, "REMOTE_ADDR": remote}
    request = {"dict": source, "Dict": Dict(source)}.get(place) or SimpleNamespace(
        **{place: source}, method="GET"
    )
    request_limiter = made_limiter()
    request_limiter.hooks.log_throttled = lambda *problem, **details: (
        None
    )  # clients without an address are logged
    (charge,) = request_limiter.check(request).charges
    assert charge.key == (peer(request) or "\0")
    assert _core.peer_of(request) in (None, connection_of(request))
    assert request_limiter.limiter.peek(charge.key).remaining == 1


@pytest.mark.parametrize("client", [{}, {"client": None}])
def test_the_core_reads_the_peer_of_wsgi(client):
    environ = {"REMOTE_ADDR": "192.0.2.1", **client}
    assert _core.peer_of(environ) == "192.0.2.1"
    assert _core.peer_of(SimpleNamespace(environ=environ)) == "192.0.2.1"
    assert _core.peer_of(SimpleNamespace(environ=Dict(environ))) is None


def test_an_invalid_scope_is_not_read():
    # A request of another framework may have its own `scope`.
    for strange in ("text", {"client": ("192.0.2.9", 1)}, {"type": "other", "client": ("::1", 1)}):
        request = SimpleNamespace(scope=strange, environ={"REMOTE_ADDR": "192.0.2.1"})
        (charge,) = made_limiter().check(request).charges
        assert charge.key == "192.0.2.1" == peer(request)


def test_keys_may_be_bytes_and_subclasses():
    class Text(str):
        __slots__ = ()

    for key in (b"me", Text("me")):
        request_limiter = made_limiter(key=lambda request, key=key: key)
        outcomes = [request_limiter.check(scope(), BLOCKING) for _ in range(3)]
        assert [outcome.decision.allowed for outcome in outcomes] == [True, True, False]


def test_the_fields_of_a_refusal():
    request_limiter = made_limiter()
    outcomes = [request_limiter.check(scope()) for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [RequestDecision] * 3
    refused = outcomes[2]
    assert not refused.decision.allowed
    assert refused.limiter is request_limiter
    assert refused.charges == ()
    assert refused.wait == 30


# Each with a state of its own: a limit binds by what it has left, and one in shadow never does.
_RULES = [
    {"id": "caller", "by": "ip", "limit": "2/minute"},
    {"id": "all", "limit": "3/hour", "algorithm": "sliding-window"},
    {"id": "posts", "limit": "1/second", "methods": ["POST"]},
    {"id": "batch", "by": "endpoint", "limit": "4/minute burst 2", "headers": False},
]
_TRIED = {"id": "trial", "limit": "1/minute", "shadow": True}


def _seen(outcome):
    """All that a response has of a decision."""
    if outcome is None:
        return None
    answer = None
    if not outcome.decision.allowed:
        answer = outcome.problem(), outcome.wait, outcome.charges
    return outcome.fields(), outcome.decision, outcome.decision.outcomes, answer


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["GET", "POST"]),
            st.sampled_from(["/a", "/b"]),
            st.sampled_from(["192.0.2.1", "192.0.2.2"]),
            st.integers(1, 3),
        ),
        max_size=12,
    ),
    st.lists(st.sampled_from(_RULES), unique_by=lambda rule: rule["id"]),
    st.booleans(),
    st.sampled_from([(), ("ietf",), ("x-ratelimit", "ietf", "openai"), ("ietf", "shadow")]),
)
def test_refusals_made_in_the_core_are_those_of_the_package(requests, rules, is_tried, headers):
    document = {"rules": [*rules, *([_TRIED] if is_tried else [])]}
    costs = iter([cost for *_, cost in requests] * 2)

    def check(observed):
        limiter = tg.Limiter(rules=tg.RuleSet(document), clock=tg.ManualClock(1))
        checker = RuleRequests(limiter, headers=headers, cost=lambda request: next(costs))
        with watch([].append) if observed else contextlib.nullcontext():
            return [
                _seen(checker.check(scope(method=method, path=path, client=(host, 1))))
                for method, path, host, _ in requests
            ]

    assert check(observed=False) == check(observed=True)


@pytest.mark.parametrize("limit", ["2/minute", "0/minute", "3/hour burst 1"])
def test_a_refusal_of_one_limit_is_the_same_with_an_observer(limit):
    def check():
        request_limiter = made_limiter(limit)
        outcomes = [request_limiter.check(scope()) for _ in range(3)]
        assert not outcomes[-1].decision.allowed
        assert outcomes[-1].charges == ()
        return [_seen(outcome) for outcome in outcomes]

    refusals = []
    alone = check()
    with watch(refusals.append):
        assert check() == alone
    assert refusals


def test_an_overridden_hit_is_called():
    class Mine(tg.Limiter):
        def hit(self, key, cost=1):
            return super().hit("shared", cost)

    limiter = Mine("1/minute", clock=tg.ManualClock())
    request_limiter = RequestLimiter(limiter, address=peer, headers=())
    assert request_limiter.check(scope()).decision.allowed
    assert not request_limiter.check(scope(client=("192.0.2.2", 1))).decision.allowed


def test_exceptions_of_the_limiter_pass_through():
    request_limiter = made_limiter()
    request_limiter.limiter.close()
    with pytest.raises(RuntimeError, match="closed"):
        request_limiter.check(scope())


def test_a_checker_takes_what_it_charges_by():
    limiter = tg.Limiter("2/minute", clock=tg.ManualClock())
    for arguments in ((), (int, limiter, *[None] * 4), (RequestDecision, 7, *[None] * 4)):
        with pytest.raises(TypeError, match="expected a class of RequestDecision, a Limiter"):
            _core.KeyChecker(*arguments)
    check = _core.KeyChecker(RequestDecision, limiter, None, None, None, None)
    with pytest.raises(TypeError, match="expected HeaderFields"):
        check(scope(), "key", 1)
    with pytest.raises(TypeError, match="expected a request, a key or None, and a cost"):
        check(scope())
    with pytest.raises(TypeError, match="expected a class of RequestDecision, a RuleLimiter"):
        _core.RuleChecker(RequestDecision, limiter, None, None, b"")
    rules = tg.Limiter(rules=tg.RuleSet({"rules": []}))
    with pytest.raises(TypeError, match="attributes or None"):
        _core.RuleChecker(RequestDecision, rules, None, None, b"")(scope(), 1, 7)


def test_a_checker_goes_with_its_limiter():
    request_limiter = made_limiter()
    assert request_limiter.check(scope()).decision.allowed
    gone = weakref.ref(request_limiter)
    del request_limiter
    gc.collect()
    assert gone() is None


def with_functions(asked, later=None):
    """A request limiter of functions that note when they are asked; one must be awaited."""

    def answers(name, value):
        def function(request):
            asked.append(name)
            return value

        async def coroutine(request):
            return function(request)

        return coroutine if name == later else function

    return made_limiter(
        "9/minute",
        key=answers("key", "me"),
        exempt_when=answers("exempt_when", False),
        cost=answers("cost", 4),
    )


def test_functions_are_asked_once_and_without_a_coroutine():
    asked = []
    request_limiter = with_functions(asked)
    passed = request_limiter.check(scope())
    assert asked == ["exempt_when", "key", "cost"]
    assert passed.decision.remaining == 5
    assert [(charge.key, charge.cost) for charge in passed.charges] == [("me", 4)]
    request_limiter.check(scope())
    refused = request_limiter.check(scope())
    assert (refused.decision.allowed, refused.charges) == (False, ())


@pytest.mark.parametrize("later", ["exempt_when", "key", "cost"])
def test_each_function_is_asked_once_if_one_must_be_awaited(later):
    asked = []
    checked = with_functions(asked, later).check(scope())
    assert inspect.iscoroutine(checked)
    (charge,) = asyncio.run(checked).charges
    assert (charge.key, charge.cost) == ("me", 4)
    assert sorted(asked) == ["cost", "exempt_when", "key"]


def test_observers_of_decision_times_are_called():
    took = []

    def timer(limiter, seconds):
        took.append((limiter, seconds))

    request_limiter = made_limiter()
    observers.change((), (timer,), add=True)
    try:
        outcome = request_limiter.check(scope(), BLOCKING)
    finally:
        observers.change((), (timer,), add=False)
    assert outcome.decision.allowed
    ((limiter, seconds),) = took
    assert limiter is request_limiter.limiter
    assert seconds > 0
    assert request_limiter.check(scope()).decision.remaining == 0
    assert len(took) == 1


def test_closing_a_timer_during_a_request_does_no_harm(monkeypatch):
    reads = iter([(print,), ()])
    monkeypatch.setattr(type(observers), "times", property(lambda self: next(reads, ())))

    async def ask():
        checked = made_limiter().check(scope())
        return await checked if inspect.iscoroutine(checked) else checked

    assert asyncio.run(ask()).decision.allowed


def telling(sent=None, limit="2/minute"):
    return _core.HeaderSend(
        print if sent is None else sent.append, made_limiter(limit).check(scope())
    )


FIELDS = [
    (b"x-ratelimit-limit", b"2"),
    (b"x-ratelimit-remaining", b"1"),
    (b"x-ratelimit-reset", b"30"),
]


@pytest.mark.parametrize(
    "kind", ["http.response.start", "websocket.accept", "websocket.http.response.start"]
)
@pytest.mark.parametrize("of", [dict, MappingProxyType])
def test_the_message_with_headers_is_copied(kind, of):
    given_headers = ((b"x-a", b"1"),)
    message = of({"type": kind, "status": 200, "headers": given_headers})
    sent = []
    assert telling(sent)(message) is None  # what append() returns
    assert sent == [{"type": kind, "status": 200, "headers": [(b"x-a", b"1"), *FIELDS]}]
    assert message["headers"] is given_headers


def test_a_message_without_headers_gets_them():
    sent = []
    telling(sent)({"type": "http.response.start"})
    assert sent == [{"type": "http.response.start", "headers": FIELDS}]


@pytest.mark.parametrize("kind", ["http.response.body", "http.response.start ", "", 7, None])
def test_other_messages_are_sent_unchanged(kind):
    sent = []
    message = {"type": kind, "headers": []}
    telling(sent)(message)
    assert sent[0] is message
    assert message == {"type": kind, "headers": []}


def test_malformed_messages_raise():
    send = telling()
    with pytest.raises(KeyError, match="type"):
        send({})
    with pytest.raises(TypeError):
        send(None)
    with pytest.raises(TypeError):
        send({"type": "http.response.start", "headers": 7})
    for args, names in (((), {}), (({}, {}), {}), (({},), {"more": 1})):
        with pytest.raises(TypeError, match="takes one message"):
            send(*args, **names)
    for wrong in ((), (print,), (print, None), (print, None, None)):
        with pytest.raises(TypeError, match="expected the `send`"):
            _core.HeaderSend(*wrong)


def test_exceptions_of_send_pass_through():
    def send(message):
        raise OSError("gone")

    told = _core.HeaderSend(send, made_limiter().check(scope()))
    for kind in ("http.response.start", "http.response.body"):
        with pytest.raises(OSError, match="gone"):
            told({"type": kind})


TEXT_FIELDS = [
    (name.decode().title().replace("Ratelimit", "RateLimit"), value.decode())
    for name, value in FIELDS
]


def starting(decisions, started):
    def start_response(*given):
        started.append(given)
        return "write"

    return _core.HeaderStart(start_response, decisions)


@pytest.mark.parametrize("more", [(), (None,), ((OSError, OSError("gone"), None),)])
def test_a_response_starts_with_the_fields_and_its_other_arguments(more):
    started = []
    given = [("X-A", "1")]
    start = starting([made_limiter("2/minute").check(scope())], started)
    assert start("200 OK", given, *more) == "write"
    assert started == [("200 OK", [("X-A", "1"), *TEXT_FIELDS], *more)]
    assert given == [("X-A", "1")]


def test_a_response_starts_with_the_fields_of_the_decisions_of_that_moment_the_last_first():
    started, decisions = [], []
    start = starting(decisions, started)
    start("200 OK", [])
    decisions += [made_limiter(limit).check(scope()) for limit in ("2/minute", "5/hour")]
    start("200 OK", [])
    first, second = (headers for _, headers in started)
    assert first == []
    assert [value for name, value in second if name == "X-RateLimit-Limit"] == ["5"]


def test_malformed_starts_of_responses_raise():
    start = starting([made_limiter().check(scope())], [])
    for args, names in (((), {}), (("200 OK",), {}), (("", [], None, 1), {}), (("", []), {"a": 1})):
        with pytest.raises(TypeError, match="expected a status, headers and perhaps exc_info"):
            start(*args, **names)
    with pytest.raises(TypeError):
        start("200 OK", 7)
    with pytest.raises(AttributeError, match="merged_text"):
        starting([None], [])("200 OK", [])
    with pytest.raises(TypeError, match="iterable"):
        starting(7, [])("200 OK", [])
    for wrong in ((), (print,), (print, [], None)):
        with pytest.raises(TypeError, match="expected the `start_response`"):
            _core.HeaderStart(*wrong)


def test_exceptions_of_a_start_response_pass_through():
    def start_response(status, headers):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        _core.HeaderStart(start_response, ())("200 OK", [])


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(_core.HeaderSend, lambda one: one), (_core.HeaderStart, lambda one: [one])],
)
def test_a_reference_cycle_through_what_a_server_calls_is_collected(kind, fields):
    class Holder:
        def send(self, message):
            """Nothing."""

    holder = Holder()
    holder.told = kind(holder.send, fields(made_limiter().check(scope())))
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_a_reference_cycle_through_a_request_limiter_is_collected():
    users = {}
    request_limiter = users["request_limiter"] = made_limiter(key=lambda request: users and "me")
    request_limiter.check(scope())
    gone = weakref.ref(request_limiter)
    users = request_limiter = None
    gc.collect()
    assert gone() is None
