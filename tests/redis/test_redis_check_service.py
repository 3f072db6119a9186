"""The service of checks on Redis: answered from the store's thread, in one command each."""

from __future__ import annotations

import json
import signal
import threading
from typing import Any

import check_wire as wire
import pytest
from check_service import JSON, OK, Service
from polling import eventually, run_threads
from redis_server import PATIENT, RedisServer
from tidegate.server import _native

RULES = {
    "rules": [
        {"id": "user", "by": "user", "endpoint": "/api/*", "limit": ["3/hour", "9/day"]},
        {"id": "all", "by": "global", "limit": "100/hour"},
    ],
}
ASK: Any = {"user": "42", "endpoint": "/api/posts"}


def service_on(server: RedisServer, options: str = PATIENT, **given: Any) -> Service:
    uri = f"redis://127.0.0.1:{server.port}?{options}&deny_cache_max=0"
    return Service(RULES, storage=uri, clock=None, **given)


def test_a_check_is_one_command_whatever_its_rules(server: RedisServer) -> None:
    service = service_on(server)
    service.ask(attributes={"user": "warm", "endpoint": "/api/x"})
    before = server.calls()
    answers = [service.ask(attributes=ASK, with_outcomes=True) for _ in range(4)]
    after = server.calls()
    assert [a.allowed for a in answers] == [True, True, True, False]
    assert [len(a.outcomes) for a in answers] == [3, 3, 3, 3]
    assert (answers[-1].rule, answers[-1].remaining) == ("user", 0)
    sent = {name: after[name] - before.get(name, 0) for name in after if name.startswith("eval")}
    assert sum(sent.values()) == 4


def test_the_status_of_a_user_is_one_command(server: RedisServer) -> None:
    service = service_on(server)
    service.ask(attributes=ASK, cost=2)
    service.status("42")
    before = server.calls()
    status, answer = service.status("42")
    after = server.calls()
    assert status == 200
    assert [(row["rule"], row["remaining"]) for row in answer["rules"]] == [
        ("user", 1),
        ("all", 98),
    ]
    sent = {name: after[name] - before.get(name, 0) for name in after if name.startswith("eval")}
    assert sum(sent.values()) == 1


def post(service: Service, what: str, **body: Any) -> tuple[int, dict[str, Any]]:
    raw = json.dumps(body).encode()
    status, _, content = service.http("POST", f"/v1/ratelimit/{what}", JSON, raw)
    return status, json.loads(content)


def test_reservations_are_settled_once_whatever_instance_is_asked(server: RedisServer) -> None:
    rules = {"rules": [{"id": "tokens", "by": "user", "limit": "1000/36500 days"}]}
    uri = f"redis://127.0.0.1:{server.port}?{PATIENT}&deny_cache_max=0"
    instances = [Service(rules, storage=uri, clock=None) for _ in range(3)]
    _, answer = post(instances[0], "reserve", userId="7", cost=100)
    before = server.calls()
    _, raised = post(instances[1], "extend", reservation=answer["reservation"], cost=50)
    for service in instances:  # the token is from before the extension
        status, settled = post(service, "commit", reservation=answer["reservation"], cost=400)
        assert (status, settled["charged"], settled["remaining"]) == (200, 400, 600)
    assert post(instances[2], "release", reservation=raised["reservation"])[0] == 409
    after = server.calls()
    sent = {name: after[name] - before.get(name, 0) for name in after if name.startswith("eval")}
    # One each, and one more for the units that the old token does not know.
    assert sum(sent.values()) == 6
    check = instances[0].ask(attributes={"user": "7"}, cost=100)
    refund = wire.request({"user": "7"}, decision=check.decision)
    named = wire.request({"user": "7"}, cost=50) + wire.text(4, "job 7")
    for service in instances:
        assert service.grpc("Refund", refund)[0] == OK
        assert service.grpc("Refund", named)[0] == OK
    assert instances[1].ask("Peek", attributes={"user": "7"}).remaining == 650


