"""A TCP proxy to a port of this host that delays what it carries: a server that is far away.

python far_away.py PORT MILLISECONDS: prints its port, and ends when its standard input does. Half
of the time passes on the way there, half on the way back; bytes keep their order, and later ones
do not wait for earlier ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator

import harness


@contextlib.contextmanager
def far_away(port: int, milliseconds: float) -> Iterator[int]:
    """The port of such a proxy, in a process of its own."""
    command = [sys.executable, __file__, str(port), str(milliseconds)]
    with harness.server_process(command) as (nearby, _):
        yield nearby


class _Side(asyncio.Protocol):
    """One end of a connection; what it reads is written at the other end, later."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.other: _Side | None = None
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []  # until the other end is connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.early.append(data)
        else:
            asyncio.get_running_loop().call_later(self.delay, self.other.transport.write, data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def _serve(port: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    tasks = set()

    async def join(near: _Side) -> None:
        far = _Side(delay)
        far.other = near
        await loop.create_connection(lambda: far, "127.0.0.1", port)
        near.other = far
        early, near.early = near.early, []
        for data in early:
            near.data_received(data)

    def accepted() -> _Side:
        near = _Side(delay)
        task = loop.create_task(join(near))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return near

    server = await loop.create_server(accepted, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 2000))
