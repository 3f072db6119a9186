"""Limiters with rules: the limits that a request is charged, and the decisions."""

from __future__ import annotations

import asyncio
import copy
import pickle
from functools import partial
from typing import Any

import pytest
import tidegate as tg
from tidegate.rules import Rule, RuleSet, Tiers

API = {
    "tiers": ["free", "premium", "enterprise"],
    "default_tier": "free",
    "rules": [
        {
            "id": "api",
            "by": "user",
            "endpoint": "/api/*",
            "limits": {
                "free": "2/minute",
                "premium": ["5/minute", "7/hour"],
                "enterprise": "unlimited",
            },
        },
        {"id": "ceiling", "by": "global", "limit": "10/minute"},
    ],
}


def limiter_of(document: Any, **options: Any) -> Any:
    options.setdefault("clock", tg.ManualClock(0))
    return tg.Limiter(rules=RuleSet(document), **options)


def test_a_rule_counts_each_user_by_their_tier() -> None:
    limiter = limiter_of(API)
    ask = {"user": "42", "endpoint": "/api/posts"}
    assert [bool(limiter.check(**ask)) for _ in range(3)] == [True, True, False]
    refusal = limiter.check(**ask)
    assert (refusal.rule, refusal.limit, refusal.retry_after) == ("api", 2, 30.0)
    premium = [limiter.check(user="43", tier="premium", endpoint="/api/posts") for _ in range(6)]
    assert [bool(decision) for decision in premium] == [True] * 5 + [False]
    assert [outcome.limit for outcome in premium[0].outcomes] == [5, 7, 10]


def test_usage_stays_when_a_users_tier_changes() -> None:
    limiter = limiter_of(API)
    for _ in range(2):
        assert limiter.check(user="42", endpoint="/api/posts")
    assert not limiter.check(user="42", endpoint="/api/posts")
    upgraded = limiter.check(user="42", tier="premium", endpoint="/api/posts")
    assert upgraded.outcomes[0].remaining == 2


def test_an_unknown_tier_is_the_default_tier() -> None:
    limiter = limiter_of(API)
    for tier in (None, "gold", "", b"\xff"):
        assert limiter.check(user="42", tier=tier, endpoint="/api/posts").limit in (2, 10)


def test_an_unlimited_tier_is_charged_by_the_other_rules_only() -> None:
    limiter = limiter_of(API)
    decision = limiter.check(user="1", tier="enterprise", endpoint="/api/posts")
    assert [outcome.rule for outcome in decision.outcomes] == ["ceiling"]
    alone = limiter_of({"rules": [{"id": "free", "by": "user", "limit": "unlimited"}]})
    decision = alone.check(user="1")
    assert decision.allowed
    assert (decision.rule, decision.outcomes) == ("free", ())


def test_a_refused_request_charges_none_of_its_rules() -> None:
    limiter = limiter_of(API)
    for _ in range(2):
        limiter.check(user="42", endpoint="/api/posts")
    for _ in range(20):
        assert not limiter.check(user="42", endpoint="/api/posts")
    assert limiter.peek(user="43", endpoint="/api/posts").outcomes[1].remaining == 8


def test_a_request_without_rules_is_allowed_and_its_decision_names_none() -> None:
    limiter = limiter_of({"rules": [{"id": "a", "by": "user", "limit": "1/minute"}]})
    decision = limiter.check(ip="203.0.113.9")
    assert decision.allowed
    assert decision.rule is None
    assert decision.outcomes == ()
    assert "rule=None" in repr(decision)
    copy = pickle.loads(pickle.dumps(limiter.check(user="1")))
    assert copy.rule == "a"


def test_the_default_applies_where_no_rule_does() -> None:
    limiter = limiter_of(
        {
            "rules": [{"id": "a", "by": "user", "limit": "5/minute"}],
            "default": {"by": "ip", "limit": "1/minute"},
        }
    )
    assert limiter.check(user="1", ip="203.0.113.9").rule == "a"
    assert limiter.check(ip="203.0.113.9").rule == "default"
    assert not limiter.check(ip="203.0.113.9")


