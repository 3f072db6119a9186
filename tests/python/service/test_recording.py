"""The recent decisions that the service keeps."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate.server.recording import Recorded, Recording, Row, caller_of


class Recorder:
    """A recorder that returns the rows that it was given."""

    def __init__(self, *seconds: list[Row]) -> None:
        self._seconds = list(seconds)

    def drain(self) -> list[Any]:
        return [tuple(row) for row in self._seconds.pop(0)]


def row(user: int, allowed: int = 1, refused: int = 0) -> Row:
    return Row(f"u{user}", "/a", None, None, None, allowed, refused, 0, 0, allowed)


def sums(rows: list[Row]) -> list[int]:
    return [sum(column) for column in zip(*(each[5:] for each in rows))]


def test_listeners_get_all_rows_and_recent_keeps_the_foremost() -> None:
    rows = [row(user) for user in range(5_000)]
    rows[17] = row(17, allowed=2, refused=40)
    rows[4_000] = row(4_000, allowed=300)
    rows.append(Row(None, "(other)", None, None, None, 70, 7, 3, 2, 71))
    heard: list[Recorded] = []
    recording = Recording(Recorder(rows), [heard.append], clock=lambda: 1.0)
    recording.take()
    assert heard == [Recorded(1.0, rows)]
    [recorded] = recording.recent()
    assert len(recorded.rows) <= 201
    assert [each.user for each in recorded.rows[:2]] == ["u17", "u4000"]
    assert [each.is_rest for each in recorded.rows].count(True) == 1
    assert sums(recorded.rows) == sums(rows)


def test_the_tier_of_the_last_request_of_a_user_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.server.recording._KEPT_TIERS", 2)

    def of(user: int, tier: str | None) -> Row:
        return row(user)._replace(tier=tier)

    seconds = [of(1, "free"), of(2, "pro")], [of(1, "pro")], [of(3, "free"), of(1, None)]
    recording = Recording(Recorder(*seconds), [], clock=lambda: 1.0)
    assert recording.tier_of("u1") is None
    found = []
    for _ in seconds:
        recording.take()
        found.append([recording.tier_of(f"u{user}") for user in (1, 2, 3)])
    assert found == [["free", "pro", None], ["pro", "pro", None], ["pro", None, "free"]]


def test_few_rows_are_kept_unchanged() -> None:
    rows = [row(user) for user in range(3)]
    recording = Recording(Recorder(rows), [], clock=lambda: 1.0)
    recording.take()
    assert recording.recent() == [Recorded(1.0, rows)]


def test_a_user_who_is_called_as_an_address_is_not_taken_for_that_address() -> None:
    """Else anybody could have an address blocked by taking it for a name."""
    named = Row("203.0.113.9", "/a", None, None, "198.51.100.1", 900, 0, 0, 0, 900)
    address = Row(None, "/a", None, None, "203.0.113.9", 3, 0, 0, 0, 3)
    heard: list[Recorded] = []
    recording = Recording(Recorder([named, address, named]), [heard.append], clock=lambda: 1.0)
    recording.take()
    [recorded] = heard
    assert {caller_of(each): each.allowed for each in recorded.rows} == {
        "user:203.0.113.9": 1800,
        "ip:203.0.113.9": 3,
    }


def test_an_endpoint_that_is_called_other_is_not_taken_for_the_rest() -> None:
    assert not Row(None, "(other)", None, None, "203.0.113.9", 1, 0, 0, 0, 1).is_rest
    assert Row(None, "(other)", None, None, None, 1, 0, 0, 0, 1).is_rest
