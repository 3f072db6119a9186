"""The table of tiers, and the recorder of decisions."""

from __future__ import annotations

from typing import Any

import pytest
from check_service import Service
from tidegate import ArgumentTypeError, ConfigurationError
from tidegate.server import _native


def table_of(count: int) -> Any:
    builder = _native.TiersBuilder()
    builder.add((f"user-{i}", f"tier-{i % 3}") for i in range(count))
    return builder.finish()


def test_every_user_of_a_table_is_found_and_no_other() -> None:
    table = table_of(10_000)
    assert len(table) == 10_000
    assert all(table.of(f"user-{i}") == f"tier-{i % 3}" for i in range(10_000))
    assert all(table.of(f"other-{i}") is None for i in range(10_000))
    assert table.of("") is None
    assert table.bytes / len(table) <= 10.1


def test_the_last_tier_of_a_user_counts() -> None:
    builder = _native.TiersBuilder()
    builder.add([("1", "a"), (b"1", "b")])
    builder.add({"1": "c"})
    table = builder.finish()
    assert (len(table), table.of("1")) == (1, "c")


def test_an_empty_table_has_no_tiers() -> None:
    assert table_of(0).of("1") is None


def test_malformed_rows_of_tiers_are_refused() -> None:
    for wrong in (["ab"], [("1", 2)], [(1, "a")], [("1", "a", "b")]):
        with pytest.raises(ArgumentTypeError, match="expected"):
            _native.TiersBuilder().add(wrong)
    with pytest.raises(ConfigurationError, match="more than 255 tiers"):
        _native.TiersBuilder().add((str(i), f"t{i}") for i in range(256))


def test_the_tier_of_the_request_overrides_that_of_the_table() -> None:
    service = Service()
    service.native.set_tiers({"42": "premium"})
    ask = {"userId": "42", "endpoint": "/api/x"}
    assert service.check(ask)[2]["limit"] == 5
    assert service.check({**ask, "tier": "free"})[2]["limit"] == 2
    assert service.check({**ask, "userId": "43"})[2]["limit"] == 2
    service.native.set_tiers(table_of(3))
    assert service.check(ask)[2]["limit"] == 2
    service.native.set_tiers(None)
    assert service.check(ask)[2]["limit"] == 2


def drained(recorder: Any) -> list[tuple[Any, ...]]:
    return sorted(recorder.drain(), key=repr)


def test_decisions_are_summed_by_user_endpoint_and_rule() -> None:
    recorder = _native.Recorder()
    service = Service(recorder=recorder)
    ask = {"userId": "42", "endpoint": "/api/x", "ip": "192.0.2.1", "tier": "free"}
    for _ in range(5):
        service.check(ask)
    assert len(recorder) == 2
    assert drained(recorder) == [
        ("42", "/api/x", "free", "api", "192.0.2.1", 0, 3, 0, 0, 0),
        ("42", "/api/x", "free", None, "192.0.2.1", 2, 0, 0, 0, 2),
    ]
    assert drained(recorder) == []


def test_a_refusal_in_shadow_has_a_row_of_its_rule() -> None:
    recorder = _native.Recorder()
    rules = {"rules": [{"id": "trial", "by": "user", "limit": "1/day", "shadow": True}]}
    service = Service(rules, recorder=recorder)
    for _ in range(3):
        assert service.check({"userId": "42"})[2]["allowed"]
    assert drained(recorder) == [
        ("42", None, None, "trial", None, 0, 0, 2, 0, 0),
        ("42", None, None, None, None, 3, 0, 0, 0, 3),
    ]


def test_peeks_and_statuses_are_not_recorded() -> None:
    recorder = _native.Recorder()
    service = Service(recorder=recorder)
    service.ask("Peek", attributes={"user": "42"})
    service.status("42")
    assert drained(recorder) == []


def test_callers_with_only_a_key_are_recorded_by_a_digest() -> None:
    recorder = _native.Recorder()
    service = Service(recorder=recorder)
    service.check({"apiKey": "secret"})
    (row,) = drained(recorder)
    assert row[0] == "key:sha256-2bb80d537b1da3e3"
    assert "secret" not in repr(row)


def test_texts_of_any_bytes_are_recorded_as_text() -> None:
    recorder = _native.Recorder()
    service = Service(recorder=recorder)
    service.ask(attributes={"user": b"\xff\x00", "endpoint": b"x" * 1000})
    (row,) = drained(recorder)
    assert row[:2] == ("\\xff\x00", "x" * 255)


def test_known_users_have_rows_beside_any_number_of_invented_ones() -> None:
    recorder = _native.Recorder(capacity=8)
    service = Service({"rules": []}, recorder=recorder)
    recorder.set_known(["a", "b", "c"])
    for i in range(20):
        service.check({"userId": str(i)})
    for user in "abcab":
        service.check({"userId": user})
    rows = {row[0]: row[5] for row in recorder.drain()}
    # A fourth more than the capacity.
    assert {user: n for user, n in rows.items() if user in ("a", "b", "c")} == {"a": 2, "b": 2}
    assert (len(rows), rows[None], recorder.dropped) == (8 + 2 + 1, 12 + 1, 12 + 1)
    recorder.set_known([])
    for i in range(9):
        service.check({"userId": f"{i}"})
    service.check({"userId": "a"})
    assert "a" not in {row[0] for row in recorder.drain()}


def test_decisions_without_a_free_row_are_summed() -> None:
    recorder = _native.Recorder(capacity=3)
    service = Service({"rules": []}, recorder=recorder)
    for i in range(10):
        service.check({"userId": str(i)})
    rows = recorder.drain()
    assert recorder.dropped == 7
    assert rows[-1] == (None, "(other)", None, None, None, 7, 0, 0, 0, 7)
    assert sum(row[5] for row in rows) == 10


def test_a_recorder_without_room_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected 1 or more rows"):
        _native.Recorder(capacity=0)
