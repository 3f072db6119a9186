"""Freed memory is returned to the system."""

from __future__ import annotations

import platform

import pytest
from tidegate.server.spare_memory import SpareMemory

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is freed below what is in use"
)

MIB = 1 << 20


class Scripted(SpareMemory):
    """A SpareMemory whose numbers the test sets, in MiB."""

    def __init__(self) -> None:
        self.free, self.resident = 0, 100
        super().__init__(least=20 * MIB)
        self._trim = lambda _: None
        assert not self.give_back()

    def _free(self) -> int:
        return self.free * MIB

    def _resident(self) -> int:
        return self.resident * MIB

    def after(self, free: int, resident: int) -> bool:
        """Returns whether memory is returned at these amounts of free and resident memory."""
        self.free, self.resident = free, resident
        return self.give_back()


def test_memory_that_a_burst_leaves_free_is_returned_once() -> None:
    memory = Scripted()
    assert not memory.after(free=2, resident=180), "all of it is in use"
    assert memory.after(free=82, resident=180)
    assert not memory.after(free=82, resident=100)
    assert not memory.after(free=81, resident=101)
    assert memory.returned == 1


def test_memory_of_a_second_burst_is_returned_again() -> None:
    memory = Scripted()
    assert memory.after(free=80, resident=180)
    assert not memory.after(free=80, resident=100)
    assert not memory.after(free=10, resident=170)
    assert memory.after(free=80, resident=170)


def test_memory_is_returned_if_the_burst_came_before_the_first_look() -> None:
    memory = Scripted()
    assert memory.after(free=80, resident=180)
    assert not memory.after(free=80, resident=100)
    assert memory.after(free=80, resident=170), "it came and went between two looks"


def test_memory_of_the_process_is_returned() -> None:
    memory = SpareMemory(least=20 * MIB)
    memory.give_back()
    # Each block is too small for its own mapping, and kept blocks lie between freed ones.
    blocks = [bytes(3000) for _ in range(20_000)]
    kept = blocks[::500]
    del blocks
    assert memory.give_back()
    assert len(kept) == 40