def test_the_most_specific_rule_of_a_dimension_wins_and_dimensions_add_up() -> None:
    limiter = limiter_of(
        {
            "rules": [
                {"id": "all", "by": "user", "limit": "100/minute"},
                {"id": "search", "by": "user", "endpoint": "/search", "limit": "5/minute"},
                {"id": "deep", "by": "user", "endpoint": "/**", "limit": "50/minute"},
                {"id": "address", "by": "ip", "limit": "70/minute"},
            ]
        }
    )

    def rules(**attributes: str) -> list[str | None]:
        return [outcome.rule for outcome in limiter.check(**attributes).outcomes]

    assert rules(user="1", ip="::1", endpoint="/search") == ["search", "address"]
    assert rules(user="1", ip="::1", endpoint="//search/") == ["search", "address"]
    assert rules(user="1", ip="::1", endpoint="/other") == ["deep", "address"]
    assert rules(user="1", ip="::1") == ["all", "address"]
    assert rules(endpoint="/search") == []


def test_a_rule_replaces_others_by_name() -> None:
    limiter = limiter_of(
        {
            "rules": [
                {"id": "address", "by": "ip", "limit": "70/minute"},
                {"id": "user", "by": "user", "limit": "5/minute", "replaces": "address"},
            ]
        }
    )
    assert [o.rule for o in limiter.check(user="1", ip="::1").outcomes] == ["user"]
    assert [o.rule for o in limiter.check(ip="::1").outcomes] == ["address"]


def test_costs_of_operations_are_charged_and_multiplied() -> None:
    limiter = limiter_of(
        {
            "rules": [
                {"id": "budget", "by": "user", "limit": "100/minute"},
                {"id": "calls", "by": "user", "limit": "100/minute", "counts": "requests"},
            ],
            "costs": [
                {"method": ["POST", "PUT"], "cost": 5},
                {"method": "DELETE", "cost": 10},
                {"method": "POST", "endpoint": "/report", "cost": 40},
            ],
        }
    )

    def left(method: str, endpoint: str = "/x", cost: int = 1) -> list[int]:
        decision = limiter.check(user="1", method=method, endpoint=endpoint, cost=cost)
        return [outcome.remaining for outcome in decision.outcomes]

    assert left("GET") == [99, 99]
    assert left("POST") == [94, 98]
    assert left("delete") == [84, 97]
    assert left("POST", "/report") == [44, 96]
    assert left("PUT", cost=3) == [29, 95]


def test_lists_allow_and_refuse_whatever_the_rules_say() -> None:
    limiter = limiter_of(
        {
            "rules": [{"id": "a", "by": "global", "limit": "1/hour"}],
            "allow": [{"network": "10.0.0.0/8"}, {"user": "health"}],
            "block": [
                {"user": "mallory", "id": "abuse"},
                {"network": ["10.6.6.0/24", "2001:db8::/32"]},
            ],
        }
    )
    for _ in range(3):
        assert limiter.check(ip="10.1.2.3").rule == "allow[0]"
        assert limiter.check(user="health")
    blocked = limiter.check(user="mallory", ip="10.1.2.3")
    assert (blocked.allowed, blocked.rule, blocked.retry_after) == (False, "abuse", float("inf"))
    assert not limiter.check(ip="10.6.6.6"), "the smaller network counts"
    assert not limiter.check(ip="2001:db8::1")
    assert limiter.check(ip="no address").rule == "a"


def test_an_override_holds_for_one_key_until_it_ends() -> None:
    clock = tg.ManualClock(0)
    limiter = limiter_of(
        {
            "rules": [
                {"id": "api", "by": "user", "limit": "2/minute"},
                {"id": "pair", "by": "user+tenant", "limit": "3/minute"},
            ],
            "overrides": [
                {
                    "rule": "api",
                    "key": "vip",
                    "limit": "100/minute",
                    "until": "1970-01-01T00:10:00Z",
                    "reason": "contract 7",
                },
                {"rule": "pair", "key": {"tenant": "t", "user": "vip"}, "limit": "unlimited"},
            ],
        },
        clock=clock,
    )
    assert limiter.check(user="vip").limit == 100
    assert limiter.check(user="other").limit == 2
    assert limiter.check(user="vip", tenant="t").limit == 100
    assert limiter.check(user="vip", tenant="u").outcomes[1].limit == 3
    assert "contract 7" in limiter.explain(user="vip")[0].why
    clock.advance(600)
    assert limiter.check(user="vip").limit == 2


def test_names_in_a_path_share_a_key_and_other_parts_do_not() -> None:
    limiter = limiter_of(
        {
            "rules": [
                {
                    "id": "each",
                    "by": "user+endpoint",
                    "endpoint": ["/users/{id}/posts", "/api/*"],
                    "limit": "1/minute",
                }
            ]
        }
    )
    assert limiter.check(user="1", endpoint="/users/7/posts")
    assert not limiter.check(user="1", endpoint="/users/8/posts"), "a client chooses the id"
    assert limiter.check(user="1", endpoint="/api/a")
    assert limiter.check(user="1", endpoint="/api/b")
    assert not limiter.check(user="1", endpoint="/api//b/"), "the same endpoint"


