"""What SECURITY.md promises: how extensions are linked, and that the tests it names exist."""

from __future__ import annotations

import importlib.util
import platform
import re
import struct
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
# ELF(5): types of program headers, tags and flags of the dynamic section.
PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
DT_BIND_NOW, DT_FLAGS, DT_FLAGS_1 = 24, 30, 0x6FFFFFFB
DF_BIND_NOW, DF_1_NOW, PF_EXECUTABLE = 8, 1, 1


class Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    size: int


class Elf:
    """What the loader reads of a 64-bit library."""

    def __init__(self, path: Path) -> None:
        read = path.read_bytes()
        (start,) = struct.unpack_from("<Q", read, 32)
        entry_size, count = struct.unpack_from("<HH", read, 54)
        self.segments = []
        for i in range(count):
            at = start + i * entry_size
            kind, flags, offset, address, _, size = struct.unpack_from("<IIQQQQ", read, at)
            self.segments.append(Segment(kind, flags, offset, address, size))
        self.dynamic: dict[int, int] = {}
        (dynamic,) = (each for each in self.segments if each.kind == PT_DYNAMIC)
        for tag, value in struct.iter_unpack(
            "<qQ", read[dynamic.offset : dynamic.offset + dynamic.size]
        ):
            if tag == 0:
                break
            self.dynamic[tag] = value


def path_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        pytest.skip(f"{module} was not built")
    return Path(spec.origin)


def library(module: str) -> Elf:
    return Elf(path_of(module))


def strings_of(module: str) -> bytes:
    return path_of(module).read_bytes()


pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or struct.calcsize("P") != 8, reason="reads 64-bit ELF files"
)
EXTENSIONS = ("tidegate._core", "tidegate.tuning._logs", "tidegate.server._native")


@pytest.mark.parametrize("module", EXTENSIONS)
def test_tables_of_the_linker_are_filled_at_once_and_then_read_only(module: str) -> None:
    elf = library(module)
    assert any(each.kind == PT_GNU_RELRO for each in elf.segments)
    assert (
        DT_BIND_NOW in elf.dynamic
        or elf.dynamic.get(DT_FLAGS, 0) & DF_BIND_NOW
        or elf.dynamic.get(DT_FLAGS_1, 0) & DF_1_NOW
    )


@pytest.mark.parametrize("module", EXTENSIONS)
def test_no_stack_is_executable(module: str) -> None:
    (stack,) = (each for each in library(module).segments if each.kind == PT_GNU_STACK)
    assert not stack.flags & PF_EXECUTABLE


@pytest.mark.parametrize("module", ["tidegate._core", "tidegate.server._native"])
def test_what_reads_the_bytes_of_strangers_has_a_stack_protector(module: str) -> None:
    # The core speaks with Redis, the server with anybody.
    assert b"__stack_chk_fail" in strings_of(module)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="is for x86-64")
def test_the_server_marks_the_places_that_may_be_called_indirectly() -> None:
    endbr64 = b"\xf3\x0f\x1e\xfa"
    # Nearly each function begins with one; what is linked in has a few without our doing.
    assert strings_of("tidegate.server._native").count(endbr64) > 200


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="fortified calls are of glibc")
def test_calls_that_write_to_buffers_are_fortified() -> None:
    both = strings_of("tidegate._core") + strings_of("tidegate.server._native")
    assert re.search(rb"\0__(?!stack_)\w+_chk\0", both)


def test_the_security_policy_names_tests_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:tests|cpp|docs|scripts)/[^`]+)`", text)
    assert len(paths) > 20
    missing = [each for each in paths if not any(ROOT.glob(each.rstrip("/")))]
    assert missing == []
    for row in re.findall(r"^\| .+$", text.split("## Threat model")[1], re.MULTILINE)[1:]:
        assert "`tests/" in row, f"the row has no test: {row}"
