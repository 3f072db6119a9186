"""Rules from a file that changes while they are in force."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tidegate as tg
from polling import eventually
from tidegate.rules import RuleFile, RulesError
from tidegate.rules.document import Document, read_file
from tidegate.rules.file import FileWatch


def write(path: Path, count: int) -> None:
    path.write_text(f"rules: [{{id: api, by: user, limit: {count}/hour}}]\n")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    write(path, 2)
    return path


def limit_of(limiter: tg.Limiter) -> int:
    return limiter.check(user=os.urandom(8).hex()).limit


def test_a_new_version_comes_into_force_soon_and_usage_stays(path: Path) -> None:
    with RuleFile(path, interval=0.01) as source:
        limiter = tg.Limiter(rules=source)
        assert [bool(limiter.check(user="1")) for _ in range(3)] == [True, True, False]
        write(path, 3)
        eventually(lambda: limit_of(limiter) == 3)
        assert limiter.check(user="1")
        assert not limiter.check(user="1")


def test_a_file_that_is_replaced_or_a_link_that_is_swapped_is_a_new_version(path: Path) -> None:
    # As Kubernetes mounts a ConfigMap: rules.yaml -> ..data/rules.yaml, and ..data -> ..2026_1.
    mount = path.parent / "mount"
    for version, count in (("..1", 5), ("..2", 6)):
        (mount / version).mkdir(parents=True)
        write(mount / version / "rules.yaml", count)
    (mount / "..data").symlink_to("..1")
    (mount / "rules.yaml").symlink_to("..data/rules.yaml")
    with RuleFile(mount / "rules.yaml", interval=0.01) as source:
        limiter = tg.Limiter(rules=source)
        assert limit_of(limiter) == 5
        (mount / "..data_tmp").symlink_to("..2")
        (mount / "..data_tmp").rename(mount / "..data")
        eventually(lambda: limit_of(limiter) == 6)


def test_a_version_that_is_not_valid_is_refused_once_and_the_rules_before_stay(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RuleFile(path, interval=0.01) as source, caplog.at_level(logging.INFO, "tidegate"):
        limiter = tg.Limiter(rules=source)
        path.write_text("rules: [{id: api, by: user, limit: 5/mnute}]\n")
        eventually(lambda: source.refused == 1)
        assert "rules[0].limit: " in str(source.last_error)
        assert limit_of(limiter) == 2
        path.write_text("")
        eventually(lambda: source.refused == 2)
        assert limit_of(limiter) == 2
        path.unlink()
        eventually(lambda: source.failures >= 1)
        assert limit_of(limiter) == 2
        write(path, 7)
        eventually(lambda: limit_of(limiter) == 7)
        assert source.last_error is None
    assert caplog.text.count("was refused") == 2


def test_a_file_is_read_when_it_has_stayed_the_same_for_a_while() -> None:
    stamps = iter([1, 2, 2, 3, 3, 3])
    watch = FileWatch(lambda: next(stamps), interval=0.01)
    watch.wait(threading.Event())
    assert next(stamps, None) is None, "it looked until three stamps were equal"


def test_a_version_whose_size_and_time_are_those_of_the_one_before_is_new(path: Path) -> None:
    with RuleFile(path, interval=60) as source:
        before = path.stat()
        write(path, 9)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (
            before.st_size,
            before.st_mtime_ns,
        )
        assert source.refresh()


def test_half_of_a_file_that_is_written_meanwhile_is_not_taken(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = "rules:\n- id: api\n  by: user\n  limit: 3/hour\n  endpoint: /login\n"
    halves = iter([whole[: whole.index("  endpoint")], "rules: [{id: a"])
    # The times of files are coarse, so that each version here has a size of its own.
    sizes = itertools.count(1)

    def read_half(of: Path) -> Document:
        half = next(halves, None)
        if half is None:
            return read_file(of)
        of.write_text(half)
        try:
            return read_file(of)
        finally:
            of.write_text(whole + "\n" * next(sizes))

    with RuleFile(path, interval=60) as source, caplog.at_level(logging.INFO, "tidegate"):
        begun = source.current
        monkeypatch.setattr("tidegate.rules.file.read_file", read_half)
        path.write_text(whole)
        assert not source.refresh(), "its last line was missing"
        assert not source.refresh(), "half a line is no mistake of anybody"
        assert source.current is begun
        assert not caplog.records
        assert source.refused == source.failures == 0
        assert source.refresh()
        assert source.current.rules[0].endpoints == ["/login"]

    halves = iter([whole[: whole.index("  endpoint")]])
    with RuleFile(path) as source:
        assert source.current.rules[0].endpoints == ["/login"], "it was read again"
    halves = iter([whole[:60]] * 20)
    with pytest.raises(OSError, match=r"changed while it was read; expected one that stays"):
        RuleFile(path)


@pytest.mark.parametrize(
    "nothing",
    [
        "{}",
        "rules: []",
        "block: [{user: mallory}]",
        "rules: [{id: api, by: user, limit: 2/hour, enabled: false}]",
    ],
)
def test_a_version_without_a_rule_in_force_is_refused(
    path: Path, nothing: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RuleFile(path, interval=60) as source, caplog.at_level(logging.INFO, "tidegate"):
        limiter = tg.Limiter(rules=source)
        path.write_text(nothing)
        assert not source.refresh()
        assert limit_of(limiter) == 2
        assert source.refused == 1
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert "no rule is in force, and 1 were before; expected" in record.getMessage()
        write(path, 5)
        assert source.refresh()
        assert limit_of(limiter) == 5
        assert source.last_error is None

    write(path, 2)
    with RuleFile(path, interval=60, allow_empty=True) as source:
        path.write_text(nothing)
        assert source.refresh(), "it was allowed"


def test_a_block_list_is_not_lost_either(path: Path) -> None:
    path.write_text("block: [{user: mallory}]")
    with RuleFile(path, interval=60) as source:
        path.write_text("{}")
        assert not source.refresh()
        assert "`block` had 1 before" in str(source.last_error)


def test_a_start_without_a_rule_in_force_warns_or_takes_the_kept_ones(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "kept.json"
    RuleFile(path, cache=cache).close()
    path.write_text("{}")
    RuleFile(path, allow_empty=True).close()
    assert not caplog.records
    RuleFile(path).close()
    assert "begins without a rule in force, so that no request is limited" in caplog.text
    with RuleFile(path, cache=cache) as source:
        assert source.current.in_force == 1
        assert source.refused == 1
    with pytest.raises(tg.ConfigurationError, match="allow_empty is 1; expected True or False"):
        RuleFile(path, allow_empty=1)  # type: ignore[arg-type]


def test_limiters_can_be_attached_and_callbacks_get_new_versions(path: Path) -> None:
    with RuleFile(path, interval=60) as source:
        heard = []
        stop = source.subscribe(heard.append)
        write(path, 4)
        assert source.refresh()
        assert [rules.digest for rules in heard] == [source.current.digest]
        stop()
        write(path, 5)
        assert source.refresh()
        assert not source.refresh()
        assert len(heard) == 1


def test_mistakes_at_construction_raise(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RuleFile(tmp_path / "none.yaml")
    with pytest.raises(tg.ConfigurationError, match="interval is 0"):
        RuleFile(path, interval=0)
    path.write_text("rules: 5")
    with pytest.raises(RulesError, match=r"rules.yaml:1: rules: is 5; expected a list"):
        RuleFile(path)


def test_forked_workers_see_a_change(path: Path) -> None:
    program = f"""
