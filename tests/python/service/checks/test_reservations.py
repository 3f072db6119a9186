"""Reservations over REST and gRPC: settled once, at any instance and after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import check_wire as wire
import pytest
from check_service import INVALID_ARGUMENT, JSON, OK, UNAVAILABLE, Service

NOT_FOUND, FAILED_PRECONDITION = 5, 9
RULES = {
    "rules": [
        {"id": "tokens", "by": "user", "limit": "1000/hour"},
        {"id": "requests", "by": "user", "limit": "10/hour", "counts": "requests"},
    ]
}
USER = {"userId": "42"}


def post(service: Service, what: str, body: Any) -> tuple[int, Any]:
    status, _, content = service.http(
        "POST", f"/v1/ratelimit/{what}", JSON, json.dumps(body).encode()
    )
    return status, json.loads(content)


def left(service: Service, rule: str = "tokens") -> int:
    _, answer = service.status("42")
    return next(row["remaining"] for row in answer["rules"] if row["rule"] == rule)


def reserved(service: Service, **body: Any) -> str:
    status, answer = post(service, "reserve", {**USER, **body})
    assert (status, answer["allowed"]) == (200, True), answer
    token = answer["reservation"]
    assert isinstance(token, str)
    return token


def test_a_commit_charges_or_gives_back_the_difference() -> None:
    service = Service(RULES)
    for estimate, actual in ((100, 250), (100, 30), (50, 0)):
        before = left(service)
        token = reserved(service, cost=estimate)
        assert left(service) == before - estimate
        status, answer = post(service, "commit", {"reservation": token, "cost": actual})
        assert (status, answer["charged"], answer["allowed"]) == (200, actual, True)
        assert left(service) == before - actual
    assert left(service, "requests") == 7, "rules that count requests count each"


def test_a_call_that_is_made_again_changes_nothing() -> None:
    service = Service(RULES)
    token = reserved(service, cost=100)
    for _ in range(3):
        assert post(service, "commit", {"reservation": token, "cost": 70})[0] == 200
    assert left(service) == 930
    status, problem = post(service, "commit", {"reservation": token, "cost": 71})
    assert (status, problem["title"]) == (409, "Conflict")
    assert "settled before, at 70 units" in problem["detail"]
    for what, body, said in (
        ("release", {}, "settled before, by a commit; expected no release after it"),
        ("extend", {"cost": 1}, "settled before, and was not raised; expected an extension before"),
    ):
        status, problem = post(service, what, {"reservation": token, **body})
        assert (status, said in problem["detail"]) == (409, True), problem
    assert left(service) == 930


def test_a_second_commit_is_not_taken_for_one_that_follows_a_release() -> None:
    service = Service({**RULES, "costs": [{"endpoint": "/**", "cost": 2}]})
    token = reserved(service, endpoint="/x")
    assert post(service, "commit", {"reservation": token, "cost": 3})[1]["charged"] == 6
    status, problem = post(service, "commit", {"reservation": token, "cost": 6})
    assert (status, "settled before, at 6 units" in problem["detail"]) == (409, True), problem


def test_a_release_gives_back_the_request_too() -> None:
    service = Service(RULES)
    token = reserved(service, cost=100)
    for _ in range(2):
        assert post(service, "release", {"reservation": token})[0] == 200
    status, problem = post(service, "commit", {"reservation": token, "cost": 0})
    assert (status, "before, by a release; expected no commit" in problem["detail"]) == (409, True)
    assert (left(service), left(service, "requests")) == (1000, 10)


def test_an_extension_reserves_more_or_is_refused() -> None:
    service = Service(RULES)
    first = reserved(service, cost=100)
    status, answer = post(service, "extend", {"reservation": first, "cost": 400})
    assert (status, answer["allowed"], left(service)) == (200, True, 500)
    second = answer["reservation"]
    assert post(service, "extend", {"reservation": first, "cost": 1})[1]["allowed"]
    assert left(service) == 499, "one that is sent again reserves again"
    status, answer = post(service, "extend", {"reservation": second, "cost": 501})
    assert (status, answer["allowed"], answer["reservation"]) == (200, False, None)
    # A token from before the extension settles all of it.
    assert post(service, "commit", {"reservation": first, "cost": 450})[1]["charged"] == 450
    assert left(service) == 550


def test_a_refusal_has_no_reservation() -> None:
    service = Service(RULES, refused_status=429)
    status, answer = post(service, "reserve", {**USER, "cost": 1001})
    assert (status, answer["allowed"], answer["reservation"]) == (429, False, None)
    assert post(service, "reserve", {"cost": 5})[1]["reservation"] is None, "no limit applies"
    assert left(service) == 1000
    assert service.native.stats()["refused"] == 1


def test_after_its_ttl_a_reservation_stays_at_its_estimate() -> None:
    service = Service(RULES)
    token = reserved(service, cost=100, ttl=1.5)
    service.clock.advance(1.5)
    for what, body in (("commit", {"cost": 0}), ("release", {}), ("extend", {"cost": 1})):
        status, problem = post(service, what, {"reservation": token, **body})
        assert (status, problem["title"]) == (410, "Gone")
        assert "not known (any more)" in problem["detail"]
    assert left(service) == 900


def test_other_instances_and_those_started_since_settle_it(tmp_path: Path) -> None:
    storage = f"shm://{tmp_path}/counts?capacity=4096"
    service = Service(RULES, storage=storage)
    token = reserved(service, cost=100)
    clock = service.clock
    del service
    for _ in range(2):
        another = Service(RULES, storage=storage, clock=clock)
        assert post(another, "commit", {"reservation": token, "cost": 300})[0] == 200
        assert left(another) == 700


def test_other_rules_settle_what_they_still_count() -> None:
    service = Service(RULES)
    token = reserved(service, cost=100)
    service.use({"rules": [{"id": "more", "by": "ip", "limit": "5/hour"}, RULES["rules"][0]]})
    assert post(service, "commit", {"reservation": token, "cost": 300})[1]["charged"] == 300
    assert left(service) == 700
    token = reserved(service, cost=100)
    service.use({"rules": [{"id": "other", "by": "user", "limit": "7/hour"}]})
    status, problem = post(service, "commit", {"reservation": token, "cost": 300})
    assert (status, "not known (any more)" in problem["detail"]) == (410, True)
    service.use(RULES)
    assert left(service) == 600


@pytest.mark.parametrize(
    ("what", "body", "expected"),
    [
        ("reserve", {"cost": 0}, "the cost is 0; expected an integer from 1 to"),
        ("reserve", {"ttl": 0}, "the ttl is 0.000000; expected 0.001 to 31622400 seconds"),
        ("reserve", {"ttl": "1"}, "the ttl is a string; expected 0.001"),
        ("reserve", {"ttl": 1e12}, "expected 0.001 to 31622400 seconds"),
        ("reserve", {"outcomes": True}, "'outcomes' is not known; expected userId"),
        ("commit", {"cost": 1}, '"reservation" is missing; expected its token'),
        ("commit", {"reservation": "tgs1.AAAA", "cost": 1}, "expected the token of one"),
        ("commit", {"reservation": "tgs1.AAAA"}, '"cost" is missing; expected what was used'),
        ("commit", {"reservation": "tgs1.AAAA", "cost": -1}, "the cost is -1; expected an integer"),
        ("commit", {"reservation": 7, "cost": 1}, "is a number; expected a string"),
        ("extend", {"reservation": "tgs1.AAAA", "cost": 0}, "the cost is 0; expected an integer"),
        ("release", {"reservation": "x" * 90}, "expected the token of one, unchanged"),
        ("release", {"reservation": "", "cost": 1}, "'cost' is not known; expected reservation"),
    ],
)
def test_what_is_malformed_changes_nothing(what: str, body: Any, expected: str) -> None:
    service = Service(RULES)
    status, problem = post(service, what, body)
    assert status == 400
    assert expected in problem["detail"]


def test_a_token_that_was_cut_or_altered_is_none() -> None:
    service = Service(RULES)
    token = reserved(service, cost=100)
    middle = len(token) // 2
    other = "A" if token[middle] != "A" else "B"
    for bad in (token[:-3], token[:middle] + other + token[middle + 1 :], "tgr1." + token[5:]):
        assert post(service, "commit", {"reservation": bad, "cost": 1})[0] == 400
    assert left(service) == 900


def test_attributes_that_no_token_can_hold_are_refused() -> None:
    service = Service(
        {"rules": [{"id": f"r{i}", "by": f"x{i}", "limit": "9/hour"} for i in range(5)]}
    )
    status, problem = post(
        service, "reserve", {"attributes": {f"x{i}": "x" * 8000 for i in range(5)}}
    )
    assert (status, "expected at most 32768 for a reservation" in problem["detail"]) == (400, True)


def grpc(service: Service, method: str, message: bytes) -> dict[int, list[Any]]:
    code, said, content = service.grpc(method, message)
    assert code == 0, said
    return wire.fields(content)


def test_grpc_has_the_same_calls() -> None:
    service = Service(RULES)
    ttl = wire.text(3, wire.number(1, 90))
    found = grpc(service, "Reserve", wire.request({"user": "42"}, cost=100) + ttl)
    assert wire.CheckResponse(found[1][0]).remaining == 9, "the requests have the least room"
    token = wire.text(1, found[2][0])
    service.clock.advance(89)
    raised = grpc(service, "Extend", token + wire.number(2, 50))
    assert wire.CheckResponse(raised[1][0]).allowed
    token = wire.text(1, raised[2][0])
    for _ in range(2):
        settled = grpc(service, "Commit", token + wire.number(2, 120))
        assert settled[2] == [120]
    code, said, _ = service.grpc("Commit", token + wire.number(2, 121))
    assert (code, "settled before, at 120 units" in said) == (FAILED_PRECONDITION, True)
    other = wire.text(1, grpc(service, "Reserve", wire.request({"user": "42"}, cost=7))[2][0])
    # Field 2 of a Release is one that this version does not know.
    assert 2 not in grpc(service, "Release", other + wire.text(2, "later"))
    service.clock.advance(61)
    assert service.grpc("Release", other)[0] == NOT_FOUND
    code, said, _ = service.grpc("Reserve", wire.text(3, wire.number(1, -1)))
    assert (code, "the ttl is -1 s" in said) == (3, True)


def test_a_refund_by_a_decision_gives_back_once() -> None:
    service = Service(RULES)
    answer = service.ask(attributes={"user": "42"}, cost=300)
    service.ask(attributes={"user": "42"}, cost=300)
    refund = wire.request({"user": "42"}, decision=answer.decision)
    for _ in range(3):
        assert service.grpc("Refund", refund)[0] == 0
    assert (left(service), left(service, "requests")) == (700, 9)
    service.clock.advance(601)
    remaining = left(service)
    assert service.grpc("Refund", refund)[0] == 0
    assert left(service) > remaining, "it is known for 10 minutes"


def test_a_refund_by_a_decision_gives_back_its_own_cost() -> None:
    service = Service(RULES)
    answer = service.ask(attributes={"user": "42"}, cost=3)
    service.ask(attributes={"user": "42"}, cost=97)
    for cost in (50, 2):
        refund = wire.request({"user": "42"}, cost=cost, decision=answer.decision)
        assert service.grpc("Refund", refund)[:2] == (
            INVALID_ARGUMENT,
            f"the cost is {cost} beside the decision of a check of cost 3; expected 3, or none",
        )
    assert left(service) == 900
    refund = wire.request({"user": "42"}, cost=3, decision=answer.decision)
    assert service.grpc("Refund", refund)[0] == OK
    assert left(service) == 903


def test_a_refund_by_a_decision_gives_back_once_whatever_its_name() -> None:
    service = Service(RULES)
    answer = service.ask(attributes={"user": "42"}, cost=3)
    service.ask(attributes={"user": "42"}, cost=97)
    refund = wire.request({"user": "42"}, decision=answer.decision)
    for name in (wire.text(4, "job 7"), wire.text(4, "job 8"), b""):
        assert service.grpc("Refund", refund + name)[0] == OK
        assert left(service) == 903


def test_a_refund_with_a_name_gives_back_once(tmp_path: Path) -> None:
    storage = f"shm://{tmp_path}/counts?capacity=4096"
    service = Service(RULES, storage=storage)
    service.ask(attributes={"user": "42"}, cost=300)
    refund = wire.request({"user": "42"}, cost=100) + wire.text(4, "job 7")
    assert service.grpc("Refund", refund)[0] == 0
    another = Service(RULES, storage=storage, clock=service.clock)
    assert another.grpc("Refund", refund)[0] == 0
    assert left(another) == 800
    assert another.grpc("Refund", refund.replace(b"job 7", b"job 8"))[0] == 0
    assert left(another) == 900
    code, said, _ = service.grpc("Refund", wire.request({"user": "42"}) + wire.text(4, ""))
    assert (code, "expected 1 to 255" in said) == (3, True)


def test_a_refund_with_a_name_and_other_words_is_another_one() -> None:
    service = Service(RULES)
    service.ask(attributes={"user": "42"}, cost=300)

    def gives_back(cost: int, **attributes: str) -> int:
        before = left(service)
        refund = wire.request({"user": "42", **attributes}, cost=cost) + wire.text(4, "job 7")
        assert service.grpc("Refund", refund)[0] == OK
        return left(service) - before

    assert [gives_back(cost) for cost in (10, 20, 10, 20)] == [10, 20, 0, 0]
    assert [gives_back(10, part=part, kind="a") for part in "1221"] == [10, 10, 0, 0]
    refund = wire.request({"kind": "a", "user": "42", "part": "1"}, cost=10)
    assert service.grpc("Refund", refund + wire.text(4, "job 7"))[0] == OK
    assert left(service) == 750, "the order of the attributes does not matter"


def test_a_store_that_does_not_answer_may_be_asked_again() -> None:
    service = Service(
        RULES, storage="redis://127.0.0.1:1?timeout=0.05&on_error=fallback", clock=None
    )
    status, answer = post(service, "reserve", {**USER, "cost": 5})
    assert (status, answer["allowed"], answer["degraded"]) == (200, True, True)
    assert answer["reservation"] is None
    refund = wire.request({"user": "42"}) + wire.text(4, "job 7")
    code, said, _ = service.grpc("Refund", refund)
    assert (code, "expected the same call again" in said) == (UNAVAILABLE, True)


BY_USAGE = {
    **RULES,
    "costs": [
        {
            "endpoints": ["/chat"],
            "cost": {"usage": {"input": 1, "cached": 0.1, "output": 5}, "estimate": 50},
        }
    ],
}
CHAT = {"endpoint": "/chat"}


def test_a_commit_takes_a_usage_in_place_of_a_cost(tmp_path: Path) -> None:
    storage = f"shm://{tmp_path}/counts?capacity=4096"
    service = Service(BY_USAGE, storage=storage)
    token = reserved(service, **CHAT)
    assert left(service) == 950
    usage = {"input": 100, "cached": 25, "output": 20, "other": 0, "none": None}
    another = Service(BY_USAGE, storage=storage, clock=service.clock)
    for asked in (service, another):
        status, answer = post(asked, "commit", {"reservation": token, "usage": usage})
        assert (status, answer["charged"]) == (200, 203), answer  # 202.5, rounded up
    assert post(service, "commit", {"reservation": token, "cost": 203})[0] == 200
    status, problem = post(service, "commit", {"reservation": token, "usage": {"input": 300}})
    assert (status, "settled before, at 203 units" in problem["detail"]) == (409, True)
    assert left(another) == 797
    assert (
        post(service, "commit", {"reservation": reserved(service, **CHAT), "usage": {}})[0] == 200
    )
    assert (left(service), left(service, "requests")) == (797, 8)


def test_grpc_commits_take_a_usage() -> None:
    service = Service(BY_USAGE)
    found = grpc(service, "Reserve", wire.request({"user": "42", "endpoint": "/chat"}))
    token = wire.text(1, found[2][0])
    used = [
        wire.text(3, wire.text(1, field) + wire.number(2, units))
        for field, units in (("output", 7), ("input", 30), ("output", 2))  # the last of a name
    ]
    for _ in range(2):
        assert grpc(service, "Commit", token + b"".join(used))[2] == [40]
    code, said, _ = service.grpc("Commit", token + used[0] + wire.number(2, 40))
    assert (code, said) == (3, "a cost was given beside a usage; expected one of them")
    code, said, _ = service.grpc(
        "Commit", token + wire.text(3, wire.text(1, "input") + wire.text(2, ""))
    )
    assert (code, "another wire type" in said) == (3, True)
    code, said, _ = service.grpc(
        "Commit", token + wire.text(3, wire.text(1, "input") + wire.number(2, -1))
    )
    assert (code, "the usage of 'input' is -1; expected an integer from 0" in said) == (3, True)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input": -1}, "the usage of 'input' is -1; expected an integer from 0 to 90071992547409"),
        ({"input": 2**53}, "the usage of 'input' is 9007199254740992; expected an integer"),
        ({"input": 2**63}, "the usage of 'input' is 2^63 or more; expected an integer"),
        ({"input": 1.5}, "the usage of 'input' is a number with a fraction; expected an integer"),
        ({"input": "7"}, "the usage of 'input' is a string; expected an integer"),
        ({"words": 7}, "the usage has the field 'words'; expected input, cached, output"),
        ([7], "'usage' is an array; expected an object of integers"),
        ({f"field {i}": 0 for i in range(65)}, "more than 64 fields"),
    ],
)
def test_a_malformed_usage_settles_nothing(usage: Any, expected: str) -> None:
    service = Service(BY_USAGE)
    token = reserved(service, **CHAT)
    status, problem = post(service, "commit", {"reservation": token, "usage": usage})
    assert status == 400
    assert expected in problem["detail"]
    both = {"reservation": token, "usage": {"input": 1}, "cost": 1}
    assert "expected one of them" in post(service, "commit", both)[1]["detail"]
    assert "'usage' is not known" in post(service, "extend", both)[1]["detail"]
    assert left(service) == 950
    assert post(service, "commit", {"reservation": token, "cost": 60})[0] == 200


def test_a_usage_for_rules_that_do_not_weigh_it_is_an_error() -> None:
    service = Service(RULES)
    token = reserved(service, cost=100)
    status, problem = post(service, "commit", {"reservation": token, "usage": {"input": 1}})
    assert (status, "has no `usage`; expected a number" in problem["detail"]) == (400, True)
    assert left(service) == 900
