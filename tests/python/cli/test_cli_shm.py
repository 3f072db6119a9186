"""`tidegate shm`, over a memory of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tidegate
from tidegate._core import ShmStore
from tidegate.cli.main import main


def test_a_memory_is_listed_shown_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"cli-{os.getpid()}"
    limiter = tidegate.Limiter("100/hour", storage=f"shm://{name}?capacity=1000")
    try:
        limiter.hit("user:42", cost=50)
        assert main(["shm", "list"]) == 0
        (row,) = [line for line in capsys.readouterr().out.splitlines() if name in line]
        assert row.split()[1:3] == ["1,000", "1"]

        assert main(["shm", "show", name]) == 0
        shown = capsys.readouterr().out
        assert ShmStore.path_of(name) in shown
        assert "  live               1\n" in shown

        assert main(["shm", "top", name, "--rounds", "1", "--interval", "0"]) == 0
        busiest = capsys.readouterr().out.splitlines()[-1]
        assert 1700 < float(busiest.split()[1]) <= 1800
    finally:
        assert main(["shm", "remove", name]) == 0
    assert not os.path.exists(ShmStore.path_of(name))
    capsys.readouterr()
    assert main(["shm", "show", name]) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"notes", b"tidegate"[::-1] * 100])
def test_by_a_path_only_files_of_tidegate_are_removed(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.write_bytes(content)
    other.chmod(0o600)
    assert main(["shm", "remove", str(other)]) != 0
    assert f"{other} is not removed: it is not a file of tidegate" in capsys.readouterr().err
    assert other.read_bytes() == content
    ours = tmp_path / "ours"
    tidegate.Limiter("100/hour", storage=f"shm://{ours}?capacity=1000").hit("k")
    assert main(["shm", "remove", str(ours)]) == 0
    assert not ours.exists()


def test_a_damaged_memory_is_removed_by_its_name() -> None:
    path = Path(ShmStore.path_of(f"cli-damaged-{os.getpid()}"))
    path.write_bytes(b"notes")
    assert main(["shm", "remove", f"cli-damaged-{os.getpid()}"]) == 0
    assert not path.exists()
