"""What metrics and log lines say while Redis is gone."""

from __future__ import annotations

import pytest
import tidegate as tg
from metrics import exposed, of
from redis_server import RedisServer
from servers import ask
from tidegate.asgi import RateLimitMiddleware
from tidegate.refusals import RefusalLog, watch

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from servers import hello
from tidegate.prometheus import RateLimitCollector


def test_the_metrics_of_a_redis_that_does_not_answer(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"redis://127.0.0.1:{own_server.port}/0?timeout=1&connect_timeout=1&breaker_open=30"
    registry = CollectorRegistry()
    with tg.Limiter("100/hour", storage=uri, prefix="api", fallback_share=0.02) as limiter:
        app = RateLimitMiddleware(hello, limiter=limiter)
        registry.register(RateLimitCollector())

        def told(name: str, **labels: str) -> float | None:
            return of(exposed(generate_latest(registry).decode()), name, **labels)

        limiter.ping()
        assert ask(app).status == 200
        degraded = (
            told("tidegate_degraded_total", store=f"redis://127.0.0.1:{own_server.port}/0") or 0
        )
        assert told("tidegate_breaker_open", store=f"redis://127.0.0.1:{own_server.port}/0") == 0

        own_server.kill()
        with watch(RefusalLog(per_second=100)):
            answers = [ask(app).status for _ in range(20)]
        # The fallback lets through its share, 2 of 100.
        assert answers == [200, 200] + [429] * 18
        assert (
            told("tidegate_degraded_total", store=f"redis://127.0.0.1:{own_server.port}/0")
            == degraded + 20
        )
        assert told("tidegate_breaker_open", store=f"redis://127.0.0.1:{own_server.port}/0") == 1
        assert (
            told("tidegate_breaker_opened_total", store=f"redis://127.0.0.1:{own_server.port}/0")
            == 1
        )
        assert (
            told("tidegate_errors_total", store=f"redis://127.0.0.1:{own_server.port}/0") or 0
        ) >= 5
        assert (
            told("tidegate_script_errors_total", store=f"redis://127.0.0.1:{own_server.port}/0")
            == 0
        )
        assert told("tidegate_decisions_total", limiter="api", outcome="allowed") == 3
        assert told("tidegate_refused_total", limiter="api", rule="100/hour") == 18
        lines = [each for each in caplog.records if each.name == "tidegate.refusals"]
        assert [each.degraded for each in lines] == [True] * 18  # type: ignore[attr-defined]


def test_refusals_from_the_deny_cache_are_counted(server: RedisServer) -> None:
    registry = CollectorRegistry()
    uri = f"redis://127.0.0.1:{server.port}/0?timeout=1"
    with tg.Limiter(["3/hour", "9/hour"], storage=uri) as limiter:
        registry.register(RateLimitCollector({"jobs": limiter}))
        limiter.ping()
        for _ in range(10):
            limiter.hit("k")
        samples = exposed(generate_latest(registry).decode())
    assert of(samples, "tidegate_refused_total", limiter="jobs", rule="3/hour") == 7
    assert of(samples, "tidegate_refused_total", limiter="jobs", rule="9/hour") == 0
    locally = of(
        samples, "tidegate_refused_locally_total", store=f"redis://127.0.0.1:{server.port}/0"
    )
    assert locally is not None
    assert 1 <= locally <= 6
