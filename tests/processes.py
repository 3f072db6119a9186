"""Processes that tests start, and which end with the test, or at the latest with the run.

A test starts a server with running() or start(), in a process group of its own, and stop() kills
the whole group: killing the server alone leaves the workers that it forked. `conftest` wraps each
run in guarded(), so a run fails if one of its processes is alive at the end, and a run that is
killed takes its processes along.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from polling import eventually

if TYPE_CHECKING:
    from typing_extensions import Self

_PR_SET_CHILD_SUBREAPER = 36


def imported_by(code: str) -> set[str]:
    """The modules that an interpreter has imported once it has run `code`."""
    look = f"{code}\nimport sys\nprint()\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def start(command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:
    """As subprocess.Popen, in a process group of its own, which stop() ends."""
    return subprocess.Popen(command, start_new_session=True, **options)


def await_start(is_ready: Callable[[], object], seconds: float, end: Callable[[], object]) -> None:
    """Waits until a server answers, and ends it with `end` if it does not."""
    try:
        eventually(is_ready, seconds, despite=OSError)
    except BaseException:
        end()
        raise


def stop(process: subprocess.Popen[Any], *, grace: float = 0) -> None:
    """Kills what start() has started and all of its group, and waits until they have ended.

    With `grace` the process gets a SIGTERM first, and that many seconds to end by itself.
    """
    if grace > 0 and process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    # macOS answers EPERM where only zombies are left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # The orphans of the group have become children of this process, see guarded().
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)


@contextlib.contextmanager
def running(
    command: Sequence[str | os.PathLike[str]], *, grace: float = 0, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """A process that is stopped when the block ends, with its group, and whose pipes are closed."""
    process = start(command, **options)
    try:
        yield process
    finally:
        stop(process, grace=grace)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was still to be written
                    pipe.close()


class Server:
    """A server; ``with`` starts and kills it. Each kind has a start(), after which it accepts."""

    port: int
    process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def start(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        if self.process is not None:
            stop(self.process)
            self.process = None


class Answering:
    """A process that answers each line that it is given with one line, in JSON."""

    def __init__(self, command: Sequence[str | os.PathLike[str]], **options: Any) -> None:
        self.process: subprocess.Popen[str] = start(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )

    def answer_to(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, f"the process has ended: {self.process.poll()}"
        return json.loads(answer)

    def close(self) -> None:
        """Kills the process and its group, and closes its pipes."""
        stop(self.process)
        self.process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Fails if processes that were started inside the block are alive at its end, and kills them.

    If this process is killed inside the block, `undertaker` kills them. Both need to know which
    process comes from where, which only Linux tells: elsewhere this does nothing.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    run = os.getpid()
    # From now on a process whose parent dies becomes a child of this one instead of init's.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    marker = f"tidegate-tests-{run}-{os.urandom(6).hex()}"
    program = Path(__file__).with_name("undertaker.py")
    undertaker = start([sys.executable, "-I", "-S", program, str(run), marker])
    # Each run has a variable of its own, since a test may run pytest.
    os.environ[f"TIDEGATE_TESTS_{run}"] = marker
    held = os.memfd_create(marker)
    try:
        yield
    finally:
        if os.getpid() == run:  # not in a fork that failed to end
            left = _kill_descendants(but=undertaker.pid)
            stop(undertaker)
            os.close(held)
            del os.environ[f"TIDEGATE_TESTS_{run}"]
            if left:
                raise AssertionError("Tests left these processes behind:\n" + "\n".join(left))


def _kill_descendants(but: int) -> list[str]:
    """Kills the descendants of this process that do not end by themselves within 2 s.

    Returns their command lines.
    """
    deadline = time.monotonic() + 2
    while (left := _descendants(but)) and time.monotonic() < deadline:
        time.sleep(0.02)
    commands = []
    for process in left:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            commands.append(f"{process}: {b' '.join(words).decode(errors='replace')}")
            os.kill(process, signal.SIGKILL)
    return commands


def _descendants(but: int) -> list[int]:
    """The processes below this one, apart from `but` and from those that have ended."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may hold anything.
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(path.parent.name)] = int(parent)
    found = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in found and p != but} - found:
        found |= more
    return sorted(found - {os.getpid()})
