"""The tiers of users, from the table user_tiers."""

from __future__ import annotations

import os
import threading

import pytest
import tidegate as tg
from polling import eventually
from postgres_server import PostgresServer
from rule_database import RuleDatabase
from tidegate.rules import RuleSet
from tidegate.rules.sql import SqlTiers

RULES = RuleSet(
    {
        "default_tier": "free",
        "rules": [
            {"id": "api", "by": "user", "limits": {"free": "2/minute", "premium": "5/minute"}}
        ],
    }
)


def test_a_user_has_the_tier_of_the_table_after_the_first_lookup(database: RuleDatabase) -> None:
    database.add("user_tiers", user_id="42", tier="premium")
    with SqlTiers(database.url) as tiers:
        limiter = tg.Limiter(rules=RULES, tiers=tiers, clock=tg.ManualClock(0))
        assert limiter.check(user="42").limit in (2, 5), "the first request does not wait"
        eventually(lambda: limiter.peek(user="42").limit == 5)
        assert limiter.peek(user="43").limit == 2
        assert limiter.peek(user="42", tier="free").limit == 2, "what the request says counts"
        assert limiter.peek(ip="192.0.2.1").rule is None


def test_a_changed_tier_is_seen_after_the_ttl_and_not_before(
    database: RuleDatabase,
) -> None:
    now = 0.0
    database.add("user_tiers", user_id="42", tier="premium")
    with SqlTiers(database.url, ttl=60, clock=lambda: now) as tiers:
        eventually(lambda: tiers.of({"user": "42"}) == "premium")
        database.run("UPDATE user_tiers SET tier = 'free'")
        assert tiers.of({"user": "42"}) == "premium"
        now = 61.0
        assert tiers.of({"user": "42"}) == "premium", "nobody waits"
        eventually(lambda: tiers.of({"user": "42"}) == "free")
        database.run("UPDATE user_tiers SET tier = 'premium'")
        tiers.forget("42")
        eventually(lambda: tiers.of({"user": "42"}) == "premium")


@pytest.mark.parametrize("forgotten", ["42", None])
def test_a_lookup_that_began_before_a_change_is_made_again(
    sqlite: RuleDatabase, forgotten: str | None
) -> None:
    sqlite.add("user_tiers", user_id="42", tier="premium")
    with SqlTiers(sqlite.url) as tiers:
        look_up = tiers._look_up
        answers = []
        looked_up, changed = threading.Event(), threading.Event()

        def look_up_slowly(values: list[str]) -> dict[str, str]:
            answers.append(look_up(values))
            looked_up.set()
            assert changed.wait(30)
            return answers[-1]

        tiers._look_up = look_up_slowly  # type: ignore[method-assign]
        assert tiers.of({"user": "42"}) is None
        assert looked_up.wait(30)
        sqlite.run("UPDATE user_tiers SET tier = 'free'")
        tiers.forget(forgotten)
        changed.set()
        eventually(lambda: tiers.of({"user": "42"}) == "free")
        assert answers == [{"42": "premium"}, {"42": "free"}]


def test_users_looked_up_longest_ago_are_forgotten(sqlite: RuleDatabase) -> None:
    for user in range(10):
        sqlite.add("user_tiers", user_id=str(user), tier="premium")
    with SqlTiers(sqlite.url, capacity=3) as tiers:
        for user in range(10):
            eventually(lambda user=user: tiers.of({"user": str(user)}) == "premium")
        assert list(tiers._known) == ["7", "8", "9"]


@pytest.mark.parametrize("user", ["\0", "\ud800", "x" * 300, b"\xff\xfe", "'; DROP TABLE x;--"])
def test_user_names_cannot_inject_sql(database: RuleDatabase, user: str | bytes) -> None:
    database.add("user_tiers", user_id="42", tier="premium")
    with SqlTiers(database.url) as tiers:
        assert tiers.of({"user": user}) is None
        eventually(lambda: tiers.of({"user": "42"}) == "premium")
        assert tiers.failures == 0


def test_a_database_that_is_down_changes_no_tier(own_postgres: PostgresServer) -> None:
    now = 0.0
    url = own_postgres.url("postgres")
    with own_postgres.connect("postgres") as connection:
        RuleDatabase(url, connection).add("user_tiers", user_id="42", tier="premium")
    with SqlTiers(url, timeout=2, clock=lambda: now) as tiers:
        eventually(lambda: tiers.of({"user": "42"}) == "premium")
        own_postgres.kill()
        now = 1000.0
        for user in ("42", "43"):
            tiers.of({"user": user})
        eventually(lambda: tiers.failures > 0)
        assert tiers.of({"user": "42"}) == "premium"
        assert tiers.of({"user": "43"}) is None
        own_postgres.start()
        with own_postgres.connect("postgres") as connection:
            RuleDatabase(url, connection).add("user_tiers", user_id="43", tier="premium")
        now = 2000.0
        eventually(lambda: tiers.of({"user": "43"}) == "premium", 60)


def test_a_child_of_fork_looks_up_too(database: RuleDatabase) -> None:
    database.add("user_tiers", user_id="42", tier="premium")
    database.add("user_tiers", user_id="43", tier="premium")
    with SqlTiers(database.url) as tiers:
        eventually(lambda: tiers.of({"user": "42"}) == "premium")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                eventually(lambda: tiers.of({"user": "43"}) == "premium")
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        eventually(lambda: tiers.of({"user": "43"}) == "premium")
        assert tiers.failures == 0
