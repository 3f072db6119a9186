"""Runs tidegate, and names its threads for the kernel, so that /proc tells them apart.

python tests/faults/named_threads.py serve
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

from tidegate.cli.main import main

_begin = threading.Thread.start


def _begin_named(thread: threading.Thread) -> None:
    _begin(thread)
    name = thread.name.removeprefix("tidegate ")[:15]
    with contextlib.suppress(OSError):  # it has ended
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text(name)


if __name__ == "__main__":
    threading.Thread.start = _begin_named  # type: ignore[method-assign]
    sys.exit(main())
