"""One client for each URI in a process, and the log of its server and prefix."""

from __future__ import annotations

import gc
import logging

import pytest
import tidegate as tg
import tidegate.wsgi
from polling import eventually
from redis_server import RedisServer

# Nothing listens on port 1.
NOWHERE = "redis://127.0.0.1:1/0"


def test_five_limiters_have_one_connection(server: RedisServer) -> None:
    uri = server.uri("client_name=five-of-one")
    limiters = [tg.Limiter("9/minute", storage=uri, prefix=f"p{n}") for n in range(5)]
    assert [bool(limiter.hit("k")) for limiter in limiters] == [True] * 5
    named = [line for line in clients(server) if "name=five-of-one" in line]
    assert len(named) == 1
    # Closing one takes nothing from the others.
    limiters[0].close()
    assert not limiters[1].hit("k").degraded


def clients(server: RedisServer) -> list[str]:
    return server.command("CLIENT", "LIST").decode().splitlines()


def test_options_make_another_client() -> None:
    one = tg.Limiter("9/minute", storage=NOWHERE)
    assert tg.Limiter("5/minute", storage=NOWHERE).storage is one.storage
    assert tg.Limiter("5/minute", storage=NOWHERE, timeout=0.1).storage is not one.storage
    assert tg.Limiter("5/minute", storage=f"{NOWHERE}?timeout=0.1").storage is not one.storage
    assert tg.Limiter("5/minute", storage=NOWHERE, fallback=tg.Limiter("1/s").storage)


def test_a_client_that_nobody_holds_is_let_go(server: RedisServer) -> None:
    uri = server.uri("client_name=let-go")
    limiter = tg.Limiter("9/minute", storage=uri)
    assert limiter.hit("k")
    del limiter
    gc.collect()
    eventually(lambda: not [line for line in clients(server) if "name=let-go" in line])


@pytest.mark.parametrize(
    ("uri", "server"),
    [
        ("redis://user:s3cret@example.org", "redis://example.org:6379/0"),
        ("rediss://:s3cret@[::1]:7000/3?ssl_cert_reqs=none", "rediss://[::1]:7000/3"),
        ("redis+unix:///tmp/no.sock?db=2&password=s3cret", "redis+unix:///tmp/no.sock?db=2"),
        ("redis+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
        ("redis+sentinel://a,b:2/main/1", "redis+sentinel://a:26379,b:2/main/1"),
    ],
)
def test_a_server_is_named_without_its_password(uri: str, server: str) -> None:
    store = tg.Limiter("1/minute", storage=uri).storage
    assert store.name == server


def test_a_service_logs_where_its_counts_are(caplog: pytest.LogCaptureFixture) -> None:
    def app(environ: object, start_response: object) -> list[bytes]:
        return []

    with caplog.at_level(logging.INFO, logger="tidegate"):
        for _ in range(2):
            tidegate.wsgi.RateLimitMiddleware(app, "9/minute", storage="redis://:pw@127.0.0.1:1/7")
            tidegate.wsgi.RateLimitMiddleware(
                app, "9/minute", storage="redis://:pw@127.0.0.1:1/7", prefix="shop"
            )
    said = [line for line in caplog.messages if "counts are in" in line]
    assert said == [
        "rate limiting: counts are in redis://127.0.0.1:1/7 under the prefix 'tg', the default, "
        "which other services have too",
        "rate limiting: counts are in redis://127.0.0.1:1/7 under the prefix 'shop'",
    ]


def test_the_breaker_names_its_server(caplog: pytest.LogCaptureFixture) -> None:
    uri = "redis://me:s3cret@127.0.0.1:1/0?breaker_failures=1"
    with caplog.at_level(logging.INFO, logger="tidegate"):
        limiter = tg.Limiter("9/minute", storage=uri)
        assert limiter.hit("k").degraded
        eventually(lambda: any("(redis://127.0.0.1:1/0)" in line for line in caplog.messages))
    assert "s3cret" not in caplog.text
