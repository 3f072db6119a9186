"""Rules that a process of its own reads: they are those that are read here, mistakes too."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from polling import eventually
from tidegate import _core
from tidegate.rules import RuleFile, RulesError, RuleSet
from tidegate.rules.document import read_file
from tidegate.rules.reading import (
    CannotReadApart,
    ClosedMeanwhile,
    Version,
    read_apart,
    read_here,
)
from tidegate.rules.source import Reading

# Every field of a document, and enough rules to take long.
DOCUMENT: dict[str, Any] = {
    "tiers": ["free", "premium"],
    "default_tier": "free",
    "algorithm": "fixed-window",
    "default": {"by": "ip", "limits": "7/hour", "headers": False},
    "rules": [
        {
            "id": "api",
            "by": "user+endpoint",
            "endpoint": "/api/{id}/*",
            "methods": ["get", "post"],
            "limits": {"free": ["10/second", "100/month"], "premium": "unlimited"},
            "when": {"region": "eu"},
            "counter": "shared",
            "reserve": {"normal": "20%", "background": "40%"},
            "description": "of the API",
        },
        {"id": "off", "limits": "1/hour", "enabled": False},
        {"id": "log", "by": "user", "limits": "3/minute", "algorithm": "sliding-log"},
        {
            "id": "shadow",
            "limits": "10/second",
            "algorithm": "token-bucket",
            "carry_over": "proportional",
            "shadow": True,
            "counts": "requests",
            "replaces": ["log"],
            "networks": "10.0.0.0/8",
        },
        {"id": "burst", "by": "tenant", "limits": "1/second burst 4", "algorithm": "leaky-bucket"},
        *[
            {"id": f"r{i}", "by": "user", "endpoint": f"/r/{i}", "limits": "9/day"}
            for i in range(90)
        ],
    ],
    "overrides": [
        {"rule": "log", "key": "42", "limits": "50/minute", "until": "2100-01-01", "reason": "big"},
        {"rule": "r1", "key": 7, "limits": "unlimited"},
    ],
    "costs": [{"endpoint": "/r/**", "method": "POST", "cost": 5, "priority": "critical"}],
    "allow": [{"ip": "192.0.2.0/24", "id": "office"}],
    "block": [{"user": "mallory", "reason": "fraud"}],
}
REQUESTS: list[dict[str, str]] = [
    {"user": "42", "endpoint": "/api/1/x", "method": "GET", "region": "eu", "ip": "10.1.2.3"},
    {"user": "42", "endpoint": "/elsewhere", "ip": "203.0.113.9"},
    {"user": "7", "endpoint": "/r/1", "method": "POST", "tier": "premium", "ip": "203.0.113.9"},
    {"user": "mallory", "endpoint": "/r/1"},
    {"user": "8", "endpoint": "/r/1", "ip": "192.0.2.7"},
    {"endpoint": "/nobody", "ip": "203.0.113.9"},
    {"tenant": "t", "endpoint": "/elsewhere", "ip": "203.0.113.9"},
]


@pytest.fixture(autouse=True)
def _some_rules_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.rules.file._MOST_BYTES_HERE", 4096)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def apart(read: Any, *, keeps_text: bool = False) -> Version:
    return read_apart(read, keeps_text=keeps_text, stop=threading.Event())


def test_rules_read_apart_are_those_read_here(path: Path) -> None:
    read = partial(read_file, path)
    found, expected = apart(read, keeps_text=True), read_here(read, keeps_text=True)
    assert found.text == expected.text
    here: RuleSet = expected.rules
    there: RuleSet = found.rules
    assert there.digest == here.digest
    assert (there.rules, there.default) == (here.rules, here.default)
    ready = {"_compiled", "_model"}
    assert {k: v for k, v in vars(there).items() if k not in ready} == {
        k: v for k, v in vars(here).items() if k not in ready
    }
    clock = tg.ManualClock(start_ns=10**18)
    for request in REQUESTS:
        limiters = [tg.Limiter(rules=rules, clock=clock) for rules in (here, there)]
        seen = [
            ([repr(limiter.check(**request)) for _ in range(4)], repr(limiter.explain(**request)))
            for limiter in limiters
        ]
        assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document["rules"][5].update(limits="9/dya"), "rules[5].limits: "),
        (lambda document: document["rules"].append(document["rules"][0]), "rules[95].id: "),
        (lambda document: document.update(ruls=[]), "did you mean 'rules'"),
    ],
)
def test_a_mistake_is_named_as_it_is_here(path: Path, change: Any, message: str) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document, indent=1))
    read = partial(read_file, path)
    found, expected = apart(read).refusal, read_here(read, keeps_text=False).refusal
    assert isinstance(found, RulesError)
    assert isinstance(expected, RulesError)
    assert message in str(found)
    assert (str(found), found.problems) == (str(expected), expected.problems)


def test_a_file_that_is_not_there_raises_what_it_does_here(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(FileNotFoundError) as raised:
        apart(partial(read_file, missing))
    assert raised.value.filename == str(missing)


def test_a_source_of_many_rules_sees_versions_good_and_bad(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RuleFile(path, interval=0.01) as source, caplog.at_level(logging.INFO, "tidegate"):
        limiter = tg.Limiter(rules=source)
        document = json.loads(path.read_text())
        document["default"]["limits"] = "8/hour"
        path.write_text(json.dumps(document))
        eventually(lambda: limiter.check(ip="203.0.113.9").limit == 8)
        path.write_text(json.dumps({**document, "ruls": []}))
        eventually(lambda: source.refused == 1)
        assert "did you mean 'rules'" in str(source.last_error)
        assert limiter.check(ip="203.0.113.9").limit == 8
        assert len(source.current.rules) == 95
    assert "within this process" not in caplog.text


def test_where_there_is_no_process_the_rules_are_read_here(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/sbin/server-that-embeds")
    with RuleFile(path, interval=60) as source:
        for count in (8, 9):
            document = {**DOCUMENT, "default": {"limits": f"{count}/hour"}}
            path.write_text(json.dumps(document))
            assert source.refresh()
    assert caplog.text.count("its rules are read within this process from now on") == 1
    assert "'/usr/sbin/server-that-embeds' is not Python" in caplog.text


def test_a_process_of_another_version_is_not_believed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "__version__", "0.0.1")
    with pytest.raises(CannotReadApart, match=r"is installed, 0\.0\.1 is running"):
        apart(partial(read_file, path))


def test_bytes_that_were_cut_short_are_refused() -> None:
    rules = RuleSet._packed(read_document())
    for size in (0, 1, len(rules["_compiled"]) // 2, len(rules["_compiled"]) - 1):
        with pytest.raises(ValueError, match="are not those of a specification"):
            RuleSet._unpacked({**rules, "_compiled": rules["_compiled"][:size]})


def read_document() -> Any:
    from tidegate.rules.document import Document

    return Document(DOCUMENT, "<dict>", lambda where: None)


def test_closing_ends_a_process_that_reads() -> None:
    stop = threading.Event()
    begun = time.monotonic()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(ClosedMeanwhile):
        read_apart(partial(time.sleep, 60), keeps_text=False, stop=stop)
    assert time.monotonic() - begun < 30


def test_what_a_process_prints_is_no_answer() -> None:
    assert isinstance(apart(partial(print, "noise")).refusal, AttributeError), "None is no document"


class Killed:
    """Kills the process that reads for the first `times`, as a system short of memory does."""

    def __init__(self, path: Path, marks: Path, times: int) -> None:
        self.path, self.marks, self.times, self.parent = path, marks, times, os.getpid()

    def __call__(self) -> Any:
        tried = len(list(self.marks.iterdir()))
        if tried < self.times and os.getpid() != self.parent:
            (self.marks / str(tried)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return read_file(self.path)


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_that_was_killed_has_a_successor(
    times: int, path: Path, tmp_path: Path, caplog: Any
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with RuleFile(path) as source:
        reading = Reading(Killed(path, marks, times), takes_long=True)
        assert source._version(reading).refusal is None
        assert len(list(marks.iterdir())) == times
        assert source._reads_apart, "later versions are read by a process again"
    was_said = "its rules are read within this process, where requests may wait" in caplog.text
    assert was_said == (times == 2)