def test_a_commit_without_redis_may_be_made_again(own_server: RedisServer) -> None:
    service = service_on(own_server)
    _, answer = post(service, "reserve", userId="42", endpoint="/api/posts", cost=2)
    own_server.kill()
    for what, expected in (
        ("commit", "the same call again, which is made once"),
        ("extend", "a commit, which settles the reservation in both cases"),
    ):
        status, problem = post(service, what, reservation=answer["reservation"], cost=3)
        assert (status, expected in problem["detail"]) == (503, True)


def test_refunds_and_resets_reach_the_store(server: RedisServer) -> None:
    service = service_on(server)
    answer = service.ask(attributes=ASK, cost=3)
    assert not service.ask(attributes=ASK).allowed
    assert service.grpc("Refund", wire.request(ASK, decision=answer.decision)) == (OK, "", b"")
    assert service.ask("Peek", attributes=ASK).remaining == 3
    service.ask(attributes=ASK, cost=3)
    assert service.grpc("Reset", wire.request(ASK)) == (OK, "", b"")
    assert service.ask("Peek", attributes=ASK).remaining == 3


def test_many_checks_are_answered_in_their_order(server: RedisServer) -> None:
    service = service_on(server)
    users = [str(i % 5) for i in range(20)]
    body = b"".join(wire.text(1, wire.request({**ASK, "user": user})) for user in users)
    code, said, content = service.grpc("CheckMany", body)
    assert code == OK, said
    allowed = [wire.CheckResponse(answer).allowed for answer in wire.fields(content)[1]]
    assert allowed == [True] * 15 + [False] * 5


def test_many_checks_of_rest_are_answered_in_their_order(server: RedisServer) -> None:
    service = service_on(server)
    checks = [{"userId": str(i % 5), "endpoint": "/api/posts"} for i in range(20)]
    headers = [("content-type", "application/json")]
    body = json.dumps({"checks": checks}).encode()
    status, _, content = service.http("POST", "/v1/ratelimit/check-many", headers, body)
    assert status == 200, content
    answers = json.loads(content)["answers"]
    assert [each["allowed"] for each in answers] == [True] * 15 + [False] * 5
    assert [each["remaining"] for each in answers[::5]] == [2, 1, 0, 0]


def test_threads_get_no_more_than_the_limit(server: RedisServer) -> None:
    recorder = _native.Recorder()
    service = service_on(server, recorder=recorder)
    allowed = []

    def ask() -> None:
        for _ in range(50):
            allowed.append(service.ask(attributes={"user": "x"}).allowed)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    run_threads(threads)
    assert allowed.count(True) == 100
    rows = recorder.drain()
    assert sum(row[5] for row in rows) == 100
    assert sum(row[6] for row in rows) == 100


def test_rules_may_change_while_calls_are_in_flight(server: RedisServer) -> None:
    service = service_on(server)
    over = threading.Event()
    wrong = []

    def ask() -> None:
        while not over.is_set():
            answer = service.ask(attributes={"user": "x"}, with_outcomes=True)
            names = {outcome.name for outcome in answer.outcomes}
            if names not in ({"all"}, {"other"}):
                wrong.append(names)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    other = {"rules": [{"id": "other", "by": "user", "limit": "1000000/hour"}]}
    for i in range(40):
        service.use(RULES if i % 2 else other)
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_without_redis_checks_are_answered_and_say_so(own_server: RedisServer) -> None:
    service = service_on(own_server, "timeout=0.2")
    eventually(lambda: not service.ask(attributes=ASK).degraded)
    own_server.kill()
    assert eventually(lambda: service.ask(attributes=ASK).degraded)
    assert service.check({"userId": "42"})[2]["degraded"] is True
    assert service.native.stats()["degraded"] > 0
    code, said, _ = service.grpc("Refund", wire.request(ASK))
    assert code == OK, said


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_a_service_may_go_while_a_call_is_in_flight(own_server: RedisServer, kind: str) -> None:
    service = service_on(own_server, "timeout=0.5")
    service.ask(attributes=ASK)
    own_server.signal(signal.SIGSTOP)
    thread = threading.Thread(
        target=lambda: (
            service.ask(attributes=ASK) if kind == "grpc" else service.check({"userId": "42"})
        )
    )
    thread.start()
    service.use({"rules": []})
    thread.join()
    own_server.signal(signal.SIGCONT)
    assert service.ask(attributes=ASK).limit is None
