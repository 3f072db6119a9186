"""The methods of tidegate.v1.RateLimiter."""

from __future__ import annotations

from typing import Any

import check_wire as wire
import pytest
from check_service import INVALID_ARGUMENT, OK, UNAVAILABLE, UNIMPLEMENTED, Service

ASK: Any = {"user": "42", "endpoint": "/api/x"}


def test_a_check_returns_what_remains() -> None:
    answer = Service().ask(attributes=ASK)
    assert (answer.allowed, answer.limit, answer.remaining, answer.rule) == (True, 2, 1, "api")
    assert (answer.retry_after_ns, answer.reset_after_ns) == (None, 30 * 10**9)
    assert answer.reset_time_ns == 1_700_000_030_500_000_000
    assert (answer.degraded, answer.outcomes) == (False, [])


def test_a_refusal_returns_the_exact_wait() -> None:
    service = Service()
    service.ask(attributes=ASK, cost=2)
    refusal = service.ask(attributes=ASK)
    assert (refusal.allowed, refusal.remaining, refusal.retry_after_ns) == (False, 0, 30 * 10**9)
    assert refusal.decision == b""
    service.clock.advance_ns(refusal.retry_after_ns - 1)
    assert not service.ask(attributes=ASK).allowed
    service.clock.advance_ns(1)
    assert service.ask(attributes=ASK).allowed


def test_the_answer_has_no_limit_if_none_applies() -> None:
    answer = Service().ask(attributes={"user": "42"})
    assert (answer.allowed, answer.limit, answer.remaining, answer.rule) == (True, None, None, "")


def test_attributes_may_have_any_bytes() -> None:
    service = Service()
    for user in (b"\xff\x00\xfe", b"", b"\n"):
        asked = {**ASK, "user": user}
        assert service.ask(attributes=asked, cost=2).allowed
        assert not service.ask(attributes=asked).allowed


def test_the_last_value_of_an_attribute_counts() -> None:
    service = Service()
    twice = wire.request({"user": "1", "endpoint": "/api/x"}) + wire.request({"user": "2"}, cost=2)
    assert wire.CheckResponse(service.grpc("Check", twice)[2]).allowed
    assert service.ask("Peek", attributes={**ASK, "user": "1"}, cost=2).allowed
    assert not service.ask("Peek", attributes={**ASK, "user": "2"}).allowed


def test_a_peek_charges_nothing() -> None:
    service = Service()
    assert [service.ask("Peek", attributes=ASK).remaining for _ in range(3)] == [2, 2, 2]
    assert service.ask("Peek", attributes=ASK).decision == b""


def test_outcomes_are_returned_if_requested() -> None:
    service = Service({"rules": [{"id": "a", "by": "user", "limit": ["2/minute", "9/hour"]}]})
    answer = service.ask(attributes=ASK, with_outcomes=True)
    assert [(o.name, o.rule, o.limit, o.remaining, o.allowed) for o in answer.outcomes] == [
        ("a:2/minute", "a", 2, 1, True),
        ("a:9/hour", "a", 9, 8, True),
    ]


def test_many_checks_are_answered_in_their_order() -> None:
    service = Service()
    checks = [wire.request({**ASK, "user": user}) for user in ("1", "2", "1", "1", "2", "2")]
    body = b"".join(wire.text(1, check) for check in checks)
    code, said, content = service.grpc("CheckMany", body)
    assert code == OK, said
    answers = [wire.CheckResponse(answer) for answer in wire.fields(content)[1]]
    assert [a.allowed for a in answers] == [True, True, True, False, True, False]


@pytest.mark.parametrize(("count", "expected"), [(0, "no checks"), (1001, "more than 1000 checks")])
def test_too_few_or_too_many_checks_are_refused(count: int, expected: str) -> None:
    code, said, _ = Service().grpc("CheckMany", wire.text(1, wire.request(ASK)) * count)
    assert code == INVALID_ARGUMENT
    assert expected in said


def test_no_check_is_charged_if_one_of_them_is_malformed() -> None:
    service = Service()
    good = wire.text(1, wire.request(ASK))
    code, said, _ = service.grpc("CheckMany", good + wire.text(1, wire.request(ASK, cost=-1)))
    assert (code, said.partition(":")[0]) == (INVALID_ARGUMENT, "check 1")
    assert service.ask("Peek", attributes=ASK).remaining == 2


