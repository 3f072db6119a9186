"""An input that is not a log is a clear error; a bad line is counted and shown."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tidegate import tuning
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

GOOD = '198.18.0.{} - - [31/Jan/2026:12:05:00 +0000] "GET /a HTTP/1.1" 200 17'
LINES = [GOOD.format(i) for i in range(50)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()


def read(data: bytes, **options):
    return tuning.read_log(io.BytesIO(data), **options)


def test_bad_lines_are_counted_and_the_first_are_shown() -> None:
    log = read(TEXT + b"".join(b"bad %d\n" % i for i in range(12)) + TEXT)
    assert (len(log), log.bad) == (100, 12)
    assert [bad.line for bad in log.bad_lines] == list(range(51, 61))
    assert log.bad_lines[0].text == "bad 0"
    assert log.bad_lines[0].source == "<stream>"
    assert log.bad_lines[0].reason.endswith("; expected ` ` as in the format")
    assert any("12 of 112 lines could not be read" in note for note in log.notes)


def test_a_log_with_mostly_bad_lines_is_an_error() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"200 of 250 lines are in another format; expected lines in the format common; .*'x'",
    ):
        read(TEXT + b"x\n" * 200)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"PK\x03\x04" + b"x" * 50, "a zip archive"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 50, "zstd"),
        ("a log".encode("utf-16"), "UTF-16"),
        (b"\x7fELF" + b"\0" * 50, "a program"),
        (b"hello\nworld\n", "'hello'"),
        (random.Random(1).randbytes(5000), "format= with one of these names"),
        (b"\0" * 5000, "expected a log in one of the formats"),
        (b"", "holds no lines"),
        (b"\n\r\n \n", "holds no lines"),
        (b"\xef\xbb\xbf", "holds no lines"),
        (gzip.compress(b"", mtime=0), "holds no lines"),
        (gzip.compress(TEXT, mtime=0)[:12], "a compressed file that was cut off"),
        (b"time,ip\n", "no line of data"),
        (b"#Fields: date time c-ip\n", "no line of data"),
        (b"[1, 2]\n", "'[1, 2]'"),
        (b"[1, 2]\n", "which is a JSON array; expected one JSON object a line"),
        (b'[{"ts": 1769861100, "ip": "a"}]', "which is a JSON array; expected one JSON object a"),
        (b'[\n  {\n    "ts": 1769861100\n  }\n]\n', "begins with '[', which is a JSON array"),
        (b"[1234] started\n", "expected a log in one of the formats"),
        (b"ip,path\na,/\n", "the log has the fields ip, path; expected a field with the time"),
        (b"client.ip;took_ms\na;1\n", "the log has the fields client.ip, took_ms; expected a"),
        (b"time,ip,x,x\n1769861100,a,1,2\n", "the column 'x' stands twice in the header"),
        (b"ip\tip\na\tb\n", "the column 'ip' stands twice in the header"),
        (b"1769861100,host,a\n1769861101,user,b\n", "expected a log in one of the formats"),
        (b"red,blue\n1,2\n", "expected a log in one of the formats"),
        (b"{broken\n", "expected a JSON object on each line"),
    ],
    ids=str,
)
def test_an_input_that_is_not_a_log_is_named_in_the_error(data: bytes, what: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(data)
    assert what in str(raised.value)
    assert "expected" in str(raised.value)


def test_paths_without_a_log_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*; expected a log"):
        tuning.read_log(tmp_path / "access.log")
    with pytest.raises(ConfigurationError, match="is a directory; expected a file or a glob"):
        tuning.read_log(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"glob .* matches no file"):
        tuning.read_log(str(tmp_path / "*.gz"))
    with pytest.raises(ArgumentTypeError, match=r"the log is 7 of type int; expected a path"):
        tuning.read_log(7)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"time_unit": "seconds"}, "time_unit is 'seconds'; expected s, ms, us or ns"),
        ({"duration_unit": "h"}, "duration_unit is 'h'; expected"),
        ({"delimiter": "::"}, "delimiter is '::'; expected one character"),
        ({"columns": {"tenant": "org"}}, "'org', which the "),
    ],
)
def test_invalid_options_are_errors(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read(TEXT, **options)


def test_windows_line_ends_and_a_byte_order_mark_are_left_out() -> None:
    log = read(b"\xef\xbb\xbf" + TEXT.replace(b"\n", b"\r\n"))
    assert (len(log), log.bad) == (50, 0)
    assert log["ip"][0] == "198.18.0.0"
    assert log["bytes"].tolist() == [17] * 50


def test_the_last_line_needs_no_newline() -> None:
    assert len(read(TEXT[:-1])) == 50


def test_bytes_that_are_not_utf_8_are_shown_as_escapes() -> None:
    log = read(TEXT.replace(b"/a ", b"/\xff\xc3\xa9 ") + b"\xff\n")
    assert log["path"][0] == "/\\xff\u00e9"
    assert log.bad_lines[0].text == "\\xff"


def test_bytes_and_their_escapes_are_one_key() -> None:
    log = read(b"ts,user\n1769861100,\xff\n1769861100,\\xff\n")
    assert list(log["user"]) == ["\\xff", "\\xff"]
    assert len(log["user"].names) == 1


def test_a_line_with_nul_bytes_is_a_bad_line() -> None:
    hole = b"\0" * 4096 + LINES[0].encode() + b"\n"
    log = read(TEXT + hole + TEXT)
    assert (len(log), log.bad) == (100, 1)
    assert log.bad_lines[0].reason == "the line has a NUL byte; expected text"


def test_json_that_is_not_utf_8_is_a_bad_line() -> None:
    line = b'{"ts": 1769861100, "ip": "%s"}\n'
    log = read(line % b"1" * 3 + line % b"\xff")
    assert (len(log), log.bad) == (3, 1)


@pytest.mark.parametrize("line", [b"[" * 5000, b'{"ts":' * 2000, b'{"ts": 1769861100'])
def test_json_that_is_broken_or_too_deeply_nested_is_a_bad_line(line: bytes) -> None:
    good = b'{"ts": 1769861100, "ip": "1"}\n'
    log = read(good * 3 + line + b"\n")
    assert (len(log), log.bad) == (3, 1)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_logs_are_read_including_several_members(compress, tmp_path: Path) -> None:
    path = tmp_path / "access.log.any"
    path.write_bytes(compress(TEXT) + compress(TEXT))
    assert len(tuning.read_log(path)) == 100


QUICK_LZMA = functools.partial(lzma.compress, preset=0)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, QUICK_LZMA])
def test_a_compressed_log_that_was_cut_off_keeps_what_could_be_read(compress) -> None:
    any_path = random.Random(1).random
    lines = [GOOD.format(i).replace("/a", f"/{any_path()}") for i in range(30_000)]
    packed = compress("".join(f"{line}\n" for line in lines).encode())
    log = read(packed[: len(packed) * 3 // 4])
    assert 0 < len(log) < 30_000
    assert log["ip"][len(log) - 1] == f"198.18.0.{len(log) - 1}"
    assert log["bytes"].tolist() == [17] * len(log)
    assert log.bad <= 1
    assert any("was cut off" in note for note in log.notes)


def test_a_damaged_gzip_is_an_error() -> None:
    packed = bytearray(gzip.compress(TEXT, mtime=0))
    packed[-6] ^= 255  # a byte of the checksum
    with pytest.raises(ConfigurationError, match="<stream> has damaged data"):
        read(bytes(packed))


def test_zeros_after_a_gzip_member_are_padding() -> None:
    assert len(read(gzip.compress(TEXT, mtime=0) + b"\0" * 100)) == 50


class Endless(io.RawIOBase):
    """Good lines, then one of `size` bytes, then good lines, in small memory."""

    def __init__(self, size: int, *, first: bool = False) -> None:
        self._pieces = iter(
            [b"" if first else TEXT, *[b"x" * (1 << 20)] * (size >> 20), b"\n" + TEXT, b""]
        )

    def read(self, size: int = -1) -> bytes:
        return next((piece for piece in self._pieces if piece), b"")


@pytest.mark.parametrize("first", [False, True])
def test_a_line_of_100_mb_is_one_bad_line(first: bool) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    log = tuning.read_log(Endless(100 << 20, first=first))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert (len(log), log.bad) == (50 if first else 100, 1)
    assert log.bad_lines[0].line == (1 if first else 51)
    assert log.bad_lines[0].text == "x" * 200
    assert log.bad_lines[0].reason == "the line has more bytes; expected at most 1 MiB"
    assert grown < 60 << 20


def test_an_unclosed_quote_spoils_at_most_1_mib() -> None:
    row = b"1769861100,192.0.2.1\n"
    log = read(b"ts,ip\n" + row * 60_000 + b'1769861100,"192\n' + row * 60_000 + row * 4)
    # An open quote joins the lines that follow, up to 1 MiB.
    assert len(log) + log.bad == 120_005
    assert 0 < log.bad < 60_000


def test_a_line_with_too_many_or_too_few_fields_is_a_bad_line() -> None:
    log = read(b"ts,ip\n1769861100,1\n1769861100\n1769861100,1,2\n1769861100,1\n1769861100,1\n")
    assert (len(log), log.bad) == (3, 2)
    assert "expected as many fields as the header" in log.bad_lines[0].reason
    assert "expected no more fields" in log.bad_lines[1].reason


def test_a_log_is_read_from_standard_input() -> None:
    program = "from tidegate import tuning; print(len(tuning.read_log('-')))"
    done = subprocess.run(
        [sys.executable, "-c", program], input=TEXT, capture_output=True, check=True, timeout=120
    )
    assert done.stdout == b"50\n"


def test_text_streams_and_lists_of_sources_are_read(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.write_bytes(b"")
    text = TEXT.decode()
    assert len(tuning.read_log([path, io.StringIO(text), io.BytesIO(TEXT), os.fspath(path)])) == 100


def test_a_bad_line_names_its_file(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(TEXT + b"bad\n")
    log = tuning.read_log([tmp_path / "a", tmp_path / "b"])
    assert [(bad.line, Path(bad.source).name) for bad in log.bad_lines] == [(51, "a"), (51, "b")]


def test_the_size_of_chunks_does_not_change_the_log() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 7, 7))

    log = tuning.read_log(Slow(TEXT + b"bad\n"))
    assert (len(log), log.bad, log.bad_lines[0].line) == (50, 1, 51)


@pytest.mark.parametrize(
    "data", [TEXT.replace(b"\n", b"\r"), b"time,ip\r1700000000,a\r", bytes(1 << 18)]
)
def test_a_file_that_the_csv_module_cannot_read_is_an_error(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="expected a log in one of the formats"):
        read(data)


def test_columns_that_are_not_a_dict_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"the columns are \['ip'\]; expected a dict"):
        read(TEXT, columns=["ip"])


def test_an_unknown_field_is_an_error_that_lists_the_known_fields() -> None:
    said = r"'nope', which the format does not have; .* %h, %l"
    with pytest.raises(ConfigurationError, match=said):
        read(TEXT, columns={"tenant": "nope"})


def test_an_empty_list_of_logs_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="the list of logs is empty; expected at least"):
        tuning.read_log([])


def test_a_file_named_twice_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(TEXT)
    assert not any("more than once" in note for note in tuning.read_log(path).notes)
    with open(path, "rb") as first:
        for again in ([path, tmp_path / "*.log"], [first, path]):
            log = tuning.read_log(again)
            assert len(log) == 100
            assert log.notes[0] == f"{path} was named more than once: its requests count as often."


@pytest.mark.parametrize("column", ["status", "ip"])
def test_a_condition_that_does_not_return_a_mask_is_an_error(column: str) -> None:
    log = read(TEXT)
    for answer in (3, True, [1.5] * len(log), [True]):
        with pytest.raises(ArgumentTypeError, match=r"a function of where\(\) returned .* a mask"):
            log.where(**{column: lambda values, answer=answer: answer})
