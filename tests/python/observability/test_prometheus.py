"""The collector for Prometheus, scraped from real services."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading

import processes
import pytest
import tidegate as tg
from metrics import exposed, of
from polling import eventually
from servers import Client, asgi_server, hello, limited, statuses, wsgi_server
from tidegate.web.observers import observers

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest, make_asgi_app, make_wsgi_app
from tidegate.prometheus import Mirror, RateLimitCollector


def scrape(collector):
    registry = CollectorRegistry()
    registry.register(collector)
    return exposed(generate_latest(registry).decode())


def test_a_service_under_uvicorn():
    fastapi = pytest.importorskip("fastapi")
    from tidegate.asgi import RateLimitMiddleware
    from tidegate.fastapi import RateLimit

    app = fastapi.FastAPI()
    registry = CollectorRegistry()
    collector = RateLimitCollector(decision_seconds=True)
    registry.register(collector)
    app.mount("/metrics", make_asgi_app(registry))
    clock = tg.ManualClock(10**18)

    @app.get("/decorated")
    @tg.rate_limit(["9/minute", "2/hour"], scope="seen-a", clock=clock)
    @tg.rate_limit("7/minute", scope="seen-b", clock=clock)
    async def decorated():
        return {}

    depends = RateLimit("1/minute", scope="seen-c", clock=clock)

    @app.get("/depends", dependencies=[fastapi.Depends(depends)])
    def dependent():
        return {}

    limiter = tg.Limiter("8/minute", prefix="seen-all", clock=clock)
    # /metrics itself is not to be refused.
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        exempt_when=lambda scope: scope["path"].startswith("/metrics"),
    )
    with asgi_server(app) as client:
        found = [client("/decorated").status for _ in range(5)]
        found += [client("/depends").status for _ in range(5)]
        found += [client("/none").status for _ in range(7)]
        samples = exposed(client("/metrics/").body.decode())
    collector.close()
    # What a route refuses is given back to the middleware's limit.
    assert found[:10] == [200, 200, 429, 429, 429, 200, 429, 429, 429, 429]
    assert found[10:] == [404, 404, 404, 404, 404, 429, 429]

    def decisions(name):
        return tuple(
            of(samples, "tidegate_decisions_total", limiter=name, outcome=outcome)
            for outcome in ("allowed", "refused")
        )

    # A plan that is refused is charged, and counted as refused, by the limit that refused.
    assert decisions("seen-all") == (15, 2)
    assert decisions("tg:seen-a") == (2, 3)
    assert decisions("tg:seen-b") == (2, 0)
    assert decisions("tg:seen-c") == (1, 4)

    def refused(name, rule):
        return of(samples, "tidegate_refused_total", limiter=name, rule=rule)

    assert refused("seen-all", "8/minute") == 2
    assert (refused("tg:seen-a", "9/minute"), refused("tg:seen-a", "2/hour")) == (0, 3)
    assert refused("tg:seen-b", "7/minute") == 0
    assert refused("tg:seen-c", "1/minute") == 4
    assert of(samples, "tidegate_decision_seconds_count", limiter="seen-all") == 17
    assert of(samples, "tidegate_decision_seconds_sum", limiter="seen-all") > 0
    # One decision for both limits of a plan, counted for the limit that binds.
    timed = [of(samples, "tidegate_decision_seconds_count", limiter=f"tg:seen-{x}") for x in "abc"]
    assert timed == [5, None, 5]
    labels = {label for _, labels in samples for label, _ in labels}
    assert labels == {"limiter", "outcome", "rule", "store", "state", "le"}
    assert "127.0.0.1" not in str(samples)


def test_the_decisions_of_a_wsgi_service_are_exported():
    from tidegate.wsgi import RateLimitMiddleware

    registry = CollectorRegistry()
    metrics = make_wsgi_app(registry)

    def application(environ, start_response):
        start_response("200 OK", [("Content-Length", "0")])
        return []

    app = RateLimitMiddleware(application, limit="3/hour", storage="memory://?capacity=1000")
    registry.register(RateLimitCollector({"web": app}))

    def service(environ, start_response):
        return (metrics if environ["PATH_INFO"] == "/metrics" else app)(environ, start_response)

    with wsgi_server(service) as client:
        assert [client("/").status for _ in range(5)] == [200, 200, 200, 429, 429]
        text = client("/metrics").body.decode()
    samples = exposed(text)
    assert of(samples, "tidegate_decisions_total", limiter="web", outcome="allowed") == 3
    assert of(samples, "tidegate_decisions_total", limiter="web", outcome="refused") == 2
    assert of(samples, "tidegate_refused_total", limiter="web", rule="3/hour") == 2
    assert of(samples, "tidegate_store_keys", store="memory") == 1
    assert of(samples, "tidegate_breaker_open", store="memory") == 0
    assert "tidegate_decision_seconds" not in text
    # No sample is told twice.
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(samples)


def test_names_and_types():
    registry = CollectorRegistry()
    collector = RateLimitCollector({"a": tg.Limiter("1/hour")}, decision_seconds=True)
    registry.register(collector)
    collector.close()
    families = {family.name: family for family in collector.collect()}
    assert {name: family.type for name, family in families.items()} == {
        "tidegate_decisions": "counter",
        "tidegate_refused": "counter",
        "tidegate_refused_in_shadow": "counter",
        "tidegate_written_off": "counter",
        "tidegate_degraded": "counter",
        "tidegate_errors": "counter",
        "tidegate_script_errors": "counter",
        "tidegate_refused_locally": "counter",
        "tidegate_leased": "counter",
        "tidegate_lease_questions": "counter",
        "tidegate_lease_held_units": "gauge",
        "tidegate_lease_keys": "gauge",
        "tidegate_lease_wasted_units": "counter",
        "tidegate_breaker_opened": "counter",
        "tidegate_breaker_open": "gauge",
        "tidegate_store_keys": "gauge",
        "tidegate_evictions": "counter",
        "tidegate_evictions_live": "counter",
        "tidegate_decision_seconds": "histogram",
    }
    assert all(family.documentation.endswith((".", ")")) for family in families.values())
    # Two that tell the same cannot both be registered.
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(RateLimitCollector())


def test_calls_without_the_web_layer_are_counted_too():
    clock = tg.ManualClock()
    limiter = tg.Limiter(["3/minute", "8/hour"], clock=clock)
    for _ in range(4):
        limiter.allow("k")
    limiter.hit_many(["k", "k"])
    asyncio.run(limiter.hit_async("k"))
    clock.advance(60)
    plan = tg.Plan([limiter, tg.Limiter("9/hour", storage=limiter.storage, clock=clock)])
    for _ in range(4):
        plan.hit(["k", "k"])
    clock.advance(60)
    for _ in range(4):
        limiter.hit("k")
    limiter.peek("k", 3)
    samples = scrape(RateLimitCollector({"jobs": limiter}))
    assert of(samples, "tidegate_decisions_total", limiter="jobs", outcome="allowed") == 8
    assert of(samples, "tidegate_refused_total", limiter="jobs", rule="3/minute") == 5
    assert of(samples, "tidegate_refused_total", limiter="jobs", rule="8/hour") == 2
    assert of(samples, "tidegate_decisions_total", limiter="jobs", outcome="refused") == 7


def test_what_was_written_off_is_counted():
    limiters = [tg.Limiter(tg.Limit("10/hour", max_debt=5)) for _ in range(2)]
    for limiter in limiters:
        limiter.reserve("k", 1).commit(22)
        limiter.charge("k", 1)
    samples = scrape(RateLimitCollector(dict(zip("ab", limiters))))
    assert [of(samples, "tidegate_written_off_total", limiter=each) for each in "ab"] == [8, 8]


def test_limiters_of_one_name_are_added_up():
    apps = [limited("1/hour", prefix="twins") for _ in range(2)]
    for app in apps:
        statuses(app, 3)
    samples = scrape(RateLimitCollector())
    assert of(samples, "tidegate_decisions_total", limiter="twins", outcome="allowed") == 2
    assert of(samples, "tidegate_refused_total", limiter="twins", rule="1/hour") == 4


def test_each_store_is_reported_once(tmp_path):
    memory = tg.Limiter("1/hour")
    limiters = {
        "a": memory,
        "b": tg.Limiter("2/hour", storage=memory.storage),
        "c": tg.Limiter("1/hour", storage="memory://?capacity=10"),
        "d": tg.Limiter("1/hour", storage=f"shm://{tmp_path}/counts?capacity=1000"),
    }
    for limiter in limiters.values():
        limiter.hit_many([str(number) for number in range(5)])
    samples = scrape(RateLimitCollector(limiters))
    keys = {dict(labels)["store"]: n for (name, labels), n in samples.items() if "_keys" in name}
    assert keys == {"memory": 10, "memory-2": 5, "shm": 5}


def test_evictions_of_live_and_idle_keys_are_counted_separately():
    clock = tg.ManualClock(10**18)
    limiter = tg.Limiter("1/second", storage="memory://?capacity=100", clock=clock)
    limiter.hit_many([str(number) for number in range(5000)])
    clock.advance(60)
    limiter.hit_many([f"later {number}" for number in range(500)])
    samples = scrape(RateLimitCollector({"a": limiter}))
    stats = limiter.stats()
    assert of(samples, "tidegate_evictions_live_total", store="memory") == stats.evicted_live > 0
    assert of(samples, "tidegate_evictions_total", store="memory") == stats.evictions > 0


def test_closed_and_forgotten_limiters_are_left_out():
    closed = tg.Limiter("1/hour")
    collector = RateLimitCollector({"a": closed, "b": tg.Limiter("1/hour")})
    closed.close()
    samples = scrape(collector)
    assert {dict(labels).get("limiter") for _, labels in samples} == {"b", None}

    app = limited(prefix="passing")
    everything = RateLimitCollector()
    assert "passing" in str(scrape(everything))
    del app
    gc.collect()
    assert "passing" not in str(scrape(everything))


def test_time_is_measured_only_while_asked_for():
    app = limited("100/hour")
    collector = RateLimitCollector({"a": app}, decision_seconds=True, buckets=[1e-9, 60.0])
    other = limited("100/hour")
    statuses(app, 3)
    statuses(other, 2)
    collector.close()
    collector.close()
    statuses(app, 4)
    assert observers.times == ()
    samples = scrape(collector)
    assert of(samples, "tidegate_decision_seconds_count", limiter="a") == 3
    assert of(samples, "tidegate_decision_seconds_bucket", limiter="a", le="1e-09") == 0
    assert of(samples, "tidegate_decision_seconds_bucket", limiter="a", le="60.0") == 3
    assert of(samples, "tidegate_decisions_total", limiter="a", outcome="allowed") == 7


@pytest.mark.parametrize("limiters", [[], {"a": "1/hour"}, {"a": hello}, {"": None}, {1: None}])
def test_what_is_no_limiter(limiters):
    with pytest.raises(tg.ConfigurationError, match="expected"):
        RateLimitCollector(limiters)


@pytest.mark.parametrize("every", [0, -1, 1e9, float("nan"), "5", True])
def test_what_is_no_interval(every):
    with pytest.raises(tg.ConfigurationError, match="every is"):
        Mirror(every=every, registry=CollectorRegistry())


def test_a_mirror_exports_the_values_of_a_collector():
    app = limited(["2/minute", "9/hour"], prefix="mirrored")
    registry = CollectorRegistry()
    mirror = Mirror({"web": app}, every=3600.0, registry=registry, decision_seconds=True)
    for _ in range(2):
        statuses(app, 2)
        mirror.update()
        mirror.update()
    statuses(app, 1)
    mirror.close()
    assert observers.times == ()
    samples = exposed(generate_latest(registry).decode())
    collected = scrape(RateLimitCollector({"web": app}))
    assert {each: samples[each] for each in collected} == collected
    assert of(samples, "tidegate_refused_total", limiter="web", rule="2/minute") == 3
    assert of(samples, "tidegate_decision_seconds_count", limiter="web") == 5


def test_a_mirror_that_could_not_write_tries_again(caplog):
    limiter = tg.Limiter("1/hour")
    registry = CollectorRegistry()
    mirror = Mirror({"a": limiter}, every=0.01, registry=registry)
    update, written = mirror.update, threading.Event()

    def fails():
        mirror.update = lambda: (update(), written.set())
        raise OSError("no space left on device")

    mirror.update = fails
    limiter.hit("k")
    assert written.wait(30)
    mirror.close()
    samples = exposed(generate_latest(registry).decode())
    assert of(samples, "tidegate_decisions_total", limiter="a", outcome="allowed") == 1
    assert "metrics could not be mirrored" in caplog.text


SERVICE = """
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.multiprocess import MultiProcessCollector
from tidegate.wsgi import RateLimitMiddleware

