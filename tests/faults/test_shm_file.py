"""Files that are no sound store of ours are refused, and damage never crashes anybody."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import flood_campaign
import pytest
import tidegate as tg
from tidegate._core import ShmStore

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")

CHECKED = 112  # bytes of the header under its checksum, and the checksum
HEADER = 4096


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name) / "table"


@pytest.fixture
def sound(path: Path) -> bytes:
    """The bytes of a file with some keys in it; the file itself is gone."""
    with tg.Limiter("10/hour", storage=f"shm://{path}?capacity=1000") as limiter:
        limiter.hit_many([f"k{i}" for i in range(500)])
    data = path.read_bytes()
    path.unlink()
    return data


def write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)


def refusal(path: Path) -> str:
    with pytest.raises(tg.StorageError) as caught:
        ShmStore(str(path))
    return str(caught.value)


def test_what_was_written_is_found_again(path: Path, sound: bytes) -> None:
    write(path, sound)
    with tg.Limiter("10/hour", storage=f"shm://{path}") as limiter:
        assert limiter.stats().keys == 500
        assert limiter.peek("k7").remaining == 9


def test_any_bit_of_the_header_flipped(path: Path, sound: bytes) -> None:
    for byte in range(CHECKED):
        bad = bytearray(sound)
        bad[byte] ^= 1 << (byte % 8)
        write(path, bytes(bad))
        assert "is refused" in refusal(path), byte


@pytest.mark.parametrize("size", [0, 1, 8, 111, 4095, 4096, 4097, 50_000, -1, -4096])
def test_a_truncated_file_is_refused(path: Path, sound: bytes, size: int) -> None:
    write(path, sound[:size])
    assert "bytes" in refusal(path)


def test_a_file_longer_than_its_header_says_is_refused(path: Path, sound: bytes) -> None:
    write(path, sound + b"\0")
    assert f"it has {len(sound) + 1} bytes instead of {len(sound)}" in refusal(path)


def test_zeroed_foreign_and_of_another_version(path: Path, sound: bytes) -> None:
    write(path, bytes(len(sound)))
    assert "not a file of tidegate" in refusal(path)
    write(path, b"SQLite format 3\0" * 4096)
    assert "not a file of tidegate" in refusal(path)
    write(path, sound[:8] + struct.pack("<I", 0) + sound[12:])
    assert "version 0, this tidegate has version 4" in refusal(path)
    assert "tidegate shm remove" in refusal(path)


def test_a_file_with_another_seed_is_refused(path: Path, sound: bytes) -> None:
    write(path, sound[:72] + os.urandom(32) + sound[104:])
    assert "damaged" in refusal(path)


def test_no_regular_file_of_ours(path: Path, sound: bytes) -> None:
    elsewhere = path.with_name("elsewhere")
    write(elsewhere, sound)
    path.symlink_to(elsewhere)
    assert "symbolic link" in refusal(path)
    path.unlink()
    path.mkdir()
    refusal(path)
    path.rmdir()
    os.mkfifo(path)
    assert "not a regular file" in refusal(path)
    write(path, sound)
    path.chmod(0o644)
    assert "mode is 0644" in refusal(path)


def test_damaged_cells_crash_no_process(path: Path, sound: bytes) -> None:
    """Each damaged file in a process of its own, which must end well: any answer will do."""
    work = """
import sys
import tidegate as tg
path, dice = sys.argv[1], __import__("random").Random(int(sys.argv[2]))
sound = open(path + ".sound", "rb").read()
for _ in range(25):
    bad = bytearray(sound)
    kind = dice.randrange(4)
    if kind == 0:
        for _ in range(dice.randrange(1, 2000)):
            bad[dice.randrange(4096, len(bad))] ^= 1 << dice.randrange(8)
    elif kind == 1:
        at = dice.randrange(4096, len(bad))
        bad[at : at + 20000] = dice.randbytes(len(bad[at : at + 20000]))
    elif kind == 2:
        at = dice.randrange(4096, len(bad))
        bad[at : at + 20000] = b"\\xff" * len(bad[at : at + 20000])
    else:
        at = dice.randrange(512, len(bad))
        bad[at:] = bytes(len(bad) - at)
    with open(path, "r+b") as file:
        file.write(bad)
    for algorithm in ("token-bucket", "sliding-window", "fixed-window", "sliding-log"):
        with tg.Limiter("10/hour", storage=f"shm://{path}", algorithm=algorithm) as limiter:
            limiter.hit_many([f"k{i}" for i in range(200)])
            for i in range(100):
                repr(limiter.hit(f"k{i}", cost=2))
                repr(limiter.peek(f"k{i}"))
                limiter.refund(f"k{i}")
                limiter.reset(f"k{i}")
                assert limiter.allow(f"k{i}")
            limiter.storage.census(10)
