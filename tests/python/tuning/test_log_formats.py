"""Each log format is read as its server writes it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tidegate import tuning
from tidegate.limiter.errors import ConfigurationError

# 2026-01-31T12:05:00Z
NOON_NS = 1_769_861_100 * 10**9
CLF = "31/Jan/2026:13:05:00 +0100"


def read(text: str | bytes, **options):
    data = text.encode() if isinstance(text, str) else text
    return tuning.read_log(io.BytesIO(data), **options)


def row(log, at: int = 0) -> dict[str, object]:
    return {"time": int(log.times[at]), **{name: log[name][at] for name in log.columns}}


COMMON = f'198.18.0.1 - bob [{CLF}] "GET /a/b?c=d HTTP/1.1" 200 17'
COMBINED = f'{COMMON} "https://example.org/" "curl/8"'
READ_COMMON = {
    "time": NOON_NS,
    "ip": "198.18.0.1",
    "user": "bob",
    "method": "GET",
    "path": "/a/b",
    "status": 200,
    "bytes": 17,
}
READ_COMBINED = {**READ_COMMON, "user_agent": "curl/8"}


@pytest.mark.parametrize(
    ("line", "name", "fields"),
    [
        (COMMON, "common", READ_COMMON),
        (COMBINED, "combined", READ_COMBINED),
        (
            f"{COMBINED} 1.500",
            "combined $request_time",
            {**READ_COMBINED, "duration_ns": 1_500_000_000, "time": NOON_NS - 1_500_000_000},
        ),
        (
            f'{COMBINED} "0.250"',
            'combined "$request_time"',
            {**READ_COMBINED, "duration_ns": 250_000_000, "time": NOON_NS - 250_000_000},
        ),
        (f'{COMBINED} "192.0.2.7"', "nginx-main", {**READ_COMBINED, "forwarded_for": "192.0.2.7"}),
        (
            f"example.org:443 {COMBINED}",
            "vhost-combined",
            {**READ_COMBINED, "host": "example.org"},
        ),
        (f"{COMBINED} rt=0.2 cache=HIT", "combined, and more", READ_COMBINED),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_formats_of_nginx_and_apache_are_detected(line: str, name: str, fields: object) -> None:
    log = read(f"{line}\n{line}\n")
    assert log.format == name
    assert row(log) == row(log, 1) == fields


@pytest.mark.parametrize("tail", ["2", "1500000", "0.5"])
def test_a_trailing_number_that_may_be_apaches_is_not_read_as_seconds(tail: str) -> None:
    log = read(f"{COMBINED} {tail}\n" * 3)
    assert log.format == "combined, and more"
    assert log.times.tolist() == [NOON_NS] * 3
    assert "duration_ns" not in log
    assert any("format=" in note for note in log.notes)


ALB = (
    "https 2026-01-31T12:05:01.250000Z app/lb/50dc {client} {target} 0.000 1.248 0.002 "
    '429 429 34 366 "GET https://www.example.com:443/a?b=c HTTP/1.1" "curl/7.46.0" '
    "ECDHE-RSA TLSv1.2 arn:aws:x "
    '"Root=1-58337262" "www.example.com" "arn:cert" 0 2026-01-31T12:05:00.000000Z "forward" '
    '"-" "-" "10.0.0.1:80" "200" "-" "-" TID_1234\n'
)


def test_alb_is_read_with_the_times_at_which_requests_began() -> None:
    log = read(ALB.format(client="192.0.2.1:2817", target="10.0.0.1:80"))
    assert log.format == "alb"
    assert row(log) == {
        "time": NOON_NS,
        "duration_ns": 1_250_000_000,
        "ip": "192.0.2.1",
        "host": "www.example.com",
        "method": "GET",
        "path": "/a",
        "status": 429,
        "bytes": 366,
        "user_agent": "curl/7.46.0",
    }
    assert any("answered with 429" in note for note in log.notes)


ALB_ADDRESSES = [
    ("2a02:a33c:4538:1:bcf4:5264:e01c:f215:50718", "2a02:a33c:4538:1:bcf4:5264:e01c:f215"),
    ("2001:db8::1:50718", "2001:db8::1"),
    ("2001:db8:::80", "2001:db8::"),
    ("[2001:db8::1]:50718", "2001:db8::1"),
    ("[2001:db8::1]", "2001:db8::1"),
    ("2001:db8::abcd", "2001:db8::abcd"),
    ("192.0.2.1:50718", "192.0.2.1"),
    ("-", "-"),
]


@pytest.mark.parametrize(("written", "address"), ALB_ADDRESSES)
def test_what_follows_the_last_colon_of_albs_addresses_is_a_port(
    written: str, address: str
) -> None:
    log = read(ALB.format(client=written, target="10.0.0.1:80"))
    assert log["ip"][0] == address
    columns = {"ip": "target:port", "client": "client:port"}
    log = read(ALB.format(client=written, target=written), columns=columns)
    assert (log["ip"][0], log["client"][0]) == (address, address)
    log = read(ALB.format(client="-", target=written), columns={"target": "target:port"})
    assert log["target"][0] == written


def test_cloudfront_is_read_by_its_fields_and_decoded() -> None:
    log = read(
        "#Version: 1.0\n"
        "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status "
        "cs(User-Agent) x-host-header time-taken\n"
        "2026-01-31\t12:05:02\tLHR62\t2390\t2001:db8::1\tGET\td1.cloudfront.net\t/index.html\t200\t"
        "Mozilla/5.0%20(X11)\texample.org\t2.000\n"
    )
    assert log.format == "cloudfront"
    assert row(log) == {
        "time": NOON_NS,
        "duration_ns": 2_000_000_000,
        "ip": "2001:db8::1",
        "method": "GET",
        "path": "/index.html",
        "status": 200,
        "bytes": 2390,
        "user_agent": "Mozilla/5.0 (X11)",
        "host": "example.org",
    }


def test_iis_durations_are_milliseconds() -> None:
    log = read(
        "#Software: Microsoft Internet Information Services 10.0\n"
        "#Fields: date time c-ip cs-method cs-uri-stem sc-status time-taken\n"
        "2026-01-31 12:05:00 192.0.2.1 GET /a 200 500\n"
    )
    assert log.format == "iis"
    assert log["duration_ns"].tolist() == [500_000_000]
    assert log.times.tolist() == [NOON_NS - 500_000_000]


_IIS = "#Software: Microsoft Internet Information Services 10.0\n"
_TAKEN = "#Fields: date time c-ip time-taken{more}\n2026-01-31 12:05:0{at} 192.0.2.1 500{values}\n"
_UNKNOWN = "says in which unit time-taken is; it was taken as seconds"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
def test_the_unit_of_durations_is_found_for_each_file(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    texts = [
        _IIS + _TAKEN.format(more="", at=1, values=""),
        _TAKEN.format(more="", at=2, values=""),
        _TAKEN.format(more=" sc-win32-status", at=3, values=" 0"),
    ]
    paths = [tmp_path / f"{at}.log" for at in range(3)]
    for path, text in zip(paths, texts):
        path.write_text(text)
    log = tuning.read_log([paths[at] for at in order], end_stamped=False)
    assert log["duration_ns"].tolist() == [500_000_000, 500_000_000_000, 500_000_000]
    assert [note for note in log.notes if _UNKNOWN in note] == [
        f"Nothing in {paths[1]} says in which unit time-taken is; it was taken as seconds, as in "
        'W3C\'s format. IIS writes milliseconds: duration_unit="ms".'
    ]


@pytest.mark.parametrize("columns", [None, {"duration": "time-taken"}])
@pytest.mark.parametrize(
    ("header", "taken", "unit", "ns", "is_guess"),
    [
        ("", "500", None, 500 * 10**9, True),
        ("", "0", None, 0, False),
        ("", "-", None, -1, False),
        ("", "0.500", None, 500_000_000, False),
        ("", "500", "ms", 500_000_000, False),
        (_IIS, "500", None, 500_000_000, False),
        (_IIS, "500", "us", 500_000, False),
        ("#Software: other\n", "500", None, 500 * 10**9, True),
    ],
)
def test_a_note_says_where_the_unit_of_durations_is_not_known(
    columns: Any, header: str, taken: str, unit: str | None, ns: int, is_guess: bool
) -> None:
    text = f"{header}#Fields: date time c-ip time-taken\n2026-01-31 12:05:01 192.0.2.1 {taken}\n"
    log = read(text, columns=columns, duration_unit=unit)
    assert log["duration_ns"].tolist() == [ns]
    assert any(_UNKNOWN in note for note in log.notes) == is_guess


def test_the_address_of_envoy_is_the_one_that_it_saw_itself() -> None:
    log = read(
        '[2026-01-31T12:05:00.000Z] "GET /a?b HTTP/1.1" 200 - 0 154 12 11 "203.0.113.9, 192.0.2.7" '
        '"curl/8" "id-1" "example.org" "10.0.0.2:80"\n'
    )
    assert log.format == "envoy"
    assert row(log) == {
        "time": NOON_NS,
        "duration_ns": 12_000_000,
        "ip": "192.0.2.7",
        "method": "GET",
        "path": "/a",
        "status": 200,
        "bytes": 154,
        "user_agent": "curl/8",
        "host": "example.org",
    }


def test_a_log_format_of_nginx_is_read_with_its_directive() -> None:
    directive = """
    log_format timed escape=default '$remote_addr [$msec] ${request_method} "$uri" '
                     '$status rt=$request_time tenant="$http_x_tenant"';
    """
    log = read(
        '192.0.2.1 [1769861100.250] POST "/a b" 201 rt=0.250 tenant="acme \\x22inc\\x22"\n',
        format=directive,
        columns={"tenant": "$http_x_tenant"},
    )
    assert row(log) == {
        "time": NOON_NS,
        "duration_ns": 250_000_000,
        "ip": "192.0.2.1",
        "method": "POST",
        "path": "/a b",
        "status": 201,
        "tenant": 'acme "inc"',
    }


@pytest.mark.parametrize(
    ("layout", "tail", "duration_ns"),
    [
        ("%D", "1234", 1_234_000),
        ("%T", "2", 2_000_000_000),
        ("%{ms}T", "7", 7_000_000),
        ("%T/%D", "2/1999999", 1_999_999_000),
    ],
)
def test_durations_of_apache_are_not_subtracted(layout: str, tail: str, duration_ns: int) -> None:
    log = read(
        f'{COMBINED[:-1]} \\"x\\" 1" {tail}\n',
        format=f'LogFormat "%h %l %u %t \\"%r\\" %>s %b \\"%{{Referer}}i\\" '
        f'\\"%{{User-Agent}}i\\" {layout}" timed',
    )
    assert log.times.tolist() == [NOON_NS]
    assert log["duration_ns"].tolist() == [duration_ns]
    assert log["user_agent"][0] == 'curl/8 "x" 1'


def test_a_header_column_of_apache_may_be_named_by_its_directive() -> None:
    log = read(
        f'192.0.2.1 [{CLF}] "gold" 404\n',
        format='%a %t "%{X-Tier}i" %>s',
        columns={"tier": "%{X-Tier}i"},
    )
    assert log["tier"][0] == "gold"
    assert log["status"].tolist() == [404]


def test_json_fields_are_found_by_their_names() -> None:
    lines = [
        {"ts": 1769861100.5, "request": {"remote_ip": "192.0.2.1", "method": "GET", "uri": "/a?b"}}
        | {"status": 200, "size": 12, "duration": 0.25, "user_id": 7, "note": [1]},
        {"ts": 1769861101, "request": {"remote_ip": "192.0.2.2"}, "user_id": None},
    ]
    log = read("".join(json.dumps(line) + "\n" for line in lines))
    assert log.format == "json"
    assert row(log) == {
        "time": NOON_NS + 250_000_000,
        "duration_ns": 250_000_000,
        "ip": "192.0.2.1",
        "method": "GET",
        "path": "/a",
        "user": "7",
        "status": 200,
        "bytes": 12,
    }
    assert (log["user"][1], log["duration_ns"][1], log["status"][1]) == ("-", -1, 0)
    assert "Times are numbers, taken as seconds since the epoch." in log.notes


def test_nested_json_fields_are_named_with_dots() -> None:
    lines = '{"a": {"b.c": {"when": "2026-01-31 13:05:00,250+01:00"}}, "http.org": "x"}\n'
    log = read(lines, columns={"time": "a.b.c.when", "org": "http.org"})
    assert row(log) == {"time": NOON_NS + 250_000_000, "org": "x"}


def test_json_without_a_time_lists_its_fields() -> None:
    with pytest.raises(ConfigurationError, match=r"the fields a, b\.c; expected a field with"):
        read('{"a": 1, "b": {"c": 2}}\n')
    with pytest.raises(ConfigurationError, match=r"'when', which the log does not.*one of a, b\.c"):
        read('{"a": 1, "b": {"c": 2}}\n', columns={"time": "when"})


def test_csv_is_read_by_rfc_4180() -> None:
    log = read(
        "time,client_ip,path,latency_ms\r\n"
        '2026-01-31T12:05:00Z,192.0.2.1,"/a ""b"", c\r\nd",1.5\r\n'
        "2026-01-31T12:05:01Z,192.0.2.2,,\r\n"
    )
    assert log.format == "csv"
    assert log["path"][0] == '/a "b", c\r\nd'
    assert log["path"][1] == "-"
    assert log["duration_ns"].tolist() == [1_500_000, -1]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_the_delimiter_of_csv_is_detected(delimiter: str) -> None:
    lines = [("ts", "ip"), ("1769861100000", "192.0.2.1"), ("1769861100001", "192.0.2.1")]
    log = read("\n".join(map(delimiter.join, lines)))
    assert log.times.tolist() == [NOON_NS, NOON_NS + 1_000_000]


def test_csv_may_have_names_that_begin_with_digits_and_rows_that_do_not_fit() -> None:
    row = "1769861100,192.0.2.1,7\n"
    log = read(f"ts,ip,5xx\n{row * 3}bad\nbad\n")
    assert (log.format, len(log), log.bad) == ("csv", 3, 2)
    with pytest.raises(ConfigurationError, match="expected lines in the format csv"):
        read(f"ts,ip,5xx\n{row}" + "bad\n" * 9)


def test_csv_without_a_header_is_read_by_field_numbers() -> None:
    log = read("x,1769861100,192.0.2.1\n", format="csv", columns={"time": 1, "ip": 2})
    assert row(log) == {"time": NOON_NS, "ip": "192.0.2.1"}


def test_each_csv_file_has_its_own_header(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text(f"time,ip\n176986110{number},192.0.2.1\n")
    log = tuning.read_log(tmp_path / "*.csv")
    assert len(log) == 2
    assert log.bad == 0


def test_queries_are_kept_if_asked_for() -> None:
    assert read(COMMON, keep_query=True)["path"][0] == "/a/b?c=d"


@pytest.mark.parametrize(
    ("request_line", "method", "path"),
    [
        ("GET /a b HTTP/1.1", "GET", "/a b"),
        ("GET /a", "GET", "/a"),
        ("GET http://example.org/a?b HTTP/1.1", "GET", "/a"),
        ("GET http://example.org HTTP/1.1", "GET", "/"),
        ("CONNECT example.org:443 HTTP/1.1", "CONNECT", "example.org:443"),
        ("-", "-", "-"),
        ("\\x16\\x03\\x01\\x00", "-", "-"),
        ("", "-", "-"),
        ("GET /\\x22\\\\x HTTP/1.1", "GET", '/"\\x'),
    ],
)
def test_malformed_request_lines_count_too(request_line: str, method: str, path: str) -> None:
    log = read(f'198.18.0.1 - - [{CLF}] "{request_line}" 400 -\n')
    assert (log["method"][0], log["path"][0], log["bytes"][0]) == (method, path, 0)


@pytest.mark.parametrize(
    "name", ["common", "combined", "nginx-main", "vhost-combined", "alb", "envoy"]
)
def test_a_named_format_that_does_not_fit_is_an_error_that_shows_a_line(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected lines in the format .*'hello'"):
        read("hello\n", format=name)


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ("apache2", "format is 'apache2'; expected one of common, combined"),
        ("$remote_addr$status [$time_local]", r"\$remote_addr is followed by \$status at once"),
        ("$remote_addr $status", "expected one with the time"),
    ],
)
def test_an_unusable_format_is_an_error_that_says_why(layout: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read(COMMON, format=layout)
