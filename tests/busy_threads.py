"""Threads that work without a pause while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from typing_extensions import Self


class BusyThreads:
    """A thread for each work, which takes one step after another until the block ends.

    A thread whose work raises ends before; what it raised is in `errors`.
    """

    def __init__(self, *works: Callable[[], Iterator[None]]) -> None:
        self.errors: list[BaseException] = []
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def _run(self, work: Callable[[], Iterator[None]]) -> None:
        try:
            for _ in work():
                if self._end.is_set():
                    return
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
