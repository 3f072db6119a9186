"""Rules from tables: the meaning of each column, and messages about bad rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
import tidegate as tg
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from rule_database import RuleDatabase
from tidegate.rules import RulesError, RuleSet
from tidegate.rules.sql import SqlRules, metadata, read_rules, upgrade


def limiter_of(database: RuleDatabase) -> tg.Limiter:
    return tg.Limiter(rules=read_rules(database.url), clock=tg.ManualClock(0))


def problems_of(database: RuleDatabase) -> str:
    try:
        error = RulesError([*read_rules(database.url).skipped])
    except RulesError as refused:
        error = refused
    assert error.problems
    assert database.url.partition("://")[2].rpartition("/")[2] in str(error)
    return str(error)


def test_simple_rows_are_a_rule_with_limits_by_tier(database: RuleDatabase) -> None:
    for tier, count in (("free", 10), ("premium", 1000)):
        database.add(
            "rate_limit_rules",
            tier=tier,
            endpoint_pattern="/api/*",
            limit_count=count,
            window_seconds=60,
        )
    limiter = limiter_of(database)
    free = limiter.check(user="1", tier="free", endpoint="/api/posts")
    assert (free.rule, free.limit) == ("endpoint:/api/*", 10)
    assert limiter.check(user="2", tier="premium", endpoint="/api/posts").limit == 1000
    assert limiter.check(user="3", tier="premium", endpoint="/other").rule is None


def test_tables_and_a_document_with_the_same_fields_are_equal(database: RuleDatabase) -> None:
    database.add("rate_limit_settings", name="tiers", value='["free", "premium"]')
    database.add("rate_limit_settings", name="default_tier", value='"free"')
    database.add("rate_limit_settings", name="algorithm", value='"sliding-window"')
    database.add("rate_limit_settings", name="default", value='{"by": "ip", "limits": "5/hour"}')
    database.add_rule(
        "posts",
        "10/second; 100/hour",
        endpoint_pattern="/posts",
        endpoints=["/posts/{id}"],
        count_by="user+endpoint",
        methods=["POST"],
        networks=["10.0.0.0/8"],
        conditions={"tenant": "acme"},
        algorithm="fixed-window",
        counts="requests",
        counter="shared",
        description="for those who post",
    )
    database.add_rule("all", "5/second", count_by="global", replaces=["posts"], shadow=True)
    database.add_rule("off", "1/second", enabled=False)
    database.add_rule("kept", "9/second", count_by="tenant", reserve='"20%"', carry_over="reset")
    database.add_rule("parts", "9/second", count_by="ip", reserve={"background": "50%"})
    database.add("operation_costs", endpoint="/posts", method="DELETE", cost=10)
    database.add("operation_costs", endpoint="/pay", priority="critical")
    database.add("operation_costs", endpoint="/export", cost=2, priority="background")
    database.add("operation_costs", endpoint="/chat", cost=500, usage={"input": 1, "cached": 0.1})
    database.add("rate_limit_lists", list="block", name="bad", networks=["192.0.2.0/24"])
    database.add("rate_limit_lists", list="allow", conditions={"user": "root"}, reason="ours")
    document = {
        "tiers": ["free", "premium"],
        "default_tier": "free",
        "algorithm": "sliding-window",
        "default": {"by": "ip", "limits": "5/hour"},
        "rules": [
            {
                "id": "posts",
                "by": "user+endpoint",
                "limits": ["10/second; 100/hour"],
                "endpoints": ["/posts", "/posts/{id}"],
                "methods": "POST",
                "networks": "10.0.0.0/8",
                "when": {"tenant": "acme"},
                "algorithm": "fixed-window",
                "counts": "requests",
                "counter": "shared",
                "description": "for those who post",
            },
            {
                "id": "all",
                "by": "global",
                "limits": ["5/second"],
                "replaces": "posts",
                "shadow": True,
            },
            {"id": "off", "by": "user", "limits": ["1/second"], "enabled": False},
            {
                "id": "kept",
                "by": "tenant",
                "limits": ["9/second"],
                "reserve": "20%",
                "carry_over": "reset",
            },
            {
                "id": "parts",
                "by": "ip",
                "limits": ["9/second"],
                "reserve": {"background": "50%"},
            },
        ],
        "costs": [
            {"endpoint": "/posts", "method": "DELETE", "cost": 10},
            {"endpoint": "/pay", "priority": "critical"},
            {"endpoint": "/export", "cost": 2, "priority": "background"},
            {"endpoint": "/chat", "cost": {"estimate": 500, "usage": {"input": 1, "cached": 0.1}}},
        ],
        "block": [{"id": "bad", "network": "192.0.2.0/24"}],
        "allow": [{"user": "root", "reason": "ours"}],
    }
    assert read_rules(database.url).digest == RuleSet(document).digest


def test_custom_limits_of_a_user_are_overrides(database: RuleDatabase) -> None:
    database.add_rule("api", "10/minute")
    database.add("user_tiers", user_id="42", tier="free", custom_limits={"api": "500/minute"})
    database.add(
        "user_tiers",
        user_id="43",
        tier="free",
        custom_limits={
            "api": {"limits": "7/minute", "until": "1970-01-02T00:00:00Z", "reason": "trial"}
        },
    )
    database.add("user_tiers", user_id="44", tier="free")
    rules = read_rules(database.url)
    assert rules.overrides == 2
    clock = tg.ManualClock(0)
    limiter = tg.Limiter(rules=rules, clock=clock)
    assert [limiter.check(user=user).limit for user in ("42", "43", "44")] == [500, 7, 10]
    clock.advance(86400)
    assert limiter.check(user="43").limit == 10, "the custom limit has ended"


def test_an_override_is_in_force_until_it_expires(database: RuleDatabase) -> None:
    database.add_rule("api", "10/minute")
    zone = "+00" if "postgres" in database.url else ""
    database.add_override("20/minute", expires_at=f"1970-01-02 00:00:00{zone}")
    clock = tg.ManualClock(0)
    limiter = tg.Limiter(rules=read_rules(database.url), clock=clock)
    assert limiter.check(user="42").limit == 20
    clock.advance(86400)
    assert limiter.check(user="42").limit == 10


def test_several_rows_of_a_rule_and_tier_are_several_limits(database: RuleDatabase) -> None:
    for count, seconds in ((2, 1), (3, 60)):
        database.add(
            "rate_limit_rules", rule_id="api", limit_count=count, window_seconds=seconds,
            burst_capacity=count + 5,
        )  # fmt: skip
    outcomes = limiter_of(database).check(user="1").outcomes
    assert [(outcome.limit, outcome.remaining) for outcome in outcomes] == [(7, 6), (8, 7)]


@pytest.mark.parametrize(
    ("table", "columns", "said"),
    [
        (
            "rate_limit_rules",
            {"rule_id": "api", "limits": "7 bananas"},
            "rate_limit_rules row 2: limits: cannot read the limit '7 bananas'",
        ),
        ("rate_limit_rules", {"rule_id": "api"}, "rate_limit_rules row 2: limits: is missing"),
        (
            "rate_limit_rules",
            {"rule_id": "api", "limits": "1/s", "limit_count": 5},
            "rate_limit_rules row 2: limits: is given with limit_count; expected one of them",
        ),
        (
            "rate_limit_rules",
            {"rule_id": "a b", "limits": "1/s"},
            "rate_limit_rules row 2: rule_id: the id is 'a b'; expected 1 to 100 printable",
        ),
        (
            "rate_limit_rules",
            {"rule_id": "good", "limits": "1/s", "count_by": "ip"},
            "rate_limit_rules row 2: count_by: is 'ip'; expected 'user', as in row 1 of the same "
            "rule 'good'",
        ),
        (
            "rate_limit_rules",
            {"rule_id": "api", "limits": "1/s", "methods": [5]},
            "rate_limit_rules row 2: methods[0]: is 5; expected",
        ),
        (
            "rate_limit_rules",
            {"rule_id": "api", "limits": "1/s", "reserve": '"lots"'},
            "rate_limit_rules row 2: reserve: is 'lots'; expected a share",
        ),
        (
            "rate_limit_rules",
            {"rule_id": "api", "limits": "1/s", "carry_over": "half"},
            "rate_limit_rules row 2: carry_over: is 'half'; expected",
        ),
        (
            "rate_limit_rules",
            {"rule_id": "good", "limits": "1/s", "carry_over": "reset"},
            "rate_limit_rules row 2: carry_over: is 'reset'; expected 'as-is', as in row 1",
        ),
        ("operation_costs", {"endpoint": "/x"}, "operation_costs row 1: has no cost and no prio"),
        (
            "operation_costs",
            {"endpoint": "/x", "priority": "high"},
            "operation_costs row 1: priority: is 'high'; expected",
        ),
        ("rate_limit_settings", {"name": "colour", "value": '"red"'}, "row 'colour': name: is no"),
        ("rate_limit_lists", {"list": "grey"}, "rate_limit_lists row 1: list: is 'grey'; expected"),
        ("operation_costs", {"cost": 0}, "operation_costs row 1: cost: is 0; expected"),
        (
            "rate_limit_overrides",
            {"rule_id": "none", "key": '"42"', "limits": "1/s"},
            "rate_limit_overrides row 1",
        ),
        (
            "user_tiers",
            {"user_id": "42", "tier": "free", "custom_limits": ["1/s"]},
            "user_tiers row '42': custom_limits: is ['1/s']; expected an object",
        ),
        (
            "user_tiers",
            {"user_id": "42", "tier": "free", "custom_limits": {"good": "soon"}},
            "user_tiers row '42': custom_limits: limits: cannot read the limit 'soon'",
        ),
    ],
)
def test_a_bad_row_is_named(
    database: RuleDatabase, table: str, columns: dict[str, object], said: str
) -> None:
    database.add_rule("good", "1/second")
    database.add(table, **columns)
    assert said in problems_of(database)


@pytest.mark.parametrize(
    ("expires_at", "is_there"),
    [("infinity", True), ("9999-12-31 23:59:59+00", True), ("1066-10-14 12:00:00+00", False)],
)
def test_an_infinite_end_never_comes_and_an_ancient_one_has_passed(
    database: RuleDatabase, expires_at: str, is_there: bool
) -> None:
    database.add_rule("api", "10/minute")
    database.add_override("20/minute", expires_at=expires_at)
    assert limiter_of(database).check(user="42").limit == (20 if is_there else 10)


@pytest.mark.parametrize(
    ("expires_at", "is_there"), [("-infinity", False), ("20000-01-01 00:00:00+00", True)]
)
def test_times_beyond_pythons_range_are_read_from_postgresql(
    postgres: RuleDatabase, expires_at: str, is_there: bool
) -> None:
    test_an_infinite_end_never_comes_and_an_ancient_one_has_passed(postgres, expires_at, is_there)


@pytest.mark.parametrize(
    ("table", "columns", "said"),
    [
        (
            "rate_limit_rules",
            {"rule_id": "api", "limits": "1/s", "methods": '["GET"'},
            "rate_limit_rules row 2: methods: is '[\"GET\"', which is not JSON",
        ),
        (
            "rate_limit_settings",
            {"name": "default_tier", "value": "free"},
            "rate_limit_settings row 'default_tier': value: is 'free', which is not JSON",
        ),
        ("operation_costs", {"cost": 1, "tiers": "[" * 10_000}, "operation_costs row 1: tiers: is"),
    ],
)
def test_an_unreadable_row_of_sqlite_is_refused_and_named(
    sqlite: RuleDatabase, table: str, columns: dict[str, object], said: str
) -> None:
    sqlite.add_rule("good", "1/second")
    with SqlRules(sqlite.url) as source:
        good = source.current
        sqlite.add(table, **columns)
        assert said in problems_of(sqlite)
        source.refresh()
        assert (source.refused, source.failures) == (1, 0)
        assert said in str(source.last_error)
        assert source.current is good


@pytest.mark.parametrize(
    ("table", "columns", "said"),
    [
        (
            "rate_limit_overrides",
            {"rule_id": "good", "key": "{", "limits": "1/s"},
            "rate_limit_overrides row 1: key: is '{', which is not JSON",
        ),
        (
            "rate_limit_overrides",
            {"rule_id": "good", "key": '"1"', "limits": "1/s", "expires_at": "soon"},
            "rate_limit_overrides row 1: expires_at: is 'soon'; expected a time in UTC",
        ),
        (
            "user_tiers",
            {"user_id": "42", "tier": "free", "custom_limits": "{'api'}"},
            "user_tiers row '42': custom_limits: is \"{'api'}\", which is not JSON",
        ),
    ],
)
def test_an_unreadable_row_of_one_user_is_skipped_and_named(
    sqlite: RuleDatabase, table: str, columns: dict[str, object], said: str
) -> None:
    sqlite.add_rule("good", "1/second")
    with SqlRules(sqlite.url) as source:
        sqlite.add(table, **columns)
        sqlite.add_rule("later", "2/second", endpoint_pattern="/later")
        source.refresh()
        assert (source.refused, source.failures) == (0, 0)
        assert [rule.id for rule in source.current.rules] == ["good", "later"]
        (problem,) = source.current.skipped
        assert said in str(problem)


def test_a_database_without_tables_says_how_to_make_them(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(tg.StorageError, match=r"no such table.*tidegate rules migrate"):
        read_rules(f"sqlite:///{tmp_path}/empty.db")


@pytest.mark.parametrize("url", ["nonsense", "mysqlite://x", 5])
def test_invalid_urls_are_refused(url: object) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected"):
        read_rules(url)  # type: ignore[arg-type]


def test_a_missing_sqlite_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(tg.StorageError, match=r"there is no file.*expected"):
        read_rules(f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []


def test_migrations_make_the_tables_of_the_schema(database: RuleDatabase) -> None:
    upgrade(database.url)  # once more does nothing
    engine = sa.create_engine(database.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "include_name": lambda name, kind, _: name != "tidegate_version",
            },
        )
        assert compare_metadata(context, metadata) == []
    engine.dispose()
