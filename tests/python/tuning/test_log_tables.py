"""Logs in tables: Parquet, Arrow, pandas and polars."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tidegate import tuning
from tidegate.limiter.errors import ConfigurationError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

NOON_NS = 1_769_861_100 * 10**9
COLUMNS = {
    "timestamp": [NOON_NS + 10**9, None, NOON_NS],
    "client_ip": ["192.0.2.1", "192.0.2.2", None],
    "path": ["/a?b", "/a", "/a#c"],
    "status": [200, 404, None],
    "latency_ms": [1.5, None, None],
}


def table(time_type=None):
    columns = {name: pa.array(values) for name, values in COLUMNS.items()}
    if time_type is not None:
        columns["timestamp"] = (
            columns["timestamp"].cast(pa.timestamp("ns", tz="UTC")).cast(time_type)
        )
    return pa.table(columns)


def check(log: tuning.Log) -> None:
    assert log.times.tolist() == [NOON_NS, NOON_NS + 10**9]
    assert list(log["ip"]) == ["-", "192.0.2.1"]
    assert list(log["path"]) == ["/a", "/a"]
    assert log["status"].tolist() == [0, 200]
    assert log["duration_ns"].tolist() == [-1, 1_500_000]
    assert log.bad == 1
    assert log.bad_lines[0].line == 2


@pytest.mark.parametrize(
    "kind", [None, pa.timestamp("ms", "UTC"), pa.timestamp("ns", "Asia/Tokyo")]
)
def test_arrow_is_read(kind) -> None:
    check(tuning.read_log(table(kind)))


def test_parquet_is_read(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet here")
    path = tmp_path / "log.parquet"
    parquet.write_table(table(pa.timestamp("us", "UTC")), path)
    log = tuning.read_log(path)
    check(log)
    assert log.format == "parquet"


def test_a_table_without_rows_is_an_error() -> None:
    for empty in (table(pa.timestamp("us", "UTC"))[:0], pa.table({})):
        with pytest.raises(ConfigurationError, match="the table has no rows; expected a log"):
            tuning.read_log(empty)


def test_times_without_a_zone_are_in_the_named_zone() -> None:
    given = pa.table({"ts": pa.array([NOON_NS]).cast(pa.timestamp("ns")), "ip": ["a"]})
    assert any("no zone" in note for note in tuning.read_log(given).notes)
    assert tuning.read_log(given, time_zone="+01:00").times.tolist() == [NOON_NS - 3600 * 10**9]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_the_unit_of_numeric_times_is_detected(unit: str, kind: str) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    values = np.array([1_769_861_100 * per_second] * 2, dtype=kind)
    log = tuning.read_log(pa.table({"ts": values, "ip": ["a", "b"]}))
    assert log.times.tolist() == [NOON_NS] * 2


def test_numeric_times_in_several_units_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match="expected those of 1973 or later, in one unit"):
        tuning.read_log(pa.table({"ts": [1_769_861_100, NOON_NS], "ip": ["a", "b"]}))


@pytest.mark.parametrize("bad", [None, "", "noon", "2026-02-30T00:00:00Z"])
def test_rows_whose_texts_are_no_times_are_left_out(bad: str | None) -> None:
    log = tuning.read_log(pa.table({"ts": ["2026-01-31T12:05:00Z", bad], "ip": ["a", "b"]}))
    assert (log.times.tolist(), list(log["ip"]), log.bad) == ([NOON_NS], ["a"], 1)
    given = bad or "nothing"
    assert log.bad_lines[0].reason == (
        f"the row has {given}; expected a time such as 2026-01-31T13:05:00Z"
    )


def test_a_table_whose_texts_are_no_times_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"no row .* has noon; expected a time such as"):
        tuning.read_log(pa.table({"ts": ["noon"], "ip": ["a"]}))


@pytest.mark.parametrize(
    ("name", "text", "path"),
    [
        ("request", "GET /a/b?c HTTP/1.1", "/a/b"),
        ("url", "https://example.org/a?b", "/a"),
        ("url", "https://example.org", "/"),
        ("path", "/a b", "/a b"),
    ],
)
def test_paths_are_taken_from_request_lines_and_urls(name: str, text: str, path: str) -> None:
    log = tuning.read_log(pa.table({"ts": [NOON_NS], "ip": ["192.0.2.1:80"], name: [text]}))
    assert (log["path"][0], log["ip"][0]) == (path, "192.0.2.1")


def test_the_dictionaries_of_chunks_are_merged() -> None:
    chunks = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"]).dictionary_encode()]
    given = pa.table({"ts": [NOON_NS + i for i in range(4)], "ip": pa.chunked_array(chunks)})
    assert list(tuning.read_log(given)["ip"]) == ["a", "b", "b", "c"]


def test_a_table_without_times_lists_its_columns() -> None:
    with pytest.raises(ConfigurationError, match="the fields a, b; expected a field with the"):
        tuning.read_log(pa.table({"a": [1], "b": [2]}))


def test_pandas_is_read() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    check(tuning.read_log(table(pa.timestamp("ns", "UTC")).to_pandas()))


def test_polars_is_read() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    check(tuning.read_log(polars.from_arrow(table(pa.timestamp("ns", "UTC")))))


@pytest.mark.parametrize("kind", ["Categorical", "Enum", "String"])
def test_texts_of_polars_are_read(kind: str) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    names = ["b", "a", None, "b"]
    kinds = {"Categorical": polars.Categorical(), "Enum": polars.Enum(["a", "b"])}
    given = polars.DataFrame(
        {
            "ts": [f"2026-01-31T12:05:0{second}Z" for second in range(4)],
            "ip": polars.Series(names, dtype=kinds.get(kind, polars.String())),
        }
    )
    for frame in (given, given.with_columns(polars.col("ts").cast(polars.Categorical))):
        log = tuning.read_log(frame)
        assert log.times.tolist() == [NOON_NS + second * 10**9 for second in range(4)]
        assert list(log["ip"]) == ["b", "a", "-", "b"]


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        (
            [10_000_000_000, 1_769_861_100],
            "10000000000; expected a time from 1970 to",
        ),
        (
            [10_000_000_000.5, 1_769_861_100.5],
            "10000000000.5; expected a time from 1970 to",
        ),
        (pa.array([253402300799, 1], pa.timestamp("s", "UTC")), "the row has 9999-12-31"),
        (pa.array([-1, 1], pa.timestamp("us", "UTC")), "the row has 1969-12-31"),
    ],
)
def test_rows_with_times_out_of_range_are_left_out(times, reason) -> None:
    log = tuning.read_log(pa.table({"ts": times, "ip": ["a", "b"]}))
    assert (list(log["ip"]), log.bad) == (["b"], 1)
    assert log.bad_lines[0].line == 1
    assert reason in log.bad_lines[0].reason
    assert any("1 of 2 rows could not be read" in note for note in log.notes)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("status", 2**40 + 200, "the row has 1099511627976; expected a status such as 200"),
        ("status", -1, "the row has -1; expected a status such as 200"),
        ("bytes", -1, "the row has -1; expected a number of bytes"),
        ("duration_ms", 1e300, "the row has 1e+300; expected a duration such as 0.123"),
        ("duration_ms", float("inf"), "the row has inf; expected a duration such as 0.123"),
    ],
)
def test_rows_with_impossible_numbers_are_left_out(name, value, reason) -> None:
    log = tuning.read_log(pa.table({"ts": [NOON_NS] * 2, "ip": ["a", "b"], name: [1, value]}))
    assert (list(log["ip"]), log.bad) == (["a"], 1)
    assert log.bad_lines[0].reason == reason


def test_a_table_without_a_readable_row_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"no row of the table can be read; .* has 1969"):
        tuning.read_log(pa.table({"ts": pa.array([-1], pa.timestamp("us", "UTC")), "ip": ["a"]}))


def test_a_file_that_arrow_cannot_read_is_an_error(tmp_path) -> None:
    path = tmp_path / "cut.parquet"
    path.write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(ConfigurationError, match=r"cut.parquet.*; expected a Parquet file"):
        tuning.read_log(path)
    with pytest.raises(ConfigurationError, match="; expected a table that Arrow can read"):
        tuning.read_log(pa.table({"ts": pa.array([2**64 - 1], pa.uint64()), "ip": ["a"]}))
    twice = pa.Table.from_arrays([pa.array([NOON_NS])] * 2, names=["ts", "ts"])
    with pytest.raises(ConfigurationError, match="two columns 'ts'; expected names that"):
        tuning.read_log(twice)


BINARY = [pa.binary(), pa.large_binary(), pa.binary(2), pa.dictionary(pa.int32(), pa.binary())]


@pytest.mark.parametrize("kind", BINARY, ids=str)
@pytest.mark.parametrize("columns", [None, {"ip": "ip", "time": "ts"}])
def test_binary_is_read_as_text(tmp_path: Path, kind: Any, columns: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet here")
    given = pa.table(
        {
            "ts": [b"2026-01-31T12:05:00Z", b"2026-01-31T12:05:01Z", b"2026-01-31T12:05:02Z"],
            "ip": pa.array([b"ab", None, "\u00e9".encode()], kind),
        }
    )
    parquet.write_table(given, tmp_path / "log.parquet")
    for source in (given, tmp_path / "log.parquet"):
        log = tuning.read_log(source, columns=columns)
        assert log.times.tolist() == [NOON_NS, NOON_NS + 10**9, NOON_NS + 2 * 10**9]
        assert list(log["ip"]) == ["ab", "-", "\u00e9"]


@pytest.mark.parametrize("bad", [0, 3])
def test_binary_that_is_not_utf_8_is_a_bad_row(bad: int) -> None:
    ips = [b"a", b"b", None, b"c"]
    ips[bad] = b"\xff\xfe"
    log = tuning.read_log(pa.table({"ts": [NOON_NS + at for at in range(4)], "ip": ips}))
    assert list(log["ip"]) == [ip.decode() if ip else "-" for ip in ips if ip != b"\xff\xfe"]
    assert (log.bad, log.bad_lines[0].line) == (1, bad + 1)
    assert log.bad_lines[0].reason == "the row has b'\\xff\\xfe'; expected text in UTF-8"


def test_binary_that_is_no_text_is_not_read_unless_it_is_named() -> None:
    ids = [bytes([0xFF, at]) for at in range(3)]
    given = pa.table({"ts": [NOON_NS] * 3, "user_id": ids, "account": ["a", "b", "c"]})
    log = tuning.read_log(given)
    assert list(log["user"]) == ["a", "b", "c"]
    assert "user_id was not read: most of its first bytes are not UTF-8." in log.notes
    with pytest.raises(ConfigurationError, match=r"no row .* has b'.*'; expected text in UTF-8"):
        tuning.read_log(given, columns={"user": "user_id"})


@pytest.mark.parametrize(
    ("columns", "name"), [(None, "ip"), ({"client": "request.remote_ip"}, "client")]
)
def test_fields_of_structs_are_found_as_in_json(tmp_path: Path, columns: Any, name: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet here")
    request = [{"remote_ip": "a", "line": {"uri": "/a"}}, None, {"remote_ip": "b", "line": None}]
    given = pa.table({"at": [{"ts": NOON_NS + at} for at in range(3)], "request": request})
    parquet.write_table(given, tmp_path / "log.parquet")
    named = {"time": "at.ts", "path": "request.line.uri", **(columns or {})}
    for source in (given, tmp_path / "log.parquet"):
        log = tuning.read_log(source, columns=named)
        assert log.times.tolist() == [NOON_NS, NOON_NS + 1, NOON_NS + 2]
        assert list(log[name]) == ["a", "-", "b"]
        assert list(log["path"]) == ["/a", "-", "-"]


def test_a_column_comes_before_a_field_of_its_name_in_a_struct() -> None:
    given = {"ts": [NOON_NS], "client": [{"ip": "nested", "id": "c"}], "client.ip": ["plain"]}
    log = tuning.read_log(pa.table(given), columns={"id": "client.id"})
    assert (log["ip"][0], log["id"][0]) == ("plain", "c")
    with pytest.raises(ConfigurationError, match=r"expected one of ts, client\.id, client\.ip$"):
        tuning.read_log(pa.table(given), columns={"ip": "client"})


@pytest.mark.parametrize(
    ("kind", "unit", "options"),
    [
        (pa.decimal128(20, 3), 1, {}),
        (pa.decimal128(38, 28), 1, {}),
        (pa.decimal256(76, 60), 1, {"time_unit": "s"}),
        (pa.decimal128(30, 6), 10**3, {}),
        (pa.decimal128(19, 0), 10**9, {}),
    ],
    ids=str,
)
def test_decimal_times_are_read_exactly(kind: Any, unit: int, options: Any) -> None:
    least = Decimal(1).scaleb(-min(kind.scale, 9))  # a nanosecond, if the type has it
    times = [(Decimal(1_769_861_100) * unit) + part for part in (0, least, 123 * least)]
    given = pa.table({"time": pa.array([*times, None], kind), "ip": ["a", "b", "c", "d"]})
    log = tuning.read_log(given, **options)
    step = int(least * (10**9 // unit))
    assert log.times.tolist() == [NOON_NS, NOON_NS + step, NOON_NS + 123 * step]
    assert list(log["ip"]) == ["a", "b", "c"]
    assert log.bad_lines[0].reason.startswith("the row has nothing; expected a time such as")


@pytest.mark.parametrize("time", ["-0.001", "10000000000.000"])
def test_rows_with_decimal_times_out_of_range_are_left_out(time: str) -> None:
    times = pa.array([Decimal(time), Decimal("1769861100.000")], pa.decimal128(30, 3))
    log = tuning.read_log(pa.table({"ts": times, "ip": ["a", "b"]}), time_unit="s")
    assert (list(log["ip"]), log.times.tolist()) == (["b"], [NOON_NS])
    assert log.bad_lines[0].reason == (
        f"the row has {time}; expected a time from 1970 to the year 2116"
    )


def test_other_decimals_are_read_as_numbers() -> None:
    decimals = {"user_id": ("7", 38, 0), "status": ("200", 5, 0), "latency_ms": ("1.5", 9, 3)}
    columns = {
        name: pa.array([Decimal(text)], pa.decimal128(precision, scale))
        for name, (text, precision, scale) in decimals.items()
    }
    log = tuning.read_log(pa.table({"ts": [NOON_NS], **columns}))
    assert (log["user"][0], log["status"][0], log["duration_ns"][0]) == ("7", 200, 1_500_000)


@pytest.mark.parametrize(
    ("values", "shown"),
    [([True], "True"), ([[NOON_NS]], "list<item: int64>"), ([None], "None")],
)
def test_a_time_that_is_none_is_shown(values: Any, shown: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        tuning.read_log(pa.table({"time": values, "ip": ["a"]}))
    said = f"the log has the fields time, ip, and time is {shown}; expected a field with the"
    assert said in str(raised.value)


def test_columns_whose_first_rows_have_no_value_are_found() -> None:
    given = pa.table({"ts": [None, NOON_NS], "ip": ["a", "b"], "took_ms": [None, 2]})
    log = tuning.read_log(given)
    assert (list(log["ip"]), log["duration_ns"].tolist(), log.bad) == (["b"], [2_000_000], 1)


@pytest.mark.parametrize("written", ["[2001:db8::1]:80", "[2001:db8::1]", "2001:db8::1"])
def test_ports_of_addresses_in_tables_are_left_out(written: str) -> None:
    assert tuning.read_log(pa.table({"ts": [NOON_NS], "ip": [written]}))["ip"][0] == "2001:db8::1"
