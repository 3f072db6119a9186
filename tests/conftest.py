"""Settings of every test run, and the databases that tests of several folders share."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import processes
import pytest

if TYPE_CHECKING:
    import tidegate as tg
    from postgres_server import PostgresServer

# Hypothesis remembers the examples that failed, by default within the tree.
os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY",
    str(Path(tempfile.gettempdir(), f"tidegate-hypothesis-{os.getuid()}")),
)


def _folder_in_memory() -> str | None:
    """Makes a folder in memory, if there is room, for the temporary files of tests and processes.

    On a disk most of what a test with a database takes is the disk's: PostgreSQL copies 300 files
    for each of them. The user may choose another place by TMPDIR, where files are kept.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not memory.is_dir() or not os.access(memory, os.W_OK):
        return None
    # Tests make programs too, and containers often have a small one that runs none.
    state = os.statvfs(memory)
    if state.f_bavail * state.f_frsize < 4 << 30 or state.f_flag & os.ST_NOEXEC:
        return None
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tg", dir=memory)
    # The user that PostgreSQL runs as must be able to enter it.
    Path(tempfile.tempdir).chmod(0o711)
    return tempfile.tempdir


_in_memory = _folder_in_memory()


def pytest_unconfigure() -> None:
    if _in_memory is not None:
        shutil.rmtree(_in_memory, ignore_errors=True)


# How long an example takes says more about the machine's load than about the code.
hypothesis.settings.register_profile(
    "tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")


# Pytest makes millions of objects for 10,000 tests, and keeps them. The garbage collector would
# visit them again and again while they are made, and at each `gc.collect()` of a test.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


# Files that take long for their number of tests, the longest first.
LONG = [
    "python/service/test_serve.py",
    "python/service/test_dashboard_browser.py",
    "python/limiter/test_types.py",
    "codebase/test_processes_end.py",
    "redis/test_idle_connections.py",
    "database/test_changes.py",
    "python/benchmarks/test_surge.py",
    "codebase/test_build_messages.py",
    "python/tuning/test_notebooks.py",
    "python/service/test_envoy_proxy.py",
    "python/tuning/test_replay_agrees.py",
    "python/service/test_serve_database.py",
    "python/migrate/test_migrate.py",
    "python/service/test_serve_addresses.py",
    "redis/test_shared_board.py",
    "faults/test_chaos.py",
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Has the workers of `pytest -n` begin with what takes longest, and with files of many tests.

    Otherwise one of them works for long at the end, beside cores that are idle.
    """
    if hasattr(config, "workerinput"):
        sizes = Counter(item.path for item in items)
        ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONG)}
        items.sort(key=lambda item: (ranks.get(item.path, len(LONG)), -sizes[item.path]))


@pytest.fixture(scope="session", autouse=True)
def _no_process_outlives_the_run() -> Iterator[None]:
    with processes.guarded():
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_outlives_its_file() -> Iterator[None]:
    """Collects what a file has left in cycles, and what it has left for good is not visited again.

    What a limiter still does for a Redis that is gone would be reported once a minute, into the log
    that a later test reads. FastAPI keeps the functions of routes, and with them their limiters.
    """
    yield
    redis_uri = sys.modules.get("tidegate.limiter.storage.redis_uri")
    if redis_uri is not None and redis_uri._shared:
        for kept in vars(sys.modules.get("fastapi.dependencies.models", sys)).values():
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock() -> tg.ManualClock:
    """A clock that stands still until a test moves it."""
    import tidegate as tg

    return tg.ManualClock(1_700_000_000 * 10**9)


@pytest.fixture(params=["memory", "shm"])
def storage(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each storage that needs no server."""
    if request.param == "memory":
        yield "memory://"
        return
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield f"shm://{directory}/table?capacity=1000"


@pytest.fixture(scope="session")
def postgres_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        # The user that PostgreSQL runs as must be able to enter it.
        Path(directory).chmod(0o711)
        yield Path(directory)


# Tests of a wheel have no SQLAlchemy, so it is imported by the fixtures that need it.
@pytest.fixture(scope="session")
def shared_postgres(postgres_directory: Path) -> Iterator[PostgresServer]:
    """A server with a database for each test; `pytest -n` has one for each of its processes."""
    from postgres_server import PostgresServer

    with PostgresServer(postgres_directory) as server:
        yield server


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the newest tables, to be copied."""
    from tidegate.rules.sql import upgrade

    path = tmp_path_factory.mktemp("migrated") / "tidegate.db"
    upgrade(f"sqlite:///{path}")
    return path


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names a parameter of bytes that nobody can read by its argument.

    Such bytes may hold the time, and workers must collect the same names.
    """
    if isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable()):
        return argname
    return None