def test_a_refund_gives_back_what_a_check_charged() -> None:
    service = Service()
    answer = service.ask(attributes=ASK, cost=2)
    assert service.grpc("Refund", wire.request(ASK, decision=answer.decision)) == (OK, "", b"")
    assert service.ask("Peek", attributes=ASK).remaining == 2, "the decision knows the cost"
    service.ask(attributes=ASK, cost=2)
    assert service.grpc("Refund", wire.request(ASK, cost=1))[0] == OK
    assert service.ask("Peek", attributes=ASK).remaining == 1


def test_a_refund_by_a_decision_removes_its_own_instant_from_a_log() -> None:
    rules = {
        "rules": [
            {"id": "log", "by": "user", "limit": "2/minute", "algorithm": "sliding-log"},
        ]
    }
    service = Service(rules)
    first = service.ask(attributes=ASK)
    service.clock.advance(10)
    service.ask(attributes=ASK)
    assert service.grpc("Refund", wire.request(ASK, decision=first.decision))[0] == OK
    service.clock.advance(1)
    assert service.ask(attributes=ASK).allowed
    # The wait lasts until the unit of the tenth second ends; the first unit would end 10 s before.
    assert service.ask("Peek", attributes=ASK).retry_after_ns == 59 * 10**9


def test_a_refund_by_a_decision_of_earlier_rules_gives_back() -> None:
    service = Service()
    answer = service.ask(attributes=ASK, cost=2)
    service.use(
        {"rules": [{"id": "api", "by": "user", "endpoint": "/api/**", "limit": "3/minute"}]}
    )
    assert service.grpc("Refund", wire.request(ASK, decision=answer.decision))[0] == OK
    assert service.ask("Peek", attributes=ASK).remaining == 3


def test_a_refund_by_a_decision_has_the_attributes_of_the_check() -> None:
    service = Service()
    service.native.set_tiers({"42": "premium"})
    answers = service.ask(attributes=ASK), service.ask(attributes=ASK)
    other = {**ASK, "user": "43"}
    service.ask(attributes=other, cost=2)
    for attributes in (other, {"user": "42"}, {**ASK, "method": "GET"}):
        code, said, _ = service.grpc(
            "Refund", wire.request(attributes, decision=answers[0].decision)
        )
        assert (code, said) == (
            INVALID_ARGUMENT,
            "the attributes are not those of the decision's check; expected the same ones",
        )
    assert service.ask("Peek", attributes=other).remaining == 0
    swapped: Any = {"endpoint": "/api/x?page=2", "user": "42"}
    refund = wire.request(swapped, decision=answers[0].decision)
    assert service.grpc("Refund", refund)[0] == OK, "neither their order nor a query counts"
    assert service.ask("Peek", attributes=ASK).remaining == 4, "of 5 of the service's tier"
    # An earlier version's tokens say nothing of the attributes.
    earlier = answers[1].decision[:13] + bytes(4) + answers[1].decision[17:]
    assert service.grpc("Refund", wire.request(other, decision=earlier))[0] == OK
    assert service.ask("Peek", attributes=other).remaining == 1


@pytest.mark.parametrize("decision", [b"x", b"\x01" * 28, b"\xff" * 28, b"\x01" + b"\xff" * 27])
def test_an_invalid_decision_is_refused(decision: bytes) -> None:
    code, said, _ = Service().grpc("Refund", wire.request(ASK, decision=decision))
    assert code == INVALID_ARGUMENT
    assert "expected the decision of a CheckResponse, unchanged" in said


def test_a_reset_forgets_what_was_charged() -> None:
    service = Service()
    service.ask(attributes=ASK, cost=2)
    assert service.grpc("Reset", wire.request(ASK)) == (OK, "", b"")
    assert service.ask("Peek", attributes=ASK).remaining == 2


def test_a_reset_says_that_the_storage_does_not_answer() -> None:
    service = Service(storage="redis://127.0.0.1:1?timeout=0.05&on_error=fallback", clock=None)
    assert service.ask(attributes=ASK, cost=2).degraded
    code, said, _ = service.grpc("Reset", wire.request(ASK))
    assert code == UNAVAILABLE
    assert said.startswith("the storage does not answer, so that what it has counted stays;")
    assert service.ask("Peek", attributes=ASK).remaining > 0


