"""Uses of a database that take longer than they may."""

from __future__ import annotations

import os
import threading

import pytest
from polling import eventually
from tidegate.rules.sql.deadlines import within


def test_a_block_that_takes_too_long_is_told_so_and_others_are_not() -> None:
    called: list[str] = []
    with within(3600, lambda: called.append("long")):
        for _ in range(2):
            with within(0.001, lambda: called.append("short")):
                before = len(called)
                eventually(lambda before=before: len(called) > before)  # type: ignore[misc]
        with within(3600, lambda: called.append("never")):
            pass
    assert called == ["short", "short"]


def test_many_blocks_have_one_thread() -> None:
    with within(3600, lambda: None):
        before = threading.active_count()
        for _ in range(100):
            with within(3600, lambda: None):
                assert threading.active_count() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_deadlines_of_its_own() -> None:
    with within(3600, lambda: None):
        child = os.fork()
        if child == 0:
            called = threading.Event()
            with within(0.001, called.set):
                os._exit(0 if called.wait(60) else 1)
        assert os.waitpid(child, 0)[1] == 0
