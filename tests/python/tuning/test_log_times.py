"""The times in logs: how they are written, and whether they are the begin or end of a request."""

from __future__ import annotations

import io
from datetime import datetime, timezone

import numpy as np
import pytest
from tidegate import tuning
from tidegate.limiter.errors import ConfigurationError

NOON_NS = 1_769_861_100 * 10**9  # 2026-01-31T12:05:00Z


def read(lines: list[str], **options):
    text = "".join(f"{line}\n" for line in lines)
    return tuning.read_log(io.BytesIO(text.encode()), **options)


def times(*texts: str, **options) -> list[int]:
    return read(["time,ip", *(f'"{text}",192.0.2.1' for text in texts)], **options).times.tolist()


def noted(log, *words: str) -> bool:
    return any(all(word in note for word in words) for note in log.notes)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-01-31T12:05:00Z", NOON_NS),
        ("2026-01-31T13:05:00+01:00", NOON_NS),
        ("2026-01-31T13:05:00+0100", NOON_NS),
        ("2026-01-31 13:05:00.000000001 +01", NOON_NS + 1),
        ("2026-01-31T12:05Z", NOON_NS),
        ("2026/01/31 12:05:00,25Z", NOON_NS + 250_000_000),
        ("31/Jan/2026:07:05:00 -0500", NOON_NS),
        ("[31/Jan/2026:17:35:00 +0530]", NOON_NS),
        ("1769861100", NOON_NS),
        ("1769861100.123456789", NOON_NS + 123_456_789),
        ("1769861100000", NOON_NS),
        ("1769861100000.5", NOON_NS + 500_000),
        ("1769861100000001", NOON_NS + 1_000),
        ("1769861100000000001", NOON_NS + 1),
        ("2024-02-29T23:59:60Z", 1_709_251_200 * 10**9),
    ],
)
def test_an_instant_is_read(text: str, ns: int) -> None:
    assert times(text) == [ns]


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-29T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "31/Feb/2026:07:05:00 -0500",
        "31/Foo/2026:07:05:00 -0500",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00+01:00",
        "2300-01-01T00:00:00Z",
        "99999999999999999999",
        "12",
        "-1769861100",
        "1.7e9",
        "yesterday",
        "",
    ],
)
def test_an_invalid_time_is_a_bad_line(text: str) -> None:
    log = read(["time,ip", f'"{text}",1', *["2026-01-31T12:05:00Z,1"] * 2], format="csv")
    assert (len(log), log.bad) == (2, 1)
    assert log.bad_lines[0].line == 2
    assert log.bad_lines[0].reason.startswith("the line has ")


def test_a_time_in_another_unit_than_before_is_a_bad_line() -> None:
    log = read(["time,ip", "1769861100,1", "1769861100,1", "1769861100000,1"])
    assert log.times.tolist() == [NOON_NS] * 2
    assert log.bad == 1
    assert noted(log, "taken as seconds")


