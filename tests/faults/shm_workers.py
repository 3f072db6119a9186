"""Processes that hit one shared memory, for the tests and for the crash campaign.

A worker is a fresh interpreter, not a fork. It counts what it admitted on a page of its own,
before and after each call, so that whoever kills it knows what it may have had in its hands.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

import processes

_BOARD_BYTES = 4096
_WORD = struct.Struct("<q")

# Hits keys in turn, each time noting on the board that it asks (word 0) and was admitted (1 + key).
# Between them, if asked to, it enters keys that nobody had before.
_LOOP = """
import mmap, os, struct, sys
import tidegate as tg

board_path, storage, limit, algorithm, keys, hits, prefix, fresh = sys.argv[1:9]
keys, hits, fresh = int(keys), int(hits), int(fresh)
with open(board_path, "r+b") as file:
    board = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")
limiter = tg.Limiter(limit, storage=storage, algorithm=algorithm, prefix=prefix)
flood = tg.Limiter("1000/second", storage=storage, prefix=prefix)
names = [f"key{i}" for i in range(keys)]
print("ready", flush=True)
sys.stdin.readline()
n = 0
while hits < 0 or n < hits:
    k = n % keys
    board[0] = n + 1
    if limiter.allow(names[k]):
        board[1 + k] += 1
    n += 1
    board[511] = n
    if fresh:
        flood.allow(f"{os.getpid()}-{n}")
print("done", flush=True)
sys.stdin.readline()
"""


class Worker:
    """One process, made ready; it starts to hit when told to go()."""

    def __init__(
        self,
        directory: Path,
        storage: str,
        limit: str,
        *,
        algorithm: str = "token-bucket",
        keys: int = 1,
        hits: int = -1,
        prefix: str = "tg",
        fresh: bool = False,
    ) -> None:
        self.keys = keys
        self._path = directory / f"board-{os.urandom(6).hex()}"
        self._path.write_bytes(bytes(_BOARD_BYTES))
        with self._path.open("r+b") as file:
            self._board = mmap.mmap(file.fileno(), _BOARD_BYTES)
        arguments = [str(self._path), storage, limit, algorithm, str(keys), str(hits), prefix]
        arguments.append(str(int(fresh)))
        self.process = processes.start(
            [sys.executable, "-c", _LOOP, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line == word, (line, self.process.poll())

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def _word(self, index: int) -> int:
        value: int = _WORD.unpack_from(self._board, 8 * index)[0]
        return value

    @property
    def asked(self) -> int:
        return self._word(0)

    @property
    def answered(self) -> int:
        return self._word(511)

    def admitted(self, key: int = 0) -> int:
        return self._word(1 + key)

    def end(self) -> None:
        processes.stop(self.process)
        self.process.communicate()
        self._path.unlink()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()
