"""Callers who are throttled or blocked because of anomalies."""

from __future__ import annotations

import json
import logging
from typing import Any

import check_wire as wire
import pytest
from check_service import API, JSON, OK, Service
from service_testing import call
from tidegate import ConfigurationError, _core
from tidegate.server import _native
from tidegate.server.anomalies.detector import Action, Anomaly, AnomalyDetector
from tidegate.server.enforcement import Enforcement, is_enforceable
from tidegate.server.listeners import AnomalyWatch
from tidegate.server.recording import Recorded, Row, caller_named, caller_of

SECOND = 10**9


def anomaly(caller: str, action: Action = Action.BLOCK) -> Anomaly:
    return Anomaly(caller, action, 12.0, "900 requests, 12 are usual", 900, 12.0, 0.0)


class Enforced:
    """An enforcement and its service, on one clock that stands still."""

    def __init__(self, **options: Any) -> None:
        self.recorder = _native.Recorder()
        self.service = Service(recorder=self.recorder)
        clock: Any = self.service.clock
        self.enforcement = Enforcement(
            [self.service.native],
            clock=lambda: clock.now_ns() / SECOND,
            native_clock=_core.native_clock(clock),
            **options,
        )

    def apply(self, *callers: str, action: Action = Action.BLOCK) -> None:
        self.enforcement.apply([anomaly(caller, action) for caller in callers])

    def wait(self, seconds: float) -> None:
        self.service.clock.advance(seconds)

    def answer(self, **asked: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.service.check({"endpoint": "/api/x", **asked})[2]
        return found

    def post(self, what: str, **body: Any) -> dict[str, Any]:
        raw = json.dumps(body).encode()
        _, _, content = self.service.http("POST", f"/v1/ratelimit/{what}", JSON, raw)
        found: dict[str, Any] = json.loads(content)
        return found

    def is_blocked(self, user: str) -> bool:
        return self.answer(userId=user)["rule"] == "anomaly:block"

    def callers(self) -> list[str]:
        return sorted(each.caller for each in self.enforcement.in_force())


def test_the_answer_to_a_blocked_caller_says_why_and_until_when() -> None:
    enforced = Enforced(seconds=300)
    enforced.apply("user:42")
    status, headers, body = enforced.service.check({"userId": "42", "endpoint": "/api/x"})
    assert (status, headers["retry-after"]) == (200, "300")
    assert (body["allowed"], body["rule"], body["retryAfter"]) == (False, "anomaly:block", 300)
    assert not enforced.is_blocked("43")
    decision = enforced.service.ask(attributes={"user": b"42"})
    assert (decision.allowed, decision.rule) == (False, "anomaly:block")
    assert enforced.service.ask("Peek", attributes={"user": b"42"}).rule == "anomaly:block"


def test_a_blocked_caller_reserves_nothing_and_a_throttled_one_twice_as_much() -> None:
    enforced = Enforced(seconds=300)
    enforced.apply("user:42")
    enforced.apply("user:43", action=Action.THROTTLE)
    ask = {"endpoint": "/api/x", "tier": "premium", "cost": 2}
    blocked = enforced.post("reserve", userId="42", **ask)
    assert (blocked["rule"], blocked["reservation"]) == ("anomaly:block", None)
    throttled = enforced.post("reserve", userId="43", **ask)
    assert throttled["remaining"] == 1
    settled = enforced.post("commit", reservation=throttled["reservation"], cost=1)
    assert (settled["remaining"], settled["charged"]) == (3, 2)


@pytest.mark.parametrize(
    ("limit", "cost", "charged"),
    [
        ({"limit": "100/hour"}, 5, 10),
        ({"limit": "9/hour"}, 5, 9),
        ({"limit": "1/second"}, 1, 1),
        ({"limit": ["100/hour", "7/second"]}, 5, 7),
        ({"limit": "quota 100/month"}, 5, 5),
        ({"limit": "9/hour", "counts": "requests"}, 5, 1),
    ],
)
def test_a_throttled_caller_reserves_and_commits_what_a_check_charges(
    limit: dict[str, Any], cost: int, charged: int
) -> None:
    enforced = Enforced()
    enforced.service.use({"rules": [{"id": "r", "by": "user", **limit}]})
    enforced.apply("user:42", "user:43", action=Action.THROTTLE)
    checked = enforced.answer(userId="42", cost=cost)
    reserved = enforced.post("reserve", userId="43", cost=cost)
    committed = enforced.post("commit", reservation=reserved["reservation"], cost=cost)
    for each in (checked, reserved, committed):
        assert (each["allowed"], each["limit"] - each["remaining"]) == (True, charged)
    enforced.post("release", reservation=enforced.post("reserve", userId="44")["reservation"])
    assert enforced.answer(userId="44")["remaining"] == checked["limit"] - 1


def test_each_limit_settles_a_throttled_reservation_at_what_it_charges() -> None:
    enforced = Enforced()
    quota = {"id": "quota", "by": "user", "limit": "quota 100/month"}
    rate = {"id": "rate", "by": "user", "limit": "9/hour", "also": True}
    enforced.service.use({"rules": [quota, rate]})

    def used() -> list[int]:
        rows = enforced.service.status("42")[1]["rules"]
        return [row["limit"] - row["remaining"] for row in rows]

    enforced.apply("user:42", action=Action.THROTTLE)
    token = enforced.post("reserve", userId="42", cost=2)["reservation"]
    assert used() == [2, 4]
    token = enforced.post("extend", reservation=token, cost=1)["reservation"]
    assert used() == [3, 6]
    settled = enforced.post("commit", reservation=token, cost=4)
    assert (used(), settled["charged"]) == ([4, 8], 4)
    again = enforced.post("commit", reservation=token, cost=3)
    assert "settled before, at 4 units" in again["detail"]
    assert used() == [4, 8]
    assert enforced.service.limiter.stats().written_off == 0


def test_what_a_throttled_caller_used_beyond_the_limit_is_charged_once() -> None:
    enforced = Enforced()
    enforced.service.use({"rules": [{"id": "rate", "by": "user", "limit": "9/hour"}]})
    enforced.apply("user:42", action=Action.THROTTLE)
    token = enforced.post("reserve", userId="42", cost=2)["reservation"]
    assert enforced.post("commit", reservation=token, cost=20)["charged"] == 20


def test_a_block_ends_by_itself_and_a_new_verdict_prolongs_it() -> None:
    enforced = Enforced(seconds=300)
    enforced.apply("user:42")
    enforced.wait(200)
    enforced.apply("user:42")
    enforced.wait(299)
    assert enforced.answer(userId="42")["retryAfter"] == 1
    enforced.wait(1)
    assert not enforced.is_blocked("42"), "nobody had to tell the service"
    assert enforced.enforcement.in_force() == []


def test_a_throttled_caller_has_half_of_the_limit() -> None:
    enforced = Enforced()
    enforced.apply("user:42", action=Action.THROTTLE)
    # The limit is 5 a minute, and each request costs 2.
    answers = [enforced.answer(userId="42", tier="premium") for _ in range(3)]
    assert [each["allowed"] for each in answers] == [True, True, False]
    assert [each["remaining"] for each in answers] == [3, 1, 1]
    assert answers[2]["rule"] == "api"
    assert sum(row[9] for row in enforced.recorder.drain()) == 2, "usage is what was asked for"


def test_a_block_never_becomes_a_throttle_but_a_throttle_may_become_a_block() -> None:
    enforced = Enforced(seconds=300)
    enforced.apply("user:42")
    enforced.wait(100)
    enforced.apply("user:42", action=Action.THROTTLE)
    assert enforced.answer(userId="42")["retryAfter"] == 200
    enforced.apply("user:43", action=Action.THROTTLE)
    assert not enforced.is_blocked("43")
    enforced.apply("user:43")
    assert enforced.is_blocked("43")
    enforced.apply("user:44", action=Action.MONITOR)
    assert enforced.callers() == ["user:42", "user:43"]


def test_an_address_is_blocked_if_requests_name_no_user() -> None:
    enforced = Enforced()
    enforced.apply("ip:192.0.2.1")
    assert enforced.answer(ip="192.0.2.1")["rule"] == "anomaly:block"
    assert enforced.answer(ip="192.0.2.2")["allowed"]
    assert enforced.answer(ip="192.0.2.1", userId="42")["allowed"]


def test_a_caller_with_only_a_key_is_blocked_by_a_digest_of_it() -> None:
    enforced = Enforced()
    enforced.answer(apiKey="secret")
    (row,) = enforced.recorder.drain()
    caller = caller_of(Row(*row))
    assert caller == caller_named({"api_key": "secret"})
    enforced.apply(caller)
    assert enforced.answer(apiKey="secret")["rule"] == "anomaly:block"
    assert enforced.answer(apiKey="other")["allowed"]


@pytest.mark.parametrize("before", ["", "user:", "user:user:"])
def test_a_user_named_like_the_digest_of_a_key_is_not_the_holder_of_that_key(before: str) -> None:
    enforced = Enforced()
    holder = caller_named({"api_key": "secret"})
    user = before + holder.removeprefix("user:")
    assert enforced.answer(userId=user)["allowed"]
    (row,) = enforced.recorder.drain()
    caller = caller_of(Row(*row))
    assert caller == caller_named({"user": user}) == f"user:user:{user}"
    enforced.apply(caller)
    assert enforced.is_blocked(user)
    assert enforced.service.status(user)[1]["enforced"]["action"] == "block"
    for other in (f"user:{user}", user.removeprefix("user:") if before else "42"):
        assert not enforced.is_blocked(other)
    assert enforced.answer(apiKey="secret")["allowed"]
    enforced.enforcement.unlock(caller)
    enforced.apply(holder)
    assert not enforced.is_blocked(user)
    assert enforced.answer(apiKey="secret")["rule"] == "anomaly:block"


@pytest.mark.parametrize(
    "caller",
    [
        "anyone",
        "user:",
        "user:descriptor:generic_key=slow",
        "user:" + "x" * 255,
        "user:" + "é" * 128,
        "user:\\xff",
        "all others",
    ],
)
def test_names_that_several_callers_may_share_are_not_enforced(caller: str) -> None:
    enforced = Enforced()
    enforced.apply(caller)
    assert not is_enforceable(caller)
    assert enforced.callers() == []
    assert is_enforceable("user:" + "x" * 254)


def test_exempt_callers_are_spared() -> None:
    enforced = Enforced(exempt=["user:42"])
    enforced.apply("user:42", "user:43")
    assert enforced.callers() == ["user:43"]


def test_the_status_has_the_penalty_of_the_caller() -> None:
    enforced = Enforced(seconds=300)
    enforced.apply("user:42")
    enforced.apply("user:43", action=Action.THROTTLE)
    enforced.wait(100)
    now = enforced.service.clock.now_ns()
    reason = "900 requests, 12 are usual"
    _, said = enforced.service.status("42")
    assert said["enforced"] == {
        "action": "block",
        "until": -(-now // SECOND) + 200,
        "reason": reason,
    }
    assert said["rules"][0]["remaining"] == 2, "nothing was charged"
    assert enforced.service.status("43")[1]["enforced"]["action"] == "throttle"
    assert "enforced" not in enforced.service.status("44")[1]
    code, _, content = enforced.service.grpc("Status", wire.request({"user": "42"}))
    assert code == OK
    (penalty,) = wire.fields(content)[6]
    found = wire.fields(penalty)
    assert (found[1], found[2]) == ([2], [reason.encode()])
    assert (wire.ns(found[3][0]), wire.ns(found[4][0])) == (200 * SECOND, now + 200 * SECOND)
    code, _, content = enforced.service.grpc("Status", wire.request({"user": "44"}))
    assert (code, 6 in wire.fields(content)) == (OK, False)
    enforced.wait(200)
    assert "enforced" not in enforced.service.status("42")[1], "it has ended"


def test_the_status_has_the_penalty_of_an_address_without_a_user() -> None:
    enforced = Enforced()
    enforced.apply("ip:192.0.2.1")
    code, _, content = enforced.service.grpc("Status", wire.request({"ip": "192.0.2.1"}))
    assert (code, 6 in wire.fields(content)) == (OK, True)


def test_requests_on_an_allow_list_of_the_rules_pass() -> None:
    enforced = Enforced()
    allow = [{"id": "vip", "user": "42"}, {"id": "health", "endpoint": "/api/health"}]
    enforced.service.use({**API, "allow": allow})
    enforced.apply("user:42", "user:43")
    enforced.apply("user:44", action=Action.THROTTLE)
    assert enforced.answer(userId="42")["rule"] == "vip"
    assert enforced.answer(userId="43", endpoint="/api/health")["rule"] == "health"
    assert enforced.answer(userId="43")["rule"] == "anomaly:block"
    assert enforced.answer(userId="44", endpoint="/api/health")["allowed"]
    assert enforced.service.native.stats()["blocked"] == 1
    assert enforced.service.native.stats()["throttled"] == 0
    status = enforced.service.status("42")[1]
    assert (status["list"]["name"], "enforced" in status) == ("vip", False)
    assert enforced.service.status("43")[1]["enforced"]["action"] == "block"
    enforced.service.use(API)
    assert enforced.is_blocked("42"), "off the list, the block goes on until its end"


def test_a_block_list_does_not_end_a_block() -> None:
    enforced = Enforced()
    enforced.service.use({**API, "block": [{"id": "abuse", "user": "42"}]})
    enforced.apply("user:42")
    assert enforced.is_blocked("42")


def test_no_more_callers_than_the_bound_have_a_penalty(caplog: pytest.LogCaptureFixture) -> None:
    enforced = Enforced(most=2, seconds=60)
    enforced.apply("user:1", "user:2", "user:3", "user:4")
    enforced.apply("user:2", action=Action.BLOCK)
    assert (enforced.callers(), enforced.enforcement.left_out) == (["user:1", "user:2"], 2)
    assert "2 anomalies are not enforced" in caplog.text
    assert not enforced.is_blocked("3")
    enforced.wait(61)
    enforced.apply("user:3")
    assert enforced.callers() == ["user:3"], "those that ended make room"


def test_the_begin_and_end_of_a_penalty_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    enforced = Enforced(seconds=60)
    enforced.apply("user:42", action=Action.THROTTLE)
    enforced.apply("user:42", action=Action.THROTTLE)
    enforced.apply("user:42")
    enforced.wait(61)
    enforced.apply()
    enforced.apply("user:43")
    enforced.enforcement.unlock("user:43")
    assert [record.getMessage() for record in caplog.records] == [
        "anomaly: 'user:42' is throttled for 60 s: 900 requests, 12 are usual",
        "anomaly: 'user:42' is blocked for 60 s: 900 requests, 12 are usual",
        "anomaly: 'user:42' is no longer blocked",
        "anomaly: 'user:43' is blocked for 60 s: 900 requests, 12 are usual",
        "anomaly: 'user:43' was unlocked and is no longer blocked",
    ]


def test_an_unlocked_caller_is_accepted_at_once() -> None:
    enforced = Enforced(seconds=60)
    enforced.apply("user:42", "user:43")
    unlocked = enforced.enforcement.unlock("user:42")
    assert unlocked is not None
    assert (unlocked.caller, unlocked.action, round(unlocked.left)) == ("user:42", Action.BLOCK, 60)
    assert not enforced.is_blocked("42")
    assert enforced.is_blocked("43")
    assert enforced.enforcement.unlock("user:42") is None
    assert enforced.enforcement.take_unlocked() == ["user:42"]
    enforced.wait(61)
    assert enforced.enforcement.unlock("user:43") is None, "it has ended"


def test_a_caller_can_be_unlocked_after_another_penalty_has_ended() -> None:
    enforced = Enforced(seconds=60)
    enforced.apply("user:42")
    enforced.wait(30)
    enforced.apply("user:43", "user:44")
    enforced.wait(31)
    assert enforced.enforcement.unlock("user:43") is not None
    assert [user for user in ("42", "43", "44") if enforced.is_blocked(user)] == ["44"]


@pytest.mark.parametrize("seconds", [0.1, 86_400])
def test_the_shortest_and_the_longest_penalty_end_on_time(seconds: float) -> None:
    enforced = Enforced(seconds=seconds)
    enforced.wait(0.3)
    enforced.apply("user:42")
    assert enforced.is_blocked("42")
    enforced.wait(seconds + 0.001)
    assert not enforced.is_blocked("42")


def watched(enforced: Enforced) -> AnomalyWatch:
    return AnomalyWatch(AnomalyDetector(interval=60), None, enforcement=enforced.enforcement)


def minutes(watch: AnomalyWatch, first: int, counts: list[int]) -> None:
    """Counts of one user, beside others who are steady."""
    for minute, count in enumerate(counts, first):
        of_all = {"42": count, **{f"other {i}": 28 + i % 5 for i in range(25)}}
        rows = [Row(user, "/api/x", None, None, None, n, 0, 0, 0, n) for user, n in of_all.items()]
        watch(Recorded(minute * 60.0, rows))


def test_a_flood_is_blocked_while_it_lasts_and_not_after_it_was_unlocked() -> None:
    enforced = Enforced(seconds=90)
    watch = watched(enforced)
    minutes(watch, 0, [30] * 20 + [900] * 3)
    assert not enforced.is_blocked("42")
    minutes(watch, 23, [900])
    assert enforced.is_blocked("42"), "three of five intervals were high"
    enforced.wait(60)
    minutes(watch, 24, [900])
    enforced.wait(60)
    assert enforced.is_blocked("42"), "the verdict of the next interval prolongs it"
    enforced.enforcement.unlock("user:42")
    minutes(watch, 25, [900] * 20)
    assert not enforced.is_blocked("42"), "what a caller does who was let in is accepted"


def test_without_enforcement_anomalies_change_no_decision() -> None:
    enforced = Enforced()
    watch = AnomalyWatch(AnomalyDetector(interval=60), None)
    minutes(watch, 0, [30] * 20 + [900] * 5)
    assert watch.found == 1
    assert enforced.answer(userId="42")["allowed"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("anyone", "block", 1.0), "expected user:NAME or ip:ADDRESS"),
        (("user:", "block", 1.0), "expected user:NAME or ip:ADDRESS"),
        (("key:1", "block", 1.0), "expected user:NAME or ip:ADDRESS"),
        (("user:1", "monitor", 1.0), "expected throttle or block"),
        (("user:1", "block", 0.0), "expected more than 0"),
        (("user:1", "block", float("nan")), "expected more than 0"),
        (("user:1", "block", 86401.0), "at most 86400"),
    ],
)
def test_malformed_rows_of_penalties_are_refused(row: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        _native.Penalties([(*row, "why")])


def test_envoy_s_service_records_and_enforces_like_checks() -> None:
    enforced = Enforced(seconds=60)
    tree = _native.DescriptorTree()
    tree.add_descriptor(tree.add_domain("edge"), "user", limits=["2/day"], name="per-user")
    native = _native.EnvoyService(
        enforced.service.limiter.storage._native(),
        _core.native_clock(enforced.service.clock),
        recorder=enforced.recorder,
    )
    native.use(tree)

    def ask(user: str) -> Any:
        entries = [{"key": "path", "value": "/a"}, {"key": "user", "value": user}]
        descriptors = [{"entries": [entry]} for entry in entries]
        body = json.dumps({"domain": "edge", "descriptors": descriptors})
        status, _, content = call(native, "POST", "/json", body=body.encode())
        return status, json.loads(content)["statuses"][1]

    assert [ask("42")[0] for _ in range(3)] == [200, 200, 429]
    assert sorted(enforced.recorder.drain(), key=repr) == [
        ("42", "/a", None, "per-user", None, 0, 1, 0, 0, 0),
        ("42", "/a", None, None, None, 2, 0, 0, 0, 2),
    ]
    enforcement = Enforcement([enforced.service.native, native], seconds=60)
    enforcement.apply([anomaly("user:43")])
    status, descriptor = ask("43")
    assert (status, descriptor["currentLimit"]["name"]) == (429, "anomaly:block")
    assert descriptor["durationUntilReset"].endswith("s")
    assert native.stats()["blocked"] == 1
    assert enforced.is_blocked("43")
    enforcement.unlock("user:43")
    assert ask("43")[0] == 200


def test_addresses_without_a_user_have_their_own_rows() -> None:
    enforced = Enforced()
    for last in (1, 2, 1):
        enforced.answer(ip=f"192.0.2.{last}")
    counts = {row[4]: row[5] for row in enforced.recorder.drain()}
    assert counts == {"192.0.2.1": 2, "192.0.2.2": 1}
