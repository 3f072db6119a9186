"""Threads that work beside the calls, at a fork and at the interpreter's exit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref

import pytest
from tidegate.limiter.background import Repeating, copied, renew_after_fork


def test_a_step_is_repeated_until_it_is_closed() -> None:
    third = threading.Event()
    steps: list[int] = []

    def step() -> None:
        steps.append(len(steps))
        if len(steps) == 3:
            third.set()

    repeating = Repeating(step, 0.001, "tidegate test")
    repeating.start()
    assert third.wait(30)
    repeating.close()
    done = len(steps)
    assert not any(each.name == "tidegate test" for each in threading.enumerate())
    assert len(steps) == done


def test_what_never_started_can_be_closed() -> None:
    Repeating(lambda: None, 1.0, "tidegate test").close()


def test_a_copy_of_an_event_is_set_if_the_event_is() -> None:
    event = threading.Event()
    assert not copied(event).is_set()
    event.set()
    assert copied(event).is_set()


class Forking:
    def __init__(self) -> None:
        self.process = os.getpid()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self.process = os.getpid()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork()")
def test_a_child_renews_what_lives() -> None:
    forking = Forking()
    gone = weakref.ref(Forking())
    assert gone() is None
    child = os.fork()
    if child == 0:
        os._exit(0 if forking.process == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert forking.process == os.getpid()


ENDING = r"""
import atexit, os, threading
from tidegate.limiter.background import end_at_exit

atexit.register(lambda: os.write(1, b"driver\n"))

class Worker:
    def __init__(self):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        end_at_exit(self)

    def run(self):
        self._stop.wait()
        os.write(1, b"ended\n")

workers = [Worker(), Worker()]
"""


def test_threads_end_before_what_was_imported_earlier_at_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["ended", "ended", "driver"]
