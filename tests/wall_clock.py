"""Gives child processes a wall clock that the test sets (tests/faults/chaos/shim.c)."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent / "faults" / "chaos" / "shim.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")


def build_shim(directory: Path) -> Path:
    """The library that shifts the clock; skips the test where it cannot be made."""
    if COMPILER is None or not sys.platform.startswith("linux"):
        pytest.skip("the shim needs a C compiler and Linux")
    library = directory / "shim.so"
    subprocess.run(
        [COMPILER, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True
    )
    return library


class WallClock:
    """The wall clock of the processes that have this environment."""

    def __init__(self, shim: Path, page: Path) -> None:
        page.write_bytes(bytes(24))
        self._page = page
        self.environment = {**os.environ, "LD_PRELOAD": str(shim), "CHAOS_PAGE": str(page)}

    def be_ahead(self, ns: int) -> None:
        """Sets it `ns` nanoseconds ahead of the real one."""
        with self._page.open("r+b") as file:
            file.write(struct.pack("q", ns))

    def be_slow(self, times: int) -> None:
        """Has the clock that also runs during suspension go so many times slower."""
        with self._page.open("r+b") as file:
            file.seek(16)
            file.write(struct.pack("q", times))


def asked(child: subprocess.Popen[str]) -> dict[str, Any]:
    """What a child prints, as JSON, for each line that it reads."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    answer: dict[str, Any] = json.loads(child.stdout.readline())
    return answer