def test_values_with_separators_make_different_keys() -> None:
    limiter = limiter_of({"rules": [{"id": "r", "by": "user+tenant", "limit": "1/minute"}]})
    assert limiter.check(user="a|b", tenant="c")
    assert limiter.check(user="a", tenant="b|c")
    assert limiter.check(user="a\\", tenant="|b|c")
    assert not limiter.check(user="a|b", tenant="c")


def test_a_refund_gives_back_by_the_rules_that_charged() -> None:
    limiter = limiter_of(API)
    ask = {"user": "42", "endpoint": "/api/posts"}
    first = limiter.check(**ask)
    assert limiter.check(**ask)
    limiter.use(RuleSet({"rules": [{"id": "other", "by": "user", "limit": "1/minute"}]}))
    limiter.refund(decision=first, **ask)
    limiter.use(RuleSet(API))
    assert limiter.check(**ask)
    assert not limiter.check(**ask)
    limiter.reset(**ask)
    assert limiter.check(**ask)


def test_usage_stays_when_a_number_changes() -> None:
    def rules(count: int) -> RuleSet:
        return RuleSet({"rules": [{"id": "r", "by": "user", "limit": f"{count}/hour"}]})

    limiter = tg.Limiter(rules=rules(3), clock=tg.ManualClock(0))
    for _ in range(3):
        assert limiter.check(user="1")
    assert not limiter.check(user="1")
    limiter.use(rules(5))
    assert limiter.check(user="1").remaining == 1, "a raised limit helps at once"
    limiter.use(rules(2))
    assert not limiter.check(user="1"), "a lowered limit binds at once"
    assert limiter.rule_stats()["r"].allowed == 4


def test_a_rule_in_shadow_counts_and_refuses_nothing() -> None:
    limiter = limiter_of(
        {
            "rules": [
                {"id": "trial", "by": "user", "limit": "1/minute", "shadow": True},
                {"id": "real", "by": "global", "limit": "9/minute"},
            ]
        }
    )
    decisions = [limiter.check(user="1") for _ in range(3)]
    assert all(decisions)
    assert [decision.outcomes[0].allowed for decision in decisions] == [True, False, False]
    assert limiter.rule_stats()["trial"].refused_in_shadow == 2
    assert limiter.stats().denied_in_shadow == 2
    assert limiter.rule_stats()["real"].allowed == 3


def test_rules_of_one_counter_count_together() -> None:
    limiter = limiter_of(
        {
            "rules": [
                {"id": "a", "by": "user", "endpoint": "/a", "limit": "2/hour", "counter": "both"},
                {"id": "b", "by": "user", "endpoint": "/b", "limit": "2/hour", "counter": "both"},
            ]
        }
    )
    assert limiter.check(user="1", endpoint="/a")
    assert limiter.check(user="1", endpoint="/b")
    assert not limiter.check(user="1", endpoint="/a")


def test_check_async_decides_as_check_does() -> None:
    limiter = limiter_of(API)

    async def ask() -> list[bool]:
        ask = {"user": "42", "endpoint": "/api/posts"}
        allowed = [bool(await limiter.check_async(**ask)) for _ in range(3)]
        assert not await limiter.peek_async(**ask)
        await limiter.reset_async(**ask)
        allowed.append(bool(await limiter.check_async(**ask)))
        return allowed

    assert asyncio.run(ask()) == [True, True, False, True]


def test_tiers_come_from_a_table_or_from_a_function_called_once_per_ttl() -> None:
    limiter = limiter_of(API, tiers=Tiers({"42": "premium"}))
    assert limiter.check(user="42", endpoint="/api/posts").limit == 5
    assert limiter.check(user="42", tier="free", endpoint="/api/posts").limit == 2

    now = 0.0
    asked: list[str] = []

    def lookup(user: str) -> str:
        asked.append(user)
        if user == "broken":
            raise RuntimeError("the database is away")
        return "premium"

    tiers = Tiers(lookup, ttl=60, capacity=2, clock=lambda: now)
    limiter = limiter_of(API, tiers=tiers)
    for user in ("1", "1", "broken", "broken"):
        limiter.check(user=user, endpoint="/api/posts")
    assert asked == ["1", "broken"]
    assert tiers.failures == 1
    now = 61.0
    limiter.check(user="1", endpoint="/api/posts")
    assert asked == ["1", "broken", "1"]