"""
    write(path.with_name("table.sound"), sound)
    write(path, sound)
    for seed in range(4):
        subprocess.run([sys.executable, "-c", work, str(path), str(seed)], check=True, timeout=120)


def test_a_small_file_system_says_what_is_needed(path: Path) -> None:
    with pytest.raises(tg.StorageError) as caught:
        ShmStore(str(path), 2**32)
    message = str(caught.value)
    assert "for 4294967296 keys needs 171798" in message
    assert "--shm-size" in message
    assert not list(path.parent.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount; run as root to test this")
def test_a_container_with_a_small_shm(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this root may not mount")
    try:
        with pytest.raises(tg.StorageError) as caught:
            tg.Limiter("1/s", storage=f"shm://{small}/table?capacity=100000")
        message = str(caught.value)
        assert "for 100000 keys needs 4333568 bytes (4.3 MB)" in message
        assert "1.0 MB of 1.0 MB are free there" in message
        assert not list(small.iterdir())
        assert ShmStore(str(small / "table"), 1000).capacity == 1000
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.mark.parametrize(
    "uri",
    [
        "shm://", "shm:///", "shm://a/b", "shm://a b", "shm://" + "a" * 101, "shm://x?size=1",
        "shm://x?capacity=0", "shm://x?capacity=many", "shm://x#y", "shm://../x", "shm:x",
    ],
)  # fmt: skip
def test_what_is_no_name_raises_at_construction(uri: str) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected"):
        tg.Limiter("1/s", storage=uri)


def test_the_capacity_is_fixed_when_it_is_made(path: Path) -> None:
    assert ShmStore(str(path), 5000).capacity == 5000
    assert ShmStore(str(path)).capacity == 5000
    with pytest.raises(tg.ConfigurationError, match="was made for 5000 keys, not for 6000"):
        ShmStore(str(path), 6000)


def test_a_log_that_is_too_long_raises_at_construction(path: Path) -> None:
    for algorithm in ("sliding-log", "concurrency"):
        with pytest.raises(tg.ConfigurationError, match="remembers 16385 admissions"):
            tg.Limiter("16385/hour", storage=f"shm://{path}?capacity=100000", algorithm=algorithm)


def test_a_flood_of_fresh_keys_is_survived_and_counted(path: Path) -> None:
    clock = tg.ManualClock(10**18)
    with tg.Limiter("2/hour", storage=f"shm://{path}?capacity=3000", clock=clock) as limiter:
        size = path.stat().st_size
        for i in range(0, 50_000, 1000):
            limiter.hit_many([f"flood{n}" for n in range(i, i + 1000)])
        stats = limiter.stats()
        assert stats.evicted_live > 40_000
        assert stats.keys <= 4096
        clock.advance(4000)
        limiter.hit_many([f"late{n}" for n in range(3000)])
        assert limiter.stats().evicted_live == stats.evicted_live
        assert limiter.stats().evictions > 2000
        assert path.stat().st_size == size


@pytest.mark.parametrize(
    "algorithm", ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]
)
def test_steady_clients_keep_their_limits_in_a_flood(path: Path, algorithm: str) -> None:
    clock = tg.ManualClock(10**18)
    storage = f"shm://{path}?capacity=3000"
    with tg.Limiter("10/hour", storage=storage, algorithm=algorithm, clock=clock) as limiter:
        steady = [f"steady{i}" for i in range(50)]
        for _ in range(8):
            limiter.hit_many(steady)
        dice = random.Random(1)
        for i in range(20_000):
            limiter.allow(f"flood{dice.random()}-{i}")
        assert [limiter.peek(key).remaining for key in steady] == [2] * 50


def test_a_flood_costs_steady_clients_no_decision() -> None:
    """`make flood` in small: a hundred keys for each that has room."""
    report = flood_campaign.campaign(1_000_000, 10_000, 100, 20_000)
    assert report.decisions > 1_000
    assert report.evicted_live > 500_000
    assert report.share <= 0.001
    assert report.memory_growth < 8_000_000
    assert report.file_growth == 0
