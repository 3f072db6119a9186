"""Kills the processes that a test run leaves behind when the run itself is killed.

    python undertaker.py PID MARKER    where PID is the test run, the parent of this process

`processes.guard()` starts it, in a session of its own, so that neither Ctrl-C nor a signal to the
run's process group ends it. A process belongs to the run if its environment contains the marker, or
if it was forked without exec and so still holds the file that carries the marker in its name.
PR_SET_PDEATHSIG would not do: the kernel clears it in what a server forks, and sends the signal
as soon as the thread ends that started the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path


def belongs(process: Path, marker: bytes) -> bool:
    with contextlib.suppress(OSError):
        if marker in (process / "environ").read_bytes():
            return True
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if marker in os.fsencode(os.readlink(descriptor)):
                    return True
    return False


def main() -> None:
    run, marker = int(sys.argv[1]), os.fsencode(sys.argv[2])
    while os.getppid() == run:
        time.sleep(0.1)
    # Again and again until nothing is found, for what is being started meanwhile.
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = [int(p.name) for p in Path("/proc").glob("[0-9]*") if belongs(p, marker)]
        if not left:
            break
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