def test_rules_can_be_made_in_code() -> None:
    rules = RuleSet([Rule(id="api", by="user", limits="1/minute")])
    limiter = tg.Limiter(rules, clock=tg.ManualClock(0))
    assert limiter.check(user="1")
    assert not limiter.check(user="1")
    assert limiter.rules is rules


def test_limiters_of_the_same_storage_count_together() -> None:
    first = limiter_of(API)
    second = tg.Limiter(rules=first.rules, storage=first.storage, clock=tg.ManualClock(0))
    for limiter in (first, second):
        assert limiter.check(user="1", endpoint="/api/x")
    assert not first.check(user="1", endpoint="/api/x")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.check(user=42), "attribute user is 42.*expected str, bytes or None"),
        (lambda x: x.check("42"), "by position; expected names"),
        (lambda x: x.check(user="1", cost=0), "cost"),
        (lambda x: x.use({"rules": []}), "expected a RuleSet"),
        (lambda x: x.refund(user="1", decision=1), "expected a Decision"),
        (lambda x: tg.Limiter("1/s", rules=x.rules), "with rules; expected one of them"),
        (lambda x: tg.Limiter(rules="rules.yaml"), "expected a RuleSet"),
        (lambda x: tg.Limiter(rules=x.rules, algorithm="gcra"), "expected it in the rules"),
        (lambda x: tg.Limiter("1/s", tiers=Tiers({})), "without rules"),
        (lambda x: tg.Limiter(rules=x.rules, tiers={"1": "free"}), "expected .*Tiers"),
    ],
)
def test_mistakes_say_what_was_given_and_what_is_expected(call: Any, message: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=message):
        call(limiter_of(API))


def test_a_closed_limiter_raises() -> None:
    with limiter_of(API) as limiter:
        pass
    with pytest.raises(tg.LimiterClosedError):
        limiter.check(user="1")


def test_the_error_names_the_rule_that_the_storage_does_not_support(tmp_path: Any) -> None:
    rules = RuleSet(
        {"rules": [{"id": "log", "by": "user", "limit": "50000/day", "algorithm": "sliding-log"}]}
    )
    with pytest.raises(tg.ConfigurationError, match="rule 'log'"):
        tg.Limiter(rules=rules, storage=f"shm://{tmp_path}/counts?capacity=1000")


def test_explain_gives_each_rule_its_own_state_in_any_order_of_rules() -> None:
    limiter = limiter_of(
        {
            "rules": [
                {"id": "all", "by": "global", "limits": ["5/minute", "500/hour"]},
                {"id": "mine", "by": "user", "endpoint": "/x", "limit": "3/minute"},
                {"id": "address", "by": "ip", "limit": "unlimited"},
            ]
        }
    )
    request = {"user": "1", "ip": "::1", "endpoint": "/x"}
    limiter.check(**request)
    states = {
        each.rule: [(state.limit, state.remaining) for state in each.states if state is not None]
        for each in limiter.explain(**request)
    }
    assert states == {"all": [(5, 4), (500, 499)], "mine": [(3, 2)], "address": []}


def test_an_override_may_end_later_than_nanoseconds_can_express() -> None:
    override = {"rule": "a", "key": "z", "limit": "2/minute", "until": "9999-12-31T23:59:59Z"}
    limiter = limiter_of(
        {"rules": [{"id": "a", "by": "user", "limit": "1/minute"}], "overrides": [override]}
    )
    assert limiter.check(user="z").limit == 2


def test_head_counts_as_get_unless_a_rule_names_it() -> None:
    rules = [{"id": "a", "by": "ip", "method": "GET", "limit": "2/hour"}]
    limiter = limiter_of({"rules": rules, "costs": [{"method": "GET", "cost": 2}]})
    assert limiter.check(ip="::1", method="HEAD")
    assert not limiter.check(ip="::1", method="GET")
    limiter = limiter_of(
        {"rules": [*rules, {"id": "b", "by": "ip", "method": "head", "limit": "9/hour"}]}
    )
    assert limiter.check(ip="::1", method="HEAD").rule == "b"


def test_ipv6_clients_are_counted_by_network_and_listed_by_address() -> None:
    limiter = limiter_of(
        {
            "rules": [{"id": "a", "by": "ip", "limit": "1/hour"}],
            "overrides": [{"rule": "a", "key": "2001:db8:0:1::9", "limit": "3/hour"}],
            "block": [{"ip": "2001:db8::1"}],
            "allow": [{"ip": "::1"}],
        }
    )
    assert limiter.check(ip="2001:db8::2").limit == 1
    assert not limiter.check(ip="2001:db8::3"), "one client has all addresses of a /64"
    assert limiter.check(ip="2001:db8:0:1::7").limit == 3
    assert limiter.check(ip="2001:db8::1").rule == "block[0]"
    assert limiter.check(ip="::1").rule == "allow[0]"
    assert limiter.check(ip="203.0.113.9")
    assert not limiter.check(ip="::ffff:203.0.113.9"), "the same address"


