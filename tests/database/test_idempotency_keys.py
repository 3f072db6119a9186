"""Keys of requests that are done once, on each kind of database."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa
from rule_database import RuleDatabase
from tidegate.rules.sql.connection import engine_of
from tidegate.server.records.audit import Actor
from tidegate.server.records.idempotency_keys import KEPT_FOR, KnownRequest, OnceKey

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)
ADA = Actor("token:1:ada", "operator", None)


def test_a_request_is_known_from_its_beginning_until_it_is_forgotten(
    database: RuleDatabase,
) -> None:
    once = OnceKey(ADA, "k", "asked")
    with engine_of(database.url).begin() as connection:
        assert once.known(connection, NOW) is None
        once.begin(connection, NOW)
        assert once.known(connection, NOW) == KnownRequest(is_same=True, answer=None)
        once.end(connection, {"id": 1})
        assert once.known(connection, NOW) == KnownRequest(is_same=True, answer={"id": 1})
        other = OnceKey(ADA, "k", "asked for more")
        assert other.known(connection, NOW) == KnownRequest(is_same=False, answer={"id": 1})
        assert (
            OnceKey(ADA._replace(name="token:2:bob"), "k", "asked").known(connection, NOW) is None
        )
        assert once.known(connection, NOW + KEPT_FOR) is None
        once.forget(connection)
        assert once.known(connection, NOW) is None


def test_of_two_that_begin_one_fails(database: RuleDatabase) -> None:
    engine = engine_of(database.url)
    with engine.begin() as connection:
        OnceKey(ADA, "k", "asked").begin(connection, NOW)
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        OnceKey(ADA, "k", "asked").begin(connection, NOW + KEPT_FOR - dt.timedelta(seconds=1))
    with engine.begin() as connection:
        OnceKey(ADA, "k", "asked").begin(connection, NOW + KEPT_FOR)


def test_parts_of_a_key_are_not_confused(database: RuleDatabase) -> None:
    with engine_of(database.url).begin() as connection:
        OnceKey(ADA, "bk", "asked").begin(connection, NOW)
        shifted = OnceKey(ADA._replace(name=f"{ADA.name}b"), "k", "asked")
        assert shifted.known(connection, NOW) is None
