"""No process of a test outlives it, or at the latest the run; see tests/processes.py."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
from polling import eventually

TESTS = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells which process comes from where"
)

# As servers do: a process with a worker that outlives it. Prints the worker's number.
SERVER = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(worker.pid, flush=True)
time.sleep(600)
"""

# A test that notes the processes it starts in a file, then does the rest of its work.
TEST = """
import os, subprocess, sys, time
from pathlib import Path


def test_that_starts_processes():
    started = []
    for session in (True, False):
        server = subprocess.Popen(
            [sys.executable, "-c", {server!r}], stdout=subprocess.PIPE, start_new_session=session
        )
        started += [server.pid, int(server.stdout.readline())]
    fork = os.fork()
    if fork == 0:
        time.sleep(600)
    started.append(fork)
    Path("started.tmp").write_text(" ".join(map(str, started)))
    os.rename("started.tmp", "started")
    {rest}
"""

# In the background of a shell without job control, SIGINT is ignored from the start.
PYTEST = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import pytest
raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", *{arguments}]))
"""


def is_alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_stop_kills_what_the_process_has_started() -> None:
    process = processes.start([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
    with process:
        worker = int(process.stdout.readline())
        assert is_alive(worker)
        processes.stop(process)
    assert process.returncode == -signal.SIGKILL
    assert not is_alive(worker)


def test_a_process_that_ends_in_time_is_not_killed() -> None:
    program = (
        "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(7)); "
        "print(flush=True); signal.pause()"
    )
    process = processes.start([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process:
        process.stdout.readline()
        processes.stop(process, grace=30)
    assert process.returncode == 7


# Tests run in this process, or in one that pytest-xdist starts.
WAYS = {"alone": [], "workers": ["-p", "xdist.plugin", "--numprocesses=1"]}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "workers":
        pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    return WAYS[request.param]


@contextlib.contextmanager
def pytest_run(
    folder: Path, way: list[str], rest: str
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A run of pytest with the conftest of these tests, and the processes that its test started.

    The test then runs the statement `rest`.
    """
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "test_it.py").write_text(TEST.format(server=SERVER, rest=rest))
    (folder / "pytest.ini").write_text("[pytest]\n")
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    with processes.running(
        [sys.executable, "-c", PYTEST.format(arguments=way)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        eventually((folder / "started").exists, 60)
        yield run, [int(word) for word in (folder / "started").read_text().split()]


def test_a_run_fails_that_leaves_processes_behind(tmp_path: Path, way: list[str]) -> None:
    with pytest_run(tmp_path, way, rest="server.kill(); server.wait()") as (run, started):
        output, _ = run.communicate(timeout=120)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "left these processes behind" in output
    # The test has killed the last server, but not that server's worker.
    server = started[2]
    assert [process for process in started if f"{process}: " not in output] == [server]
    assert not any(map(is_alive, started))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_takes_its_processes_along(
    tmp_path: Path, way: list[str], number: signal.Signals
) -> None:
    with pytest_run(tmp_path, way, rest="time.sleep(600)") as (run, started):
        assert len(started) == 5
        assert all(map(is_alive, started))
        run.send_signal(number)
        eventually(lambda: not any(map(is_alive, started)))
