"""A wall clock and a name service that the campaign steps while a process runs (see shim.c)."""

from __future__ import annotations

import functools
import mmap
import os
import struct
import subprocess
from pathlib import Path

RESOLVES, FAILS, HANGS = range(3)

_SOURCE = Path(__file__).with_name("shim.c")


@functools.cache
def _built(directory: Path) -> Path:
    library = directory / "chaos-shim.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"], check=True
    )
    return library


class Shim:
    """What one process sees. Start it with `environment()`."""

    def __init__(self, directory: Path, name: str, boot_id: str | None = None) -> None:
        self._library = _built(directory)
        self._path = directory / f"page-{name}"
        self._path.write_bytes(bytes(mmap.PAGESIZE))
        self._boot_id = directory / f"boot-id-{name}"
        if boot_id is not None:
            self._boot_id.write_text(boot_id)
        with self._path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def environment(self) -> dict[str, str]:
        before = os.environ.get("LD_PRELOAD", "")
        added = {
            "LD_PRELOAD": f"{before} {self._library}".strip(),
            "CHAOS_PAGE": str(self._path),
        }
        if self._boot_id.exists():
            added["CHAOS_BOOT_ID"] = str(self._boot_id)
        return added

    def shift(self, seconds: float) -> None:
        """The wall clock of the process is now this far from the real one."""
        struct.pack_into("<q", self._page, 0, round(seconds * 1e9))

    def names(self, mode: int) -> None:
        """Whether the name redis.chaos resolves, fails to, or hangs."""
        struct.pack_into("<q", self._page, 8, mode)

    def close(self) -> None:
        self._page.close()