SHARED = {
    "rules": [
        {"id": "user", "by": "user", "limit": "9/hour"},
        {"id": "address", "by": "ip", "limit": "9/hour"},
        {"id": "ceiling", "by": "global", "limit": "9/hour"},
    ]
}


@pytest.mark.parametrize(
    ("named", "left"),
    [
        ((), {"user": 9, "address": 7, "ceiling": 7}),
        (("ceiling",), {"user": 7, "address": 7, "ceiling": 9}),
        (("address", "user"), {"user": 9, "address": 9, "ceiling": 7}),
    ],
)
def test_a_reset_keeps_counts_that_others_share_unless_their_rules_are_named(
    named: tuple[str, ...], left: dict[str, int]
) -> None:
    service = Service(SHARED)
    ask = {"user": "42", "ip": "192.0.2.1"}
    service.ask(attributes=ask, cost=2)
    assert service.grpc("Reset", wire.request(ask, rules=named)) == (OK, "", b"")
    outcomes = service.ask("Peek", attributes=ask, with_outcomes=True).outcomes
    assert {each.rule: each.remaining for each in outcomes} == left


def test_a_reset_by_a_rule_that_is_not_there_resets_nothing() -> None:
    service = Service(SHARED)
    service.ask(attributes=ASK, cost=2)
    code, said, _ = service.grpc("Reset", wire.request(ASK, rules=("user", "usr")))
    assert code == INVALID_ARGUMENT
    assert said == "the rule is 'usr'; expected the id of a rule in force"
    assert service.ask("Peek", attributes={"user": "42"}).remaining == 7
    code, said, _ = service.grpc("Reset", wire.request(ASK, rules=["user"] * 1001))
    assert code == INVALID_ARGUMENT
    assert said == "more than 1000 rules were given; expected at most that many"


def test_the_status_has_the_limits_of_each_rule() -> None:
    rules = {"rules": [{"id": "a", "by": "user", "limit": ["2/minute", "9/hour"]}]}
    service = Service(rules)
    service.ask(attributes=ASK)
    code, said, content = service.grpc("Status", wire.request({"user": "42"}))
    assert code == OK, said
    (rule,) = wire.fields(content)[1]
    found = wire.fields(rule)
    assert found[1] == [b"a"]
    assert 2 not in found
    assert [(o.name, o.remaining) for o in map(wire.Outcome, found[3])] == [
        ("a:2/minute", 1),
        ("a:9/hour", 8),
    ]


MALFORMED = {
    "a field that is cut off": b"\x0a\x05ab",
    "a varint without an end": b"\x10" + b"\xff" * 11,
    "a bool that is cut off": b"\x18",
    "the field 0": b"\x00\x01",
    "a group": b"\x0b\x0c",
    "an unknown wire type": b"\x0f",
    "attributes that are a number": wire.number(1, 7),
    "a cost that is a text": wire.text(2, b"7"),
    "a name that is a number": wire.text(1, wire.number(1, 7)),
    "a cost below 1": wire.request(ASK, cost=-1),
    "a cost above 2^53 - 1": wire.request(ASK, cost=2**53),
    "a name that is empty": wire.request({"": "x"}),
    "a name that is too long": wire.request({"n" * 256: "x"}),
    "a value that is too long": wire.request({"user": b"x" * 8193}),
    "too many attributes": wire.request({f"a{i}": "x" for i in range(65)}),
}


@pytest.mark.parametrize("method", ["Check", "Peek"])
@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_is_refused_with_a_reason(method: str, message: bytes) -> None:
    service = Service()
    code, said, content = service.grpc(method, message)
    assert (code, content) == (INVALID_ARGUMENT, b"")
    assert "expected" in said
    assert service.native.stats()["malformed"] == 1


def test_unknown_fields_are_ignored() -> None:
    message = wire.request(ASK) + wire.text(99, b"new") + wire.number(98, 1) + b"\x9d\x06abcd"
    assert Service().grpc("Check", message)[0] == OK


def test_an_unknown_method_is_unimplemented() -> None:
    assert Service().grpc("Chekc", b"")[0] == UNIMPLEMENTED