@pytest.mark.parametrize(("unit", "ns"), [("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)])
def test_small_numbers_are_read_in_a_named_unit(unit: str, ns: int) -> None:
    assert times("0", "12", "3600", time_unit=unit) == [0, 12 * ns, 3600 * ns]


def test_small_numbers_without_a_named_unit_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match="time_unit="):
        times("0", "12", "3600")


def test_several_zones_are_converted_and_noted() -> None:
    log = read(["time,ip", "2026-01-31T13:05:00+01:00,1", "2026-01-31T12:05:00Z,1"])
    assert log.times.tolist() == [NOON_NS] * 2
    assert noted(log, "several zones")


def test_times_without_a_zone_are_utc_and_noted() -> None:
    log = read(["time,ip", "2026-01-31T12:05:00,1"])
    assert log.times.tolist() == [NOON_NS]
    assert noted(log, "no zone", "UTC")


def test_times_without_a_zone_are_in_the_named_zone() -> None:
    assert times("2026-01-31T13:05:00", "2026-07-31T14:05:00", time_zone="Europe/Berlin") == [
        NOON_NS,
        NOON_NS + 181 * 86_400 * 10**9,
    ]
    assert times("2026-01-31T17:35:00", time_zone="+05:30") == [NOON_NS]
    with pytest.raises(ConfigurationError, match="time_zone is 'Mars'; expected"):
        times("2026-01-31T17:35:00", time_zone="Mars")


def test_a_time_without_a_zone_among_those_with_one_is_a_bad_line() -> None:
    log = read(["time,ip", *["2026-01-31T12:05:00Z,1"] * 2, "2026-01-31T12:05:00,1"])
    assert (len(log), log.bad) == (2, 1)


LINE = '{ip} - - [31/Jan/2026:12:05:{second:02} +0000] "GET /{path} HTTP/1.1" 200 1 "-" "x" {rt}'


def test_requests_of_one_second_stay_in_the_order_of_the_file() -> None:
    lines = [LINE.format(ip=i, second=i // 7, path=i, rt="") for i in range(60)]
    log = read([line.rstrip() for line in lines])
    assert [log["ip"][i] for i in range(60)] == [str(i) for i in range(60)]
    assert noted(log, "whole seconds")


def test_durations_of_nginx_are_subtracted_and_the_log_is_sorted_again() -> None:
    log = read([LINE.format(ip=i, second=9, path="", rt=f"{i}.500") for i in range(5)])
    assert log.times.tolist() == [NOON_NS + 500_000_000 + i * 10**9 for i in range(4, 9)]
    assert [log["ip"][i] for i in range(5)] == ["4", "3", "2", "1", "0"]
    assert noted(log, "requests ended", "subtracted")
    assert not noted(log, "not in the order")


def test_end_stamped_overrides_what_the_format_implies() -> None:
    lines = [LINE.format(ip=1, second=9, path="", rt="1.500")]
    assert read(lines, end_stamped=False).times.tolist() == [NOON_NS + 9 * 10**9]
    row = ["ts,ip,duration_ms", "1769861100,1,250"]
    log = read(row)
    assert log.times.tolist() == [NOON_NS]
    assert noted(log, "end_stamped=")
    assert read(row, end_stamped=True).times.tolist() == [NOON_NS - 250_000_000]


def test_a_log_out_of_order_is_sorted_stably_and_noted() -> None:
    seconds = [3, 1, 2, 1, 3]
    log = read(
        [LINE.format(ip=i, second=s, path="", rt="").rstrip() for i, s in enumerate(seconds)]
    )
    assert [log["ip"][i] for i in range(5)] == ["1", "3", "2", "0", "4"]
    assert np.all(np.diff(log.times) >= 0)
    assert noted(log, "not in the order", "2 s")


def test_rotated_files_are_put_in_the_order_of_their_times(tmp_path) -> None:
    later, earlier = tmp_path / "access.log", tmp_path / "access.log.1"
    lines = [LINE.format(ip=i, second=i // 2, path="", rt="").rstrip() for i in range(7)]
    earlier.write_text("".join(f"{line}\n" for line in lines[:3]))
    later.write_text("".join(f"{line}\n" for line in lines[3:]))
    log = tuning.read_log(tmp_path / "access.log*")
    assert [log["ip"][i] for i in range(7)] == [str(i) for i in range(7)]
    assert not noted(log, "not in the order")


def test_a_note_says_that_refusals_in_the_log_hide_demand() -> None:
    log = read(["ts,ip,status", "1769861100,1,429", "1769861100,1,503", "1769861100,1,200"])
    assert noted(log, "1 requests", "429", "demand")
    assert noted(log, "503")


def test_a_note_names_an_address_with_an_outsized_share() -> None:
    row = "1769861100,{}"
    lines = [row.format("203.0.113.5")] * 500 + [
        row.format(f"198.18.0.{i}") for i in range(250)
    ] * 2
    assert noted(read(["ts,ip", *lines]), "203.0.113.5", "50%")
    even = [row.format(f"198.18.0.{i}") for i in range(250)] * 4
    assert not noted(read(["ts,ip", *even]), "sent")


def test_a_note_says_that_only_private_addresses_mean_a_proxy() -> None:
    lines = [f"1769861100,10.0.0.{i}" for i in range(250)] * 4
    assert noted(read(["ts,ip", *lines]), "private", "proxy")


def test_between_accepts_every_form_of_instant() -> None:
    log = read(["ts,ip", *(f"{1769861100 + i},{i}" for i in range(10))])
    start = datetime(2026, 1, 31, 12, 5, 2, tzinfo=timezone.utc)
    for first, last in [
        (start, "2026-01-31T12:05:05Z"),
        ("2026-01-31T12:05:02", np.datetime64("2026-01-31T12:05:05")),
        (NOON_NS + 2 * 10**9, NOON_NS + 5 * 10**9),
    ]:
        chosen = log.between(first, last)
        assert [chosen["ip"][i] for i in range(len(chosen))] == ["2", "3", "4"]
    assert len(log.between()) == 10
    assert len(log.between(log.times[5], log.times[3])) == 0
    with pytest.raises(ConfigurationError, match="has no zone"):
        log.between(datetime(2026, 1, 31))
    with pytest.raises(ConfigurationError, match="expected a text such as"):
        log.between("noon")