registry = CollectorRegistry()
MultiProcessCollector(registry)
metrics = make_wsgi_app(registry)

def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]

limited = RateLimitMiddleware(hello, limit="20/hour", storage="shm://{path}", prefix="web")

def app(environ, start_response):
    return (metrics if environ["PATH_INFO"] == "/metrics" else limited)(environ, start_response)
"""

# As in docs/observability.md.
GUNICORN = """
from prometheus_client import multiprocess
from tidegate.prometheus import Mirror

def post_worker_init(worker):
    worker.mirror = Mirror(every=0.05)

def worker_exit(server, worker):
    worker.mirror.close()

def child_exit(server, worker):
    multiprocess.mark_process_dead(worker.pid)
"""


def test_mirrors_of_gunicorn_workers_are_added_up(tmp_path):
    pytest.importorskip("gunicorn")
    (tmp_path / "service.py").write_text(SERVICE.format(path=tmp_path / "counts"))
    (tmp_path / "config.py").write_text(GUNICORN)
    values = tmp_path / "values"
    values.mkdir()
    listener = socket.create_server(("127.0.0.1", 0))
    command = [sys.executable, "-m", "gunicorn", "--chdir", str(tmp_path), "--workers=2"]
    command += ["--config", str(tmp_path / "config.py"), "--bind", f"fd://{listener.fileno()}"]
    command += ["--preload", "--no-control-socket", "--graceful-timeout=1", "service:app"]
    with (
        listener,
        processes.running(
            command,
            grace=30,
            pass_fds=[listener.fileno()],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(values)},
            stderr=subprocess.DEVNULL,
        ),
    ):

        def get(path):
            with contextlib.closing(Client(listener.getsockname())) as client:
                return client(path)

        def keys_once_all_is_counted():
            answer = get("/metrics")
            if answer.status != 200:
                return None  # prometheus_client reads a file that a worker has just begun
            samples = exposed(answer.body.decode())
            counted = [
                of(samples, "tidegate_decisions_total", limiter="web", outcome=outcome)
                for outcome in ("allowed", "refused")
            ]
            keys = [n for (name, _), n in samples.items() if name == "tidegate_store_keys"]
            return keys if counted == [20, 40] else None

        found = [get("/").status for _ in range(60)]
        keys = eventually(keys_once_all_is_counted)
    assert sorted(found) == [200] * 20 + [429] * 40
    assert set(keys) == {1}  # each worker tells of the one table that they share
