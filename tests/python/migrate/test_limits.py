"""The storages for `limits`, through its own strategies, Flask-Limiter and slowapi."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import time
import uuid

import pytest
import tidegate
import tidegate.limits
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from flask_limiter.commands import cli as flask_limiter_commands
from limits import parse, strategies
from limits.aio import strategies as aio_strategies
from limits.storage import storage_from_string
from redis_server import PATIENT, RedisServer
from servers import Client, gunicorn_server
from slowapi import Limiter as SlowLimiter
from slowapi import _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from tidegate import ConfigurationError, ManualClock
from tidegate._core import ShmStore

NAMES = ["fixed-window", "moving-window", "sliding-window-counter"]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis"), "--unixsocket", "") as server:
        yield server


@pytest.fixture(params=["memory", "shm", "redis"])
def uri(request):
    if request.param == "memory":
        yield "tidegate+memory://"
        return
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        server.command("FLUSHALL")
        # A client of its own: a shared one would remember the refusals of other tests.
        own = f"client_name={uuid.uuid4().hex}"
        yield "tidegate+" + server.uri(f"clock=client&{PATIENT}&{own}")
        return
    name = f"tidegate-test-{uuid.uuid4().hex}"
    yield f"tidegate+shm://{name}?capacity=10000"
    ShmStore.remove(name)


def strategy(name, uri, **options):
    return strategies.STRATEGIES[name](storage_from_string(uri, **options))


class Awaited:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return lambda *args, **kwargs: asyncio.run(getattr(self._inner, name)(*args, **kwargs))


def async_strategy(name, uri, **options):
    storage = storage_from_string("async+" + uri, **options)
    return Awaited(aio_strategies.STRATEGIES[name](storage))


def storage_of(limiter):
    return getattr(limiter, "_inner", limiter).storage


def reset(limiter):
    found = storage_of(limiter).reset()
    if asyncio.iscoroutine(found):
        asyncio.run(found)


@pytest.fixture(params=[strategy, async_strategy], ids=["sync", "async"])
def make(request):
    return request.param


@pytest.mark.parametrize("name", NAMES)
def test_not_one_more_and_again_after_the_window(make, name, uri):
    clock = ManualClock(start_ns=600 * 10**9)
    limiter = make(name, uri, clock=clock)
    limit = parse("3/minute")
    assert [limiter.hit(limit, "user") for _ in range(5)] == [True] * 3 + [False] * 2
    assert not limiter.test(limit, "user")
    assert limiter.test(limit, "other")
    assert limiter.get_window_stats(limit, "user").remaining == 0
    clock.advance(120)
    assert limiter.get_window_stats(limit, "user").remaining == 3
    assert limiter.hit(limit, "user")


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_cost_charges_nothing(make, name, uri):
    limiter = make(name, uri, clock=ManualClock(start_ns=600 * 10**9))
    limit = parse("5/minute")
    assert limiter.hit(limit, "user", cost=3)
    assert not limiter.test(limit, "user", cost=3)
    assert not limiter.hit(limit, "user", cost=3)
    assert limiter.get_window_stats(limit, "user").remaining == 2
    assert limiter.hit(limit, "user", cost=2)
    assert not limiter.hit(limit, "user", cost=6)


@pytest.mark.parametrize("name", NAMES)
def test_clear_forgets_one_key(make, name, uri):
    limiter = make(name, uri, clock=ManualClock(start_ns=600 * 10**9))
    limit = parse("1/minute")
    assert limiter.hit(limit, "user")
    assert limiter.hit(limit, "other")
    limiter.clear(limit, "user")
    assert limiter.hit(limit, "user")
    assert not limiter.hit(limit, "other")


@pytest.mark.parametrize(
    ("name", "wait"),
    [("fixed-window", 40), ("moving-window", 60)],
)
def test_the_window_stats_say_when_the_window_ends(make, name, wait, uri):
    clock = ManualClock(start_ns=620 * 10**9)
    limiter = make(name, uri, clock=clock)
    limit = parse("2/minute")
    limiter.hit(limit, "user")
    before = time.time()
    reset = limiter.get_window_stats(limit, "user").reset_time
    assert before + wait - 0.001 <= reset <= time.time() + wait + 0.001


def test_a_sliding_window_resets_within_one_window(make, uri):
    limiter = make("sliding-window-counter", uri, clock=ManualClock(start_ns=600 * 10**9))
    limit = parse("1/minute")
    limiter.hit(limit, "user")
    before = time.time()
    stats = limiter.get_window_stats(limit, "user")
    assert stats.remaining == 0
    assert before + 59.9 <= stats.reset_time <= time.time() + 60.001


def test_a_sliding_window_frees_a_unit_not_before_it_is_free_as_a_whole(make, uri):
    clock = ManualClock(start_ns=600 * 10**9)
    limiter = make("sliding-window-counter", uri, clock=clock)
    limit = parse("5/second")
    assert limiter.hit(limit, "user", cost=5)
    clock.advance(1.199)
    assert not limiter.test(limit, "user")
    clock.advance(0.001)
    assert limiter.get_window_stats(limit, "user").remaining == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_of_nothing_lets_nothing_through(make, name, uri):
    limiter = make(name, uri)
    limit = parse("0/minute")
    assert not limiter.hit(limit, "user")
    assert not limiter.test(limit, "user")
    assert limiter.get_window_stats(limit, "user").remaining == 0
    limiter.clear(limit, "user")


@pytest.mark.parametrize("name", NAMES)
def test_reset_forgets_what_it_has_counted_and_nothing_else(make, name, uri):
    clock = ManualClock(start_ns=600 * 10**9)
    limiter = make(name, uri, clock=clock)
    elsewhere = make(name, uri, clock=clock, prefix="elsewhere")
    limit = parse("1/minute")
    # Of another user of the store, under the prefix that is the default of all.
    bystander = tidegate.Limiter("1/minute", storage=storage_of(limiter).storage, clock=clock)
    for _ in range(3):
        assert limiter.hit(limit, "user")
        assert not limiter.hit(limit, "user")
        reset(limiter)
    assert limiter.hit(limit, "user")
    assert bystander.hit("user")
    assert elsewhere.hit(limit, "user")
    reset(limiter)
    assert not bystander.hit("user")
    assert not elsewhere.hit(limit, "user")


def test_reset_is_seen_by_other_storages_of_the_store(uri):
    if "memory" in uri:
        pytest.skip("a memory store is one storage's")
    clock = ManualClock(start_ns=600 * 10**9)
    here, there = (strategy("moving-window", uri, clock=clock) for _ in range(2))
    limit = parse("1/minute")
    assert here.hit(limit, "user")
    assert not there.test(limit, "user")
    here.storage.reset()
    assert there.test(limit, "user")


@pytest.mark.parametrize("prefix", ["a b*", "x" * 100, "[ab]", ""])
def test_reset_knows_any_prefix(uri, prefix):
    clock = ManualClock(start_ns=600 * 10**9)
    mine = strategy("fixed-window", uri, clock=clock, prefix=prefix)
    other = strategy("fixed-window", uri, clock=clock, prefix=f"{prefix}z")
    limit = parse("1/minute")
    assert mine.hit(limit, "user")
    assert other.hit(limit, "user")
    mine.storage.reset()
    assert mine.hit(limit, "user")
    assert not other.hit(limit, "user")


@pytest.mark.parametrize("kind", ["", "async+"])
def test_storages_pickle(kind, uri):
    storage = storage_from_string(kind + uri)
    copied = pickle.loads(pickle.dumps(storage))
    assert type(copied) is type(storage)
    assert type(copied.storage) is type(storage.storage)


def test_the_configuration_of_flask_limiter_can_be_shown(uri):
    app = Flask(__name__)
    FlaskLimiter(lambda: "f", app=app, storage_uri=uri, default_limits=["2/day"])
    shown = app.test_cli_runner().invoke(flask_limiter_commands, ["config"])
    assert shown.exception is None
    assert "TidegateStorage" in shown.output


def test_what_is_not_accepted_is_said_at_once():
    with pytest.raises(ConfigurationError, match="capacity"):
        storage_from_string("tidegate+memory://?capacity=many")
    with pytest.raises(ConfigurationError, match="tidegate"):
        tidegate.limits.TidegateStorage("memory://")
    with pytest.raises(ConfigurationError, match="key_for"):
        storage_from_string("tidegate+memory://").get("no limit in it")
    with pytest.raises(ConfigurationError, match=r"7\.5 of type float; expected an int"):
        strategy("fixed-window", "tidegate+memory://").hit(parse("50/minute"), "user", cost=7.5)
    with pytest.raises(ConfigurationError, match=r"key_prefix \(here it is prefix="):
        storage_from_string("tidegate+memory://", key_prefix="mine")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["", "tidegate+"])
def test_a_negative_cost_gives_units_back_in_limits_alone(name, scheme):
    limiter, limit = strategy(name, f"{scheme}memory://"), parse("5/day")
    assert limiter.hit(limit, "user", cost=4)
    assert limiter.hit(limit, "user", cost=-2)
    left = 3 if not scheme and name != "moving-window" else 1
    assert limiter.get_window_stats(limit, "user").remaining == left


def test_limiters_are_bounded():
    storage = storage_from_string("tidegate+memory://")
    for amount in range(1, 3000):
        storage.acquire_entry("key", amount, 60)
    assert (
        storage._limiters._known.cache_info().currsize
        == tidegate.contrib.limits_storage._MOST_LIMITERS
    )


@pytest.mark.parametrize("name", NAMES)
def test_flask_limiter_changes_one_uri(name, uri):
    app = Flask(__name__)
    limiter = FlaskLimiter(
        lambda: "everyone", app=app, storage_uri=uri, strategy=name, headers_enabled=True
    )

    @app.get("/")
    @limiter.limit("2/day")
    def index():
        return "hello"

    client = app.test_client()
    answers = [client.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert int(answers[2].headers["Retry-After"]) > 0


def slowapi_statuses(limiter):
    """The statuses of three requests to a route that SlowAPI lets through twice a day."""
    app = FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)

    @app.get("/")
    @limiter.limit("2/day")
    async def route(request: Request):
        return "hello"

    with TestClient(app) as client:
        return [client.get("/").status_code for _ in range(3)]


@pytest.mark.parametrize("name", NAMES)
def test_slowapi_changes_one_uri(name, uri):
    limiter = SlowLimiter(lambda: "everyone", storage_uri=uri, strategy=name, swallow_errors=False)
    assert slowapi_statuses(limiter) == [200, 200, 429]


def test_a_moving_window_beyond_the_longest_log_is_a_sliding_one(make, uri, caplog):
    limiter = make("moving-window", uri, clock=ManualClock(start_ns=600 * 10**9))
    limit = parse("2000000/minute")
    assert limiter.hit(limit, "user", cost=1_999_999)
    assert limiter.hit(limit, "user")
    assert not limiter.hit(limit, "user")
    assert limiter.get_window_stats(limit, "user").remaining == 0
    assert caplog.text.count("a moving window of 2000000") == 1


def test_a_moving_window_beyond_what_the_store_remembers_is_a_sliding_one(make, caplog):
    name = f"tidegate-test-{uuid.uuid4().hex}"
    uri = f"tidegate+shm://{name}?capacity=100000"
    try:
        limiter = make("moving-window", uri, clock=ManualClock(start_ns=600 * 10**9))
        assert "moving window" not in caplog.text
        within, beyond = parse("16384/minute"), parse("16385/minute")
        assert limiter.hit(within, "user")
        assert "moving window" not in caplog.text
        assert [limiter.hit(beyond, "user", cost=16_384), limiter.hit(beyond, "user")] == [True] * 2
        assert not limiter.hit(beyond, "user")
        assert caplog.text.count("a moving window of 16385 is beyond 16384") == 1
    finally:
        ShmStore.remove(name)


@pytest.mark.parametrize("name", NAMES)
def test_two_limits_on_one_route_of_each(name, uri):
    flask_app = Flask(__name__)
    flask_limiter = FlaskLimiter(lambda: "f", app=flask_app, storage_uri=uri, strategy=name)

    @flask_app.get("/")
    @flask_limiter.limit("3/day; 2/hour")
    def index():
        return "hello"

    client = flask_app.test_client()
    assert [client.get("/").status_code for _ in range(4)] == [200, 200, 429, 429]

    app = FastAPI()
    app.state.limiter = limiter = SlowLimiter(lambda: "s", storage_uri=uri, strategy=name)
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)

    @app.get("/")
    @limiter.limit("3/day; 2/hour")
    def not_async(request: Request):
        return "hello"

    with TestClient(app) as client:
        assert [client.get("/").status_code for _ in range(4)] == [200, 200, 429, 429]


@pytest.mark.parametrize("name", NAMES)
def test_a_redis_that_is_gone_raises_into_no_request(name, tmp_path):
    gone = RedisServer(tmp_path, "--unixsocket", "")  # never started
    uri = f"tidegate+redis://127.0.0.1:{gone.port}"
    flask_app = Flask(__name__)
    flask_app.config.update(RATELIMIT_STORAGE_URI=uri, RATELIMIT_STRATEGY=name)
    flask_limiter = FlaskLimiter(lambda: "everyone")

    @flask_app.get("/")
    @flask_limiter.limit("2/day")
    def index():
        return "hello"

    flask_limiter.init_app(flask_app)
    client = flask_app.test_client()
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    assert not flask_limiter.storage.check()

    limiter = SlowLimiter(lambda: "s", storage_uri=uri, strategy=name)
    assert slowapi_statuses(limiter) == [200, 200, 429]
    limiter = async_strategy(name, uri)
    assert [limiter.hit(parse("2/day"), "user") for _ in range(3)] == [True, True, False]


SERVICE = """
import tidegate.limits
from flask import Flask
from flask_limiter import Limiter

app = Flask(__name__)
limiter = Limiter(lambda: "everyone", app=app, storage_uri={uri!r}, strategy={name!r})


@app.get("/")
@limiter.limit("7/day")
def index():
    return "hello"
"""


@pytest.mark.parametrize("uri", ["shm", "redis"], indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_forked_workers_of_flask_limiter_count_together(name, uri, tmp_path):
    (tmp_path / "service.py").write_text(SERVICE.format(uri=uri, name=name))
    found = []
    with gunicorn_server("service:app", tmp_path) as address:
        for _ in range(12):  # each on a connection of its own, to whichever worker takes it
            with contextlib.closing(Client(address)) as client:
                found.append(client("/").status)
    assert found == [200] * 7 + [429] * 5
