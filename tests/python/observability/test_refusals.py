"""Observers of refusals, their log line, and the keys that are refused most."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading

import pytest
import tidegate as tg
from polling import run_threads
from servers import asgi_server, ask, hello, limited, statuses, wsgi_server
from tidegate.asgi import RateLimitMiddleware
from tidegate.refusals import Refusal, RefusalLog, TopKey, TopKeys, _text_of, watch
from tidegate.rules import RuleSet
from tidegate.web.observers import observers


@pytest.fixture
def told():
    """The refusals of the test, in order."""
    refusals = []
    with watch(refusals.append):
        yield refusals
    assert observers.refusals == ()


def refused(limit="1/minute", cost=1):
    """A decision that refuses."""
    limiter = tg.Limiter(limit, clock=tg.ManualClock())
    limiter.hit("key")
    decision = limiter.hit("key", cost)
    assert not decision
    return decision


def test_observers_are_called_only_for_refusals(told):
    app = limited("2/minute", cost=2, prefix="api")
    assert statuses(app, 3) == [200, 429, 429]
    assert len(told) == 2
    refusal = told[0]
    assert (refusal.limiter, refusal.key, refusal.cost) == ("api", "203.0.113.9", 2)
    assert not refusal.decision
    assert (refusal.decision.rule, refusal.decision.retry_after) == ("2/minute", 60.0)
    assert (refusal.method, refusal.path, refusal.route) == ("GET", "/", None)


def test_no_observer_is_called_after_close():
    found = []
    with watch(found.append) as watching:
        statuses(limited("1/minute"), 2)
    watching.close()
    statuses(limited("1/minute"), 2)
    assert len(found) == 1


def test_what_an_observer_raises_reaches_no_request(told, caplog):
    def broken(refusal):
        raise LookupError

    after = []
    with watch(broken, after.append):
        assert statuses(limited("1/minute"), 3) == [200, 429, 429]
    assert len(told) == len(after) == 2
    (record,) = caplog.records
    assert "an observer of refusals raised" in record.getMessage()


def test_exceptions_of_a_timer_reach_no_request(caplog):
    def broken(limiter, seconds):
        raise LookupError

    timed = []
    timers = (broken, lambda limiter, seconds: timed.append(seconds))
    observers.change((), timers, add=True)
    try:
        assert statuses(limited("1/minute"), 2) == [200, 429]
    finally:
        observers.change((), timers, add=False)
    assert len(timed) == 2
    assert "an observer of decision times raised" in caplog.text


def test_a_refusal_by_rules_is_observed_with_its_cost(told):
    rules = RuleSet({"rules": [{"id": "a", "by": "ip", "limit": "3/minute"}]})
    app = RateLimitMiddleware(hello, rules=rules, clock=tg.ManualClock(), prefix="api", cost=2)
    assert statuses(app, 2) == [200, 429]
    (refusal,) = told
    assert (refusal.limiter, refusal.key, refusal.cost) == ("api", None, 2)
    assert (refusal.decision.rule, refusal.path) == ("a", "/")


def test_a_refusal_without_a_key_is_observed(told, caplog):
    app = limited("9/minute", key=lambda scope: None, on_no_key="closed")
    assert statuses(app, 1) == [429]
    (refusal,) = told
    assert refusal.key is None
    RefusalLog()(refusal)
    assert caplog.records[-1].key is None
    assert caplog.records[-1].retry_after is None


def test_what_is_no_function_is_no_observer():
    with pytest.raises(tg.ConfigurationError, match="expected functions of a Refusal"):
        watch(RefusalLog(), "print")


def test_fastapi_routes_are_logged_by_their_template(told):
    fastapi = pytest.importorskip("fastapi")
    from tidegate.fastapi import RateLimit

    app = fastapi.FastAPI()

    @app.get("/items/{number}")
    @tg.rate_limit("9/minute")
    @tg.rate_limit("1/minute", key=lambda request: "everybody", scope="items")
    async def item(number: int):
        return number

    limit = RateLimit("1/minute", scope="things")

    @app.get("/things/{number}", dependencies=[fastapi.Depends(limit)])
    def thing(number: int):
        return number

    with asgi_server(app) as client:
        found = [client(f"/{kind}/{n}?q=1").status for kind in ("items", "things") for n in (1, 2)]
    assert found == [200, 429] * 2
    assert [(each.limiter, each.key, each.path, each.route) for each in told] == [
        ("tg:items", "everybody", "/items/2", "/items/{number}"),
        ("tg:things", "127.0.0.1", "/things/2", "/things/{number}"),
    ]


def test_flask_routes_are_logged_by_their_template(told):
    flask = pytest.importorskip("flask")
    app = flask.Flask("service")

    @app.get("/items/<int:number>")
    @tg.rate_limit("1/minute", scope="flask-items")
    def item(number):
        return str(number)

    with wsgi_server(app) as client:
        assert [client(f"/items/{n}?q=1").status for n in (1, 2)] == [200, 429]
    (refusal,) = told
    assert (refusal.method, refusal.path, refusal.route) == (
        "GET",
        "/items/2",
        "/items/<int:number>",
    )


def fields_of(record):
    """What a formatter that writes JSON would tell beside what every record has."""
    usual = vars(logging.makeLogRecord({})).keys() | {"message"}
    return {name: value for name, value in vars(record).items() if name not in usual}


def test_a_line_describes_the_refused_request(caplog):
    with watch(RefusalLog()):
        statuses(limited("1/minute"), 2)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("tidegate.refusals", logging.WARNING)
    assert json.loads(json.dumps(fields_of(record))) == {
        "event": "rate_limit_refused",
        "limiter": "tg",
        "rule": "1/minute",
        "limit": 1,
        "cost": 1,
        "retry_after": 60.0,
        "degraded": False,
        "key": "203.0.113.9",
        "method": "GET",
        "path": "/",
        "route": None,
        "skipped": 0,
    }
    assert record.getMessage() == (
        "event=rate_limit_refused limiter=tg rule=1/minute limit=1 cost=1 retry_after=60.0 "
        "degraded=False key=203.0.113.9 method=GET path=/ skipped=0"
    )


def test_lines_keep_to_their_rate_and_tell_of_those_skipped(caplog):
    clock = tg.ManualClock(10**18)
    log = RefusalLog(per_second=3, clock=clock)
    refusal = Refusal("api", "k", refused())
    for _ in range(1000):
        log(refusal)
    clock.advance(1)
    for _ in range(5):
        log(refusal)
    assert [record.skipped for record in caplog.records] == [0, 0, 0, 997, 0, 0]


def test_ten_lines_a_second_are_logged_unless_more_are_asked_for(caplog):
    log = RefusalLog(clock=tg.ManualClock(10**18))
    for _ in range(20):
        log(Refusal("api", "k", refused()))
    assert len(caplog.records) == 10


def test_a_share_of_refusals_is_logged_and_all_are_accounted_for(caplog):
    log = RefusalLog(sample=0.25, per_second=10**6)
    refusal = Refusal("api", "k", refused())
    for _ in range(4000):
        log(refusal)
    lines = len(caplog.records)
    assert 800 < lines < 1200  # 7 standard deviations to either side
    total = lines + sum(record.skipped for record in caplog.records) + log._skipped
    assert total == 4000


def test_all_are_accounted_for_when_threads_are_refused(caplog):
    log = RefusalLog(per_second=50, clock=tg.ManualClock())
    refusal = Refusal("api", "k", refused())
    threads = [
        threading.Thread(target=lambda: [log(refusal) for _ in range(500)]) for _ in range(4)
    ]
    run_threads(threads)
    assert len(caplog.records) == 50
    assert 50 + sum(record.skipped for record in caplog.records) + log._skipped == 2000


def key_told(key, caplog, **options):
    caplog.clear()
    RefusalLog(**options)(Refusal("api", key, refused()))
    (record,) = caplog.records
    assert record.key is None or record.key in record.getMessage()
    return record.key


@pytest.mark.parametrize(
    "address", ["203.0.113.9", "2001:db8:1:2::/64", "2001:db8::1", "\x00203.0.113.9"]
)
def test_addresses_are_logged_unless_switched_off(address, caplog):
    assert key_told(address, caplog) == address.strip("\0")
    assert key_told(address.encode(), caplog) == address.strip("\0")
    assert key_told(address, caplog, keys="full") == address.strip("\0")
    assert re.fullmatch("#[0-9a-f]{16}", key_told(address, caplog, keys="hashed"))
    assert key_told(address, caplog, keys="none") is None


@pytest.mark.parametrize("key", ["sk_live_4eC39HqLyjWDarjtT1zdp7dc", b"\xff\xfe", "user:42"])
def test_no_other_key_gets_into_the_log(key, caplog):
    secret = b"0123456789abcdef"
    found = key_told(key, caplog, secret=secret)
    assert re.fullmatch("#[0-9a-f]{16}", found)
    text = key if isinstance(key, str) else "\\xff"
    assert text not in caplog.text
    # The same for all who know the secret, and for nobody else.
    assert key_told(key, caplog, secret=secret) == found
    assert key_told(key, caplog) != found
    assert key_told(key, caplog, keys=lambda key: f"{len(key)} long") == f"{len(key)} long"


def test_paths_are_logged_unless_switched_off(caplog):
    app = limited("1/minute")
    with watch(RefusalLog(paths=False)):
        ask(app, "/reset/token")
        ask(app, "/reset/token")
    assert "token" not in caplog.text


@pytest.mark.parametrize("forged", ["a\nevent=login user=root", "a\r\x1b[31m", "é\u2028b", "\x85"])
def test_what_a_stranger_sent_forges_no_line(forged, caplog):
    scope = {"type": "http", "method": "GET", "path": f"/{forged}", "headers": []}
    RefusalLog(keys="full")(Refusal("api", forged, refused(), request=scope))
    (record,) = caplog.records
    for told in (record.getMessage(), record.path, record.key):
        assert told.isprintable()
    assert len(record.getMessage().splitlines()) == 1
    assert not re.search(r"(^| )event=login", record.getMessage())


def test_a_quote_ends_no_value(caplog):
    RefusalLog(keys="full")(Refusal("api", 'a" user="root\\', refused()))
    assert r'key="a\" user=\"root\\"' in caplog.text


def test_long_texts_are_cut(caplog):
    scope = {"type": "http", "method": "GET", "path": "/" + "a" * 10_000}
    RefusalLog(keys="full")(Refusal("api", "b" * 10_000, refused(), request=scope))
    assert len(caplog.records[0].getMessage()) < 700


def test_a_level_that_is_off_costs_nothing(caplog):
    caplog.set_level(logging.ERROR, "tidegate.refusals")
    log = RefusalLog(level=logging.INFO)
    log(Refusal("api", "k", refused()))
    assert (caplog.records, log._skipped) == ([], 0)


def test_keys_of_any_length_take_the_longest_length_at_most_and_differ():
    longest = _text_of("x" * 200)
    assert longest == "x" * 200
    cut = [_text_of("x" * length) for length in (201, 202, 10_000)]
    assert [len(text) for text in cut] == [200] * 3
    assert len(set(cut)) == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sample": 0.0}, "above 0 up to 1"),
        ({"sample": 1.5}, "above 0 up to 1"),
        ({"sample": True}, "a share such as 0.1"),
        ({"sample": "0.1"}, "a share such as 0.1"),
        ({"per_second": 0}, "an int from 1 up"),
        ({"per_second": 0.5}, "an int from 1 up"),
        ({"per_second": 2.5}, "an int from 1 up"),
        ({"per_second": True}, "an int from 1 up"),
        ({"keys": "plain"}, "'addresses', 'hashed', 'full', 'none'"),
        ({"secret": b"short"}, "16 to 64 bytes"),
        ({"secret": "0123456789abcdef"}, "16 to 64 bytes"),
        ({"paths": "no"}, "paths is 'no'; expected True and False"),
    ],
)
def test_what_a_log_does_not_accept(options, expected):
    with pytest.raises(tg.ConfigurationError, match=expected) as raised:
        RefusalLog(**options)
    assert not isinstance(options.get("secret"), (str, bytes)) or "short" not in str(raised.value)


@pytest.mark.parametrize("length", [15, 16, 64, 65])
def test_a_secret_has_16_to_64_bytes(length):
    if 16 <= length <= 64:
        RefusalLog(secret=b"s" * length)
        return
    with pytest.raises(tg.ConfigurationError, match="16 to 64 bytes"):
        RefusalLog(secret=b"s" * length)


def test_the_top_keys_of_a_service():
    top = TopKeys(capacity=100)
    app = limited("1/minute", key=lambda scope: scope["path"])
    with watch(top):
        for path in ["/often"] * 6 + ["/seldom"] * 3 + ["/once"]:
            ask(app, path)
    assert top.top() == [TopKey("/often", 5, 0), TopKey("/seldom", 2, 0)]
    assert (top.total, len(top), top.floor) == (7, 2, 0)
    top.clear()
    assert (top.top(), top.total) == ([], 0)


def test_ever_new_keys_take_the_memory_of_the_capacity():
    top = TopKeys(capacity=100)
    for number in range(20_000):
        top.add(f"{number}" + "x" * 1000)
        if number % 20 == 0:
            top.add("abuser")
    assert len(top) == 100
    first = top.top(1)[0]
    assert first.key == "abuser"
    assert first.count - first.error <= 1000 <= first.count
    assert all(len(each.key) <= 200 for each in top.top(100))
    # Long keys that begin alike are not one.
    top.clear()
    for end in "ab":
        top.add("x" * 1000 + end)
    assert len(top) == 2


def test_counts_of_many_threads_are_not_lost():
    top = TopKeys(capacity=5)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [top.add(str(n % 20)) for n in range(5000)])
            for _ in range(4)
        ]
        run_threads(threads)
    finally:
        sys.setswitchinterval(interval)
    assert top.total == 20_000
    assert sum(each.count for each in top.top(5)) == 20_000


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_change_blocks_no_thread():
    top = TopKeys()
    log = RefusalLog()
    top.add("a")
    with top._lock, log._lock:  # as another thread may hold them
        child = os.fork()
        if child == 0:
            top.add("b")
            log(Refusal("api", "k", refused()))
            os._exit(0 if top.top() == [TopKey("b", 1, 0)] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert top.top() == [TopKey("a", 1, 0)]


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, "10"])
def test_what_is_no_capacity(capacity):
    with pytest.raises(tg.ConfigurationError, match="expected an int from 1 up"):
        TopKeys(capacity)
