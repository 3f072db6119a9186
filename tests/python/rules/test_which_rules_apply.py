"""Which rules apply to a request: dimensions, quotas, shadow, `also`, methods, lists and times."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate import Limiter, ManualClock
from tidegate.rules import RulesError, RuleSet


def limiter(**document: Any) -> Any:
    return Limiter(rules=RuleSet(document), clock=ManualClock())


def applying(of: Any, **attributes: str) -> set[str | None]:
    return {outcome.rule for outcome in of.check(**attributes).outcomes}


API = {"id": "api", "by": "user", "endpoint": "/api/**", "limit": "5/minute"}
ALL = {"id": "all", "by": "user", "limit": "100/minute"}


def test_a_quota_is_charged_beside_the_rule_of_an_endpoint() -> None:
    monthly = {"id": "monthly", "by": "user", "limit": "quota 3/month"}
    made = limiter(rules=[API, ALL, monthly])
    asked = [bool(made.check(user="1", endpoint="/api/a")) for _ in range(4)]
    assert asked == [True, True, True, False]
    assert made.check(user="1", endpoint="/api/a").rule == "monthly"
    assert applying(made, user="2", endpoint="/api/a") == {"api", "monthly"}


@pytest.mark.parametrize("tiers", [{"free": "quota 9/month", "*": "9/day"}])
def test_a_rule_with_a_quota_for_one_tier_is_a_quota_for_all(tiers: Any) -> None:
    made = limiter(rules=[API, {"id": "monthly", "by": "user", "limits": tiers}])
    assert applying(made, user="1", endpoint="/api/a", tier="free") == {"api", "monthly"}
    assert applying(made, user="1", endpoint="/api/a", tier="other") == {"api", "monthly"}


def test_a_rule_in_shadow_hides_no_rule_and_is_hidden_by_none() -> None:
    trial = {"id": "trial", "by": "user", "limit": "1/minute", "shadow": True}
    made = limiter(rules=[API, trial, {**trial, "id": "narrow", "endpoint": "/api/a"}])
    assert applying(made, user="1", endpoint="/api/a") == {"api", "narrow"}
    assert applying(made, user="1", endpoint="/api/b") == {"api", "trial"}


def test_a_rule_in_shadow_leaves_the_default_in_force() -> None:
    trial = {"id": "trial", "by": "ip", "limit": "9/minute", "shadow": True}
    made = limiter(rules=[trial], default="2/minute")
    assert [bool(made.check(ip="192.0.2.1")) for _ in range(3)] == [True, True, False]


def test_replaces_has_no_effect_between_shadow_and_enforced_rules() -> None:
    a = {"id": "a", "by": "ip", "limit": "1/minute"}
    b = {"id": "b", "by": "user", "limit": "9/minute", "replaces": "a"}
    request = {"ip": "192.0.2.1", "user": "1"}
    assert applying(limiter(rules=[a, b]), **request) == {"b"}
    assert applying(limiter(rules=[a, {**b, "shadow": True}]), **request) == {"a", "b"}
    assert applying(limiter(rules=[{**a, "shadow": True}, b]), **request) == {"a", "b"}


def test_also_adds_to_the_rules_of_its_dimension() -> None:
    files = {"id": "files", "by": "user", "endpoint": "/files/**", "limit": "2/second"}
    made = limiter(rules=[ALL, {**files, "also": True}])
    assert applying(made, user="1", endpoint="/files/a") == {"all", "files"}
    narrow = {"id": "narrow", "by": "user", "endpoint": "/files/a", "limit": "7/second"}
    made = limiter(rules=[ALL, {**files, "also": True}, narrow])
    assert applying(made, user="1", endpoint="/files/a") == {"files", "narrow"}
    assert applying(limiter(rules=[ALL, files]), user="1", endpoint="/files/a") == {"files"}


def test_also_leaves_the_default_in_force() -> None:
    more = {"id": "more", "by": "user", "limit": "9/minute", "also": True}
    assert applying(limiter(rules=[more], default="5/minute"), user="1") == {"more", "default"}


def test_two_equal_rules_with_also_are_accepted() -> None:
    assert applying(limiter(rules=[ALL, {**ALL, "id": "b", "also": True}]), user="1") == {
        "all",
        "b",
    }


@pytest.mark.parametrize(
    "more",
    [
        {"id": "b", "by": "user", "limit": "1/day", "also": True, "replaces": "all"},
        {"id": "b", "by": "ip", "limit": "1/day", "replaces": "c"},
    ],
)
def test_also_and_replaces_exclude_each_other(more: Any) -> None:
    with pytest.raises(RulesError, match="also"):
        RuleSet({"rules": [ALL, {**ALL, "id": "c", "also": True}, more]})


@pytest.mark.parametrize(
    "field",
    [
        {"counts": "requests"},
        {"shadow": True},
        {"also": True},
        {"limit": ["quota 9/day", "100/minute"]},
        {"limit": "quota 9/day"},  # an override may give it a limit of the other rule's
    ],
)
def test_one_count_is_not_charged_twice_by_one_request(field: Any) -> None:
    narrow = {**API, "counter": "one", **field}
    for rules in ([{**ALL, "counter": "one"}, narrow], [narrow, {**ALL, "id": "one"}]):
        names = f"'{rules[0]['id']}' and '{rules[1]['id']}' have the counter 'one'"
        with pytest.raises(RulesError, match=f"{names}.* might be charged by both"):
            RuleSet({"rules": rules})
    narrow["counter"] = "default"
    with pytest.raises(RulesError, match="'api' and 'default' have the counter 'default'"):
        RuleSet({"rules": [narrow], "default": {"by": "user", "limit": "100/minute"}})


def test_the_id_of_a_rule_may_be_the_counter_of_another_that_is_alike() -> None:
    made = limiter(rules=[{**ALL, "limit": "5/minute"}, {**API, "counter": "all"}])
    assert made.check(user="1", endpoint="/api/a").remaining == 4
    assert made.check(user="1", endpoint="/b").remaining == 3


def test_head_is_counted_as_get_wherever_another_rule_names_head() -> None:
    login = {"id": "login", "by": "ip", "endpoint": "/login", "method": "GET", "limit": "1/hour"}
    other = {"id": "other", "by": "ip", "endpoint": "/x", "methods": ["GET", "HEAD"]}
    made = limiter(
        rules=[login, {**other, "limit": "9/hour"}],
        costs=[{"endpoint": "/y", "method": "HEAD", "cost": 1}],
    )
    head = {"ip": "192.0.2.1", "endpoint": "/login", "method": "HEAD"}
    assert made.check(**head)
    assert not made.check(**head)
    assert made.check(**head).rule == "login"
    assert [each.why for each in made.explain(**head) if each.rule == "other"] == [
        "the endpoint is '/login', not /x"
    ]


def test_a_rule_that_names_head_is_more_specific_than_one_that_names_get() -> None:
    get = {"id": "get", "by": "ip", "endpoint": "/a", "method": "GET", "limit": "1/hour"}
    for rules in ([get, {**get, "id": "head", "method": "HEAD"}],):
        for order in (rules, rules[::-1]):
            made = limiter(rules=order)
            assert applying(made, ip="192.0.2.1", endpoint="/a", method="head") == {"head"}
            assert applying(made, ip="192.0.2.1", endpoint="/a", method="GET") == {"get"}


def test_lists_mix_attributes_and_name_the_first_entry() -> None:
    made = limiter(
        rules=[],
        allow=[{"user": "ann"}],
        block=[{"user": "mallory"}, {"api_key": "leaked"}, {"user": "mallory", "id": "again"}],
    )
    assert made.check(user="mallory", api_key="leaked").rule == "block[0]"
    assert made.check(user="ann", api_key="leaked").rule == "block[1]"
    assert made.check(user="mallory", api_key="other").rule == "block[0]"
    assert made.check(user="ann", api_key="other")


def test_an_entry_of_a_list_has_a_beginning_and_an_end() -> None:
    clock = ManualClock()
    entry = {"user": "mallory", "from": "1970-01-02", "until": "1970-01-03T00:00:00Z"}
    made = Limiter(rules=RuleSet({"rules": [], "block": [entry]}), clock=clock)
    told = []
    for _ in range(4):
        told.append(bool(made.check(user="mallory")))
        clock.advance(86_400)
    assert told == [True, False, True, True]


def test_an_override_has_a_beginning_and_a_successor() -> None:
    clock = ManualClock()
    rule = {"id": "a", "by": "user", "limit": "1/minute"}
    overrides = [
        {"rule": "a", "key": "1", "limit": "2/minute", "until": "1970-01-02"},
        {"rule": "a", "key": "1", "limit": "9/minute"},
        {"rule": "a", "key": "1", "limit": "5/minute", "from": "1970-01-03", "until": "1970-01-04"},
        {"rule": "a", "key": "2", "limit": "7/minute", "from": "1970-01-02"},
    ]
    made = Limiter(rules=RuleSet({"rules": [rule], "overrides": overrides}), clock=clock)
    told = []
    for _ in range(4):
        told.append((made.peek(user="1").limit, made.peek(user="2").limit))
        clock.advance(86_400)
    assert told == [(2, 1), (9, 7), (5, 7), (9, 7)]
    with pytest.raises(RulesError, match="another override of the key '1' for the same time"):
        RuleSet({"rules": [rule], "overrides": [overrides[1], {**overrides[1], "reason": "x"}]})
    with pytest.raises(RulesError, match="until: is not after `from`"):
        RuleSet({"rules": [rule], "overrides": [{**overrides[2], "until": "1970-01-02"}]})


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("::/0", "2001:db8::1", "192.0.2.1"),
        ("::/80", "::5", "192.0.2.1"),
        ("0.0.0.0/0", "192.0.2.1", "2001:db8::1"),
        ("::ffff:192.0.2.0/120", "192.0.2.1", "2001:db8::1"),
        ("192.0.2.0/24", "64:ff9b::192.0.2.1", "64:ff9b::198.51.100.1"),
    ],
)
def test_networks_of_one_family_hold_no_address_of_the_other(
    network: str, inside: str, outside: str
) -> None:
    made = limiter(rules=[], block=[{"ip": network}])
    assert not made.check(ip=inside)
    assert made.check(ip=outside)


def test_clients_of_nat64_are_counted_by_their_ipv4_address() -> None:
    made = limiter(rules=[{"id": "a", "by": "ip", "limit": "1/hour"}])
    assert made.check(ip="64:ff9b::192.0.2.1")
    assert made.check(ip="64:ff9b::192.0.2.2")
    assert not made.check(ip="192.0.2.1")
    with pytest.raises(RulesError, match="expected the network of IPv4 behind it"):
        RuleSet({"rules": [], "block": [{"ip": "64:ff9b::/96"}]})


def test_load_scales_rates_and_neither_quotas_nor_counts_of_requests() -> None:
    rules = [
        {"id": "rate", "by": "user", "limit": "100/minute"},
        {"id": "paid", "by": "user", "limit": "quota 100/month"},
        {"id": "requests", "by": "user", "limit": "100/hour", "counts": "requests"},
    ]
    made = limiter(rules=rules)
    for priority in ("critical", "normal", "background"):
        made._set_load_factor(priority, 0.5)
    left = {each.rule: each.remaining for each in made.check(user="1").outcomes}
    assert left == {"rate": 98, "paid": 99, "requests": 99}


def test_slashes_make_no_other_key_of_an_override() -> None:
    by = {"id": "r", "by": "user+endpoint", "limit": "3/second"}
    key = {"user": "1", "endpoint": "/a//b/"}
    made = limiter(rules=[by], overrides=[{"rule": "r", "key": key, "limit": "5/second"}])
    assert [made.check(user="1", endpoint=path).limit for path in ("/a/b", "//a/b", "/a")] == [
        5,
        5,
        3,
    ]


def test_a_rule_by_tier_counts_requests_without_a_tier_under_the_default_tier() -> None:
    rules = [{"id": "r", "by": "tier", "limits": {"gold": "9/second"}}]
    made = limiter(rules=rules, default_tier="gold")
    left = [made.check(**tier).remaining for tier in ({}, {"tier": "odd"}, {"tier": "gold"})]
    assert left == [8, 7, 6]
    made.reset()
    assert made.check(tier="odd").remaining == 8
    narrow = {**rules[0], "id": "n", "endpoint": "/n"}
    explained = limiter(rules=[*rules, narrow], default_tier="gold").explain(endpoint="/n")
    assert explained[0].why == ("the rule 'n' is more specific and counts by the same attributes")


def test_a_default_with_limits_by_tier_is_for_these_tiers() -> None:
    made = limiter(rules=[], default={"limits": {"pro": "4/second"}})
    assert made.check(tier="pro").rule == "default"
    assert made.check().rule is None
    assert "for some tiers only" in made.explain()[0].why


def test_a_disabled_rule_may_look_at_an_attribute_that_is_not_declared() -> None:
    rule = {"id": "r", "by": "tenant", "when": {"plan": "x"}, "limit": "3/second"}
    made = limiter(attributes=["user"], rules=[ALL, {**rule, "enabled": False}])
    assert applying(made, user="1", tenant="t", plan="x") == {"all"}
    with pytest.raises(RulesError, match="'tenant' is not in `attributes`"):
        RuleSet({"attributes": ["user"], "rules": [ALL, rule]})


def test_a_rule_in_shadow_tries_each_of_its_limits_and_is_named_where_no_other_applies() -> None:
    made = limiter(rules=[{"id": "r", "limit": ["1/second", "3/hour"], "shadow": True}])
    assert made.peek().remaining == 1, "peek looks before the charge"
    decisions = [made.check() for _ in range(2)]
    assert [decision.rule for decision in decisions] == ["r", "r"]
    assert [outcome.remaining for outcome in decisions[1].outcomes] == [0, 1]
