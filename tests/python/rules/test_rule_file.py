"""Rules from a file that changes while they are in force."""

from __future__ import annotations

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
    stamps = iter([1, 2, 3, 3])
    watch = FileWatch(lambda: next(stamps), interval=0.01)
    watch.wait(threading.Event())
    assert next(stamps, None) is None, "it looked until two stamps were equal"


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
        assert (source.last_error, source.refused) == (refusal, 1)
