"""Fires requests at four gunicorn workers, once on memory:// and once on shm://.

    pip install tidegate gunicorn
    python compare.py

The limit is 100 in 10 hours, so that no units come back while this runs.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tidegate._core import ShmStore

_WORKERS = 4
_LIMIT = 100
# How long to wait for workers that start late, in seconds.
_PATIENCE = 20.0
_HERE = Path(__file__).parent


def fire(storage: str) -> tuple[Counter[int], int]:
    """Counts responses by status, and the workers that allowed requests."""
    # This process takes the port, so that no other can; gunicorn inherits the listener.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    environment = {**os.environ, "STORAGE": storage, "LIMIT": f"{_LIMIT}/10 hours"}
    command = [
        sys.executable, "-m", "gunicorn", "--workers", str(_WORKERS), "--log-level", "warning",
        "--bind", f"fd://{listener.fileno()}", "--chdir", str(_HERE), "app:app",
    ]  # fmt: skip
    server = subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()])
    listener.close()
    try:
        # The kernel chooses the worker of each request. Every worker must use up its limit.
        statuses: Counter[int] = Counter()
        answered_by: set[bytes] = set()
        allowed_by: set[bytes] = set()
        give_up_at = time.monotonic() + _PATIENCE
        mutex = threading.Lock()
        refused_in_a_row = 0

        def is_done() -> bool:
            all_answered = len(answered_by) == _WORKERS or time.monotonic() > give_up_at
            return (refused_in_a_row >= 200 and all_answered) or server.poll() is not None

        def client() -> None:
            nonlocal refused_in_a_row
            while True:
                with mutex:
                    if is_done():
                        return
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("GET", "/")
                response = connection.getresponse()
                worker = response.read()
                connection.close()
                with mutex:
                    statuses[response.status] += 1
                    answered_by.add(worker)
                    refused_in_a_row = 0 if response.status == 200 else refused_in_a_row + 1
                    if response.status == 200:
                        allowed_by.add(worker)

        clients = [threading.Thread(target=client) for _ in range(2 * _WORKERS)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        return statuses, len(allowed_by)
    finally:
        server.terminate()
        server.wait()


def main() -> int:
    """Prints the table; 1 unless shm:// held the limit."""
    name = f"gunicorn-example-{os.getpid()}-{time.time_ns()}"
    print(f"{_WORKERS} workers, a limit of {_LIMIT} for each client, requests of one client\n")
    print(f"{'storage':<12}{'allowed':>9}{'refused':>9}{'workers':>9}{'times the limit':>17}")
    allowed = 0
    try:
        for storage, shown in (("memory://", "memory://"), (f"shm://{name}", "shm://…")):
            statuses, workers = fire(storage)
            allowed = statuses[200]
            times = f"{allowed / _LIMIT:.2f}"
            print(f"{shown:<12}{allowed:>9}{statuses[429]:>9}{workers:>9}{times:>17}")
    finally:
        ShmStore.remove(name)
    return 0 if allowed == _LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