import os, sys, time
import tidegate as tg
from tidegate.rules import RuleFile
path = {str(path)!r}
limiter = tg.Limiter(rules=RuleFile(path, interval=0.05))
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        for _ in range(600):
            if limiter.check(user="1").limit == 9:
                os._exit(0)
            time.sleep(0.05)
        os._exit(1)
    children.append(child)
open(path, "w").write("rules: [{{id: api, by: user, limit: 9/hour}}]")
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_last_error_stays_when_a_missing_file_returns_unchanged(path: Path, tmp_path: Path) -> None:
    with RuleFile(path, interval=60) as source:
        path.write_text("rules: 5")
        source.refresh()
        refusal = source.last_error
        path.rename(tmp_path / "away")
        source.refresh()
        assert isinstance(source.last_error, FileNotFoundError)
        (tmp_path / "away").rename(path)
        source.refresh()
        assert (str(source.last_error), source.refused) == (str(refusal), 1)


def test_a_file_that_no_limiter_follows_any_longer_keeps_no_thread(path: Path) -> None:
    source = RuleFile(path, interval=0.005)
    limiter = tg.Limiter(rules=source)
    thread = source._thread
    assert thread is not None
    assert thread.is_alive()
    del limiter
    gc.collect()
    eventually(lambda: not thread.is_alive())
    again = tg.Limiter(rules=source)
    write(path, 7)
    eventually(lambda: limit_of(again) == 7)
    source.close()


@pytest.mark.parametrize("kept", [b'{"rules": [', b"\xff\xfe", b"[1]", b'{"rules": [{"id": "a"}]}'])
def test_a_damaged_cache_is_named_beside_what_failed(
    kept: bytes, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "kept.json"
    cache.write_bytes(kept)
    with RuleFile(path, cache=cache) as source:
        assert source.current.in_force == 1, "it is not needed"
    cache.write_bytes(kept)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"rules\.yaml"):
        RuleFile(path, cache=cache)
    assert f"the rules kept in {cache} cannot be used: " in caplog.text
