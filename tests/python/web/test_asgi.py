"""The ASGI middleware, called directly and under a real server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter

import pytest
import tidegate as tg
from polling import run_threads
from servers import (
    Client,
    asgi_call,
    asgi_server,
    ask,
    check_two_a_minute,
    hello,
    limited,
    statuses,
)
from tidegate.asgi import RateLimitMiddleware

NOW = 1_700_000_000 * 10**9


def test_requests_are_allowed_up_to_the_limit_and_then_refused():
    app = limited()
    check_two_a_minute(*(ask(app) for _ in range(3)))


@pytest.mark.parametrize(
    "limit",
    [
        lambda: "1/minute",
        lambda request: "1/minute",
        lambda *requests: f"{len(requests)}/minute",
        lambda request, other="2/minute": "1/minute",
        lambda other="1/minute": other,
        lambda **options: "1/minute",
    ],
)
def test_a_limit_function_takes_the_request_or_nothing(limit):
    assert statuses(limited(limit), 2) == [200, 429]


def test_retry_after_is_exact():
    clock = tg.ManualClock(NOW)
    app = limited("1/10 seconds", clock=clock)
    assert statuses(app, 2) == [200, 429]
    clock.advance_ns(10 * 10**9 - 1)
    assert statuses(app, 1) == [429]
    clock.advance_ns(1)
    assert statuses(app, 2) == [200, 429]


def test_a_refused_request_does_not_reach_the_application_and_costs_nothing():
    reached = []

    async def app(scope, receive, send):
        reached.append(scope["path"])
        await hello(scope, receive, send)

    middleware = limited("1/minute", app)
    assert statuses(middleware, 5) == [200, 429, 429, 429, 429]
    assert reached == ["/"]
    assert middleware.limiter.peek("203.0.113.9").retry_after == 60.0


def test_several_limits_are_one_plan():
    app = limited(["2/second", "3/minute"])
    assert statuses(app, 3) == [200, 200, 429]
    assert app.limiter.peek("203.0.113.9").remaining == 0
    app.limiter.reset("203.0.113.9")
    assert ask(app)["ratelimit-policy"] == '"2/second";q=2;w=1, "3/minute";q=3;w=60'


def test_clients_are_distinguished_by_address_and_by_nothing_they_send():
    app = limited("1/minute")
    forged = [(b"x-forwarded-for", b"198.51.100.7"), (b"forwarded", b"for=198.51.100.7")]
    assert statuses(app, 1) == [200]
    assert statuses(app, 1, headers=forged) == [429]
    assert statuses(app, 1, client=("203.0.113.9", 6000)) == [429]
    assert statuses(app, 1, client=("203.0.113.10", 5000)) == [200]


def test_exempt_methods_are_not_charged():
    app = limited("1/minute")
    assert statuses(app, 3, method="OPTIONS") == [200, 200, 200]
    assert statuses(app, 2, method="HEAD") == [200, 429]
    app = limited("1/minute", exempt_methods=["head"])
    assert statuses(app, 3, method="HEAD") == [200, 200, 200]
    assert statuses(app, 2, method="OPTIONS") == [200, 429]


def test_a_refusal_of_head_has_no_body():
    app = limited("1/minute")
    ask(app)
    refusal = ask(app, method="HEAD")
    assert refusal.status == 429
    assert refusal.body == b""
    assert refusal["content-length"] == str(len(ask(app).body))


def test_on_refused_replaces_the_answer():
    decisions = []

    async def teapot(scope, receive, send):
        headers = [(b"x-mine", b"1"), (b"retry-after", b"99")]
        await send({"type": "http.response.start", "status": 418, "headers": headers})
        await send({"type": "http.response.body", "body": b"short"})

    async def on_refused(scope, decision):
        decisions.append(decision)
        return teapot

    app = limited("1/minute", on_refused=on_refused)
    ask(app)
    answer = ask(app)
    assert (answer.status, answer.body) == (418, b"short")
    assert answer["x-ratelimit-remaining"] == "0"
    assert answer["retry-after"] == "99"
    assert not decisions[0]


@pytest.mark.parametrize("on_refused", [lambda scope, decision: 3, lambda scope, decision: 1 / 0])
def test_on_refused_that_fails_still_refuses(on_refused, caplog):
    app = limited("1/minute", on_refused=on_refused)
    ask(app)
    answer = ask(app)
    assert answer.status == 429
    assert answer["content-type"] == "application/problem+json"
    assert "the usual body is sent" in caplog.text


def test_families_of_fields_can_be_chosen():
    answer = ask(limited(headers="ietf"))
    assert "x-ratelimit-limit" not in answer
    assert "ratelimit" in answer


def test_the_fields_of_the_inner_middleware_win():
    clock = tg.ManualClock(NOW)
    app = limited("100/minute", limited("1/minute", clock=clock), clock=clock)
    for status in (200, 429):
        answer = ask(app)
        assert answer.status == status
        assert answer["x-ratelimit-limit"] == "1"
        lists = [value for name, value in answer.fields if name == "ratelimit-policy"]
        assert lists == ['"1/minute";q=1;w=60, "100/minute";q=100;w=60']


def test_two_middlewares_of_one_limit_send_its_fields_once():
    clock = tg.ManualClock(NOW)
    app = limited("3/minute", limited("3/minute", clock=clock), clock=clock, key=lambda scope: "k")
    told = [ask(app) for _ in range(2)]
    fields = [(answer["ratelimit-policy"], answer["ratelimit"]) for answer in told]
    assert fields == [('"3/minute";q=3;w=60', f'"3/minute";r={left};t=20') for left in (2, 1)]
    # The fields are those of the limit with less room.
    tight = limited("3/minute", limited("3/minute", clock=clock), clock=clock, cost=2)
    assert ask(tight)["ratelimit"] == '"3/minute";r=1;t=20'


def test_a_response_in_pieces_gets_the_fields_once():
    async def stream(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"a", b"b", b"c"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    answer = ask(limited(app=stream))
    assert answer.body == b"abc"
    assert Counter(name for name, _ in answer.fields)["ratelimit"] == 1


def test_headers_may_be_missing_and_the_message_is_left_alone():
    message = {"type": "http.response.start", "status": 204}

    async def app(scope, receive, send):
        await send(message)
        await send({"type": "http.response.body"})

    middleware = limited(app=app)
    assert ask(middleware)["x-ratelimit-remaining"] == "1"
    assert ask(middleware)["x-ratelimit-remaining"] == "0"
    assert message == {"type": "http.response.start", "status": 204}


def test_exceptions_of_the_application_pass_through():
    async def app(scope, receive, send):
        raise ZeroDivisionError

    middleware = limited("1/minute", app)
    with pytest.raises(ZeroDivisionError):
        ask(middleware)
    assert ask(middleware).status == 429


def test_other_scopes_pass_untouched():
    seen = []

    async def app(scope, receive, send):
        seen.append((scope, receive, send))

    middleware = limited("1/minute", app)
    for kind in ("lifespan", "lifespan", "unheard-of"):
        scope, receive, send = {"type": kind}, object(), object()
        asyncio.run(middleware(scope, receive, send))
        assert seen[-1] == (scope, receive, send)
        assert scope == {"type": kind}


def test_the_application_can_read_the_decision():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = str(scope["tidegate.decision"].remaining).encode()
        await send({"type": "http.response.body", "body": body})

    assert ask(limited("9/minute", app)).body == b"8"


def test_the_reset_of_a_slow_response_is_not_in_the_past():
    clock = tg.ManualClock(NOW)

    async def slow(scope, receive, send):
        clock.advance(100)
        await hello(scope, receive, send)

    assert ask(limited("1/second", slow, clock=clock))["x-ratelimit-reset"] == "1700000100"


def test_a_limiter_or_a_store_can_be_given():
    limiter = tg.Limiter("2/minute", clock=tg.ManualClock(NOW))
    app = RateLimitMiddleware(hello, limiter=limiter)
    assert app.limiter is limiter
    other = limited("2/minute", storage=limiter.storage)
    assert [ask(app).status, ask(other).status, ask(app).status] == [200, 200, 429]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no limit was given"),
        ({"limit": "lots"}, "cannot read the limit 'lots'"),
        ({"limit": 100}, "the limit is 100 of type int"),
        ({"limit": "1/s", "limiter": tg.Limiter("1/s")}, "expected limiter= without"),
        ({"limiter": tg.Limiter("1/s"), "capacity": 5}, "expected limiter= without"),
        ({"limiter": "1/s"}, "expected a tidegate.Limiter"),
        ({"limit": "1/s", "key": "nobody"}, "the key is 'nobody'; expected"),
        ({"limit": "1/s", "cost": 0}, "the cost is 0"),
        ({"limit": "1/s", "cost": True}, "the cost is True of type bool"),
        ({"limit": "1/s", "cost": 2}, "never lets through"),
        ({"limit": "1/s", "exempt_when": True}, "exempt_when is True"),
        ({"limit": "1/s", "exempt_methods": "OPTIONS"}, "expected a list of methods"),
        ({"limit": "1/s", "exempt_methods": [""]}, "exempt_methods has ''"),
        ({"limit": "1/s", "on_no_key": "fallback"}, "'address', 'open', 'closed'"),
        ({"limit": "1/s", "on_refused": 429}, "on_refused is 429"),
        ({"limit": "1/s", "headers": ["x"]}, "the headers include 'x'"),
        ({"limit": "1/s", "storage": "ftp://x"}, "the storage is 'ftp://x'"),
        ({"limit": "1/s", "algorithm": "magic"}, "unknown algorithm 'magic'"),
    ],
)
def test_bad_input_raises_at_construction(options, message):
    with pytest.raises(tg.ConfigurationError, match=message):
        RateLimitMiddleware(hello, **options)


def test_concurrent_tasks_are_admitted_up_to_the_limit():
    app = limited("50/minute")

    async def main():
        answers = await asyncio.gather(*(asgi_call(app) for _ in range(120)))
        return Counter(answer.status for answer in answers)

    assert asyncio.run(main()) == {200: 50, 429: 70}


def test_requests_are_limited_under_a_real_server():
    pytest.importorskip("uvicorn")
    clock = tg.ManualClock(NOW)
    app = limited("3/minute", clock=clock)
    with asgi_server(app) as client:
        answers = [client("/") for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        assert answers[0].body == b"hello"
        assert answers[3].json()["error"] == "rate_limit_exceeded"
        assert client("/", "HEAD").body == b""
        clock.advance(int(answers[3]["retry-after"]))
        assert [client("/").status for _ in range(2)] == [200, 429]
        # A body that nobody reads does not upset the connection.
        assert client("/", "POST", body=b"x" * 100_000).status == 429


def test_threads_under_a_real_server_are_admitted_up_to_the_limit():
    pytest.importorskip("uvicorn")
    app = limited("40/minute")
    counts: Counter[int] = Counter()
    with asgi_server(app) as client:
        address = (client._connection.host, client._connection.port)

        def visit():
            visitor = Client(address)
            counts.update([visitor("/").status for _ in range(20)])
            visitor.close()

        threads = [threading.Thread(target=visit) for _ in range(4)]
        run_threads(threads)
    assert counts == {200: 40, 429: 40}


def test_streams_and_errors_of_fastapi_carry_the_fields():
    fastapi = pytest.importorskip("fastapi")
    responses = pytest.importorskip("starlette.responses")
    pytest.importorskip("uvicorn")
    app = fastapi.FastAPI()
    app.add_middleware(RateLimitMiddleware, limit="100/minute")

    @app.get("/stream")
    async def stream():
        async def pieces():
            for number in range(3):
                yield f"{number}\n"

        return responses.StreamingResponse(pieces())

    @app.get("/missing")
    async def missing():
        raise fastapi.HTTPException(404)

    with asgi_server(app) as client:
        for path, status, body in (
            ("/stream", 200, b"0\n1\n2\n"),
            ("/missing", 404, b'{"detail":"Not Found"}'),
            ("/nowhere", 404, b'{"detail":"Not Found"}'),
        ):
            answer = client(path)
            assert (answer.status, answer.body) == (status, body)
            assert answer["x-ratelimit-limit"] == "100"
        assert answer["x-ratelimit-remaining"] == "97"
        assert json.loads(client("/openapi.json").body)["paths"].keys() == {"/stream", "/missing"}