def test_a_refund_reaches_the_override_that_was_charged_after_its_end() -> None:
    clock = tg.ManualClock(0)
    limiter = limiter_of(
        {
            "algorithm": "fixed-window",
            "rules": [{"id": "a", "by": "user", "limit": "5/hour"}],
            "overrides": [
                {"rule": "a", "key": "1", "limit": "9/day", "until": "1970-01-01T00:00:30Z"}
            ],
        },
        clock=clock,
    )
    hits = [limiter.check(user="1") for _ in range(5)]
    clock.advance(30)
    assert sum(bool(limiter.check(user="1")) for _ in range(9)) == 5
    for hit in hits:
        limiter.refund(user="1", decision=hit)
    assert not limiter.check(user="1")


def test_a_closed_limiter_refuses_new_rules() -> None:
    limiter = limiter_of(API)
    limiter.close()
    with pytest.raises(tg.LimiterClosedError):
        limiter.use(limiter.rules)


def test_a_rule_in_shadow_with_several_limits_counts_a_request_once() -> None:
    rule = {"id": "r", "by": "user", "limits": ["3/hour", "4/day"], "shadow": True}
    limiter = tg.Limiter(rules=RuleSet({"rules": [rule]}), clock=tg.ManualClock(10**18))
    for _ in range(6):
        assert limiter.check(user="1")
    assert limiter.rule_stats()["r"].refused_in_shadow == 3
    assert limiter.stats().denied_in_shadow == 3


def test_an_attribute_name_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(tg.ConfigurationError, match=r"an attribute is named '\\ud800'"):
        limiter_of(API).check(**{"\ud800": "x"})


def test_a_tier_that_is_a_slip_is_said_once(caplog: Any) -> None:
    rules = RuleSet(
        {"rules": [{"id": "a", "by": "user", "limits": {"premium": "9/hour", "*": "1/hour"}}]}
    )
    found = {"1": "Premium", "2": "premium ", "3": "premuim", "4": "basic", "5": "premium"}
    limiter = tg.Limiter(rules=rules, tiers=Tiers(found))
    for _ in range(2):
        limits = [limiter.check(user=user).limit for user in found]
    assert limits == [1, 1, 1, 1, 9]
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(",")[0] for text in said] == [
        "a request was given the tier 'Premium'",
        "a request was given the tier 'premium '",
        "a request was given the tier 'premuim'",
    ]
    assert all("did you mean 'premium'?" in text for text in said)


def test_tiers_refuse_what_would_have_to_be_awaited() -> None:
    class Lookup:
        async def __call__(self, user: str) -> str:
            return user

    async def lookup(user: str) -> str:
        return user

    for each in (Lookup(), lookup, partial(lookup), Lookup().__call__):
        with pytest.raises(tg.ConfigurationError, match="which is async; expected a mapping"):
            Tiers(each)  # type: ignore[arg-type]


def test_a_rule_set_says_what_to_do_in_the_place_of_pickling_it() -> None:
    rules = RuleSet({"rules": [{"id": "a", "by": "user", "limit": "1/hour"}]})
    with pytest.raises(TypeError, match=r"a RuleSet cannot be pickled.*expected RuleSet\.load"):
        pickle.dumps(rules)
    assert copy.copy(rules) is rules
    assert copy.deepcopy({"rules": rules})["rules"] is rules


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 1, 0), (0, 2, 1)])
def test_overrides_beside_one_that_is_unlimited_hold(order: tuple[int, ...]) -> None:
    overrides = [
        {"rule": "a", "key": "0", "limits": "unlimited"},
        {"rule": "a", "key": "1", "limits": "3/hour"},
        {"rule": "a", "key": "2", "limits": "3/minute"},
    ]
    rules = [{"id": "a", "by": "user", "limits": "10/hour"}]
    limiter = tg.Limiter(
        rules=RuleSet({"rules": rules, "overrides": [overrides[i] for i in order]})
    )
    found = [limiter.check(user=user).outcomes for user in "012"]
    assert [[outcome._limit.period for outcome in each] for each in found] == [[], [3600], [60]]
    assert [[outcome.limit for outcome in each] for each in found] == [[], [3], [3]]
