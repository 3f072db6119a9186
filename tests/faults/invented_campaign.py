"""Asks `tidegate serve` for checks of users that are invented for each request, at full speed.

    python tests/faults/invented_campaign.py --seconds 120 --most-bytes 67108864

Meanwhile known users make requests as before, and an operator makes overrides and ends tokens, one
after the other or each `--operator-every` seconds. Prints each ten seconds, in a long run each
minute, how large the database is and how much the service has written to the disk, and at the end
which of its threads wrote how much and how long the operator waited. Exits with status 1 if the
database was larger than its bound, if all threads but those that answer the operator wrote more
than the bound to the disk, if the history does not have every request of the known users, if a
change took longer than `--within` seconds, or if it was not in force once it was answered.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import secrets
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import httpx
from serving import Served

KNOWN = 50
# A launcher that gives threads of the service their names in the kernel too, as Python 3.14 does.
NAMED = str(Path(__file__).with_name("named_threads.py"))
OF_HISTORY, OF_OPERATOR = "UsageHistory", "AnyIO worker th"
# Two writes of the history make a user known to it.
HEAD_START = 25.0
BATCH = 100
SETTINGS = """
checks: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
usage: {{most_bytes: {most_bytes}}}
log: {{format: json, refusals: false}}
"""


def invent(port: int, stop: Any, answers: Any) -> None:
    """Sends checks of new users, a batch of them at once, until `stop` is set."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while not stop.is_set():
            users = [secrets.token_hex(12) for _ in range(BATCH)]
            connection.sendall(b"".join(request_of(user) for user in users))
            left = BATCH
            rest = b""
            while left:
                received = rest + connection.recv(2**18)
                left -= received.count(b"HTTP/1.1 ")
                rest = received[-8:] if left else b""  # a status line may be in two parts
            with answers.get_lock():
                answers.value += BATCH


def request_of(user: str) -> bytes:
    body = b'{"userId":"%s","endpoint":"/a"}' % user.encode()
    head = b"POST /v1/ratelimit/check HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


class Known(threading.Thread):
    """Makes requests of the known users, one after the other."""

    def __init__(self, checks: str) -> None:
        super().__init__(daemon=True)
        self._checks = checks
        self._stop_asked = threading.Event()
        self.sent: Counter[str] = Counter()
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self._checks, timeout=60) as client:
            while not self._stop_asked.is_set():
                for user in map("known{}".format, range(KNOWN)):
                    asked = {"userId": user, "endpoint": "/a"}
                    answer = client.post("/v1/ratelimit/check", json=asked)
                    answer.raise_for_status()
                    self.sent[user] += 1
                self._stop_asked.wait(0.2)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


class RefusedError(Exception):
    """A change was not made."""


class Operator:
    """Makes changes, and measures how long their answers take."""

    def __init__(self, served: Served) -> None:
        self._checks = served.checks
        token = served.make_token("admin")
        self._client = httpx.Client(
            base_url=f"{served.admin}/v1/admin",
            headers={"Authorization": f"Bearer {token}"},
            limits=httpx.Limits(keepalive_expiry=1.0),  # the service closes idle connections
            timeout=60,
        )
        self.took: dict[str, list[float]] = {"override": [], "revocation": [], "read": []}
        self.wrong: list[str] = []

    def make_rules(self) -> None:
        rule = {"id": "api", "by": "user", "limit": "1000000/hour"}
        self._ask("POST", "/ratelimit/rules", {"rules": [rule]})

    def _ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        answer = self._client.request(method, path, json=body)
        if not answer.is_success:
            raise RefusedError(f"{method} {path} was answered {answer.text}")
        return answer

    def try_to_act(self) -> None:
        try:
            self.act()
        except (RefusedError, httpx.TransportError) as error:
            self.wrong.append(f"at {time.strftime('%X')} {error!r}")
            print(self.wrong[-1], flush=True)

    def act(self) -> None:
        user = f"operated{secrets.token_hex(4)}"
        override = {"rule": "api", "key": user, "limits": "7/hour"}
        begun = time.monotonic()
        self._ask("POST", "/ratelimit/overrides", override)
        self.took["override"].append(time.monotonic() - begun)
        limit = httpx.post(
            f"{self._checks}/v1/ratelimit/check",
            json={"userId": user, "endpoint": "/a"},
            timeout=60,
        ).headers["x-ratelimit-limit"]
        if not limit.startswith("7"):
            self.wrong.append(f"an override was not in force: the limit was {limit}")
        made = self._ask("POST", "/tokens", {"name": "temporary", "role": "viewer"}).json()
        begun = time.monotonic()
        self._ask("DELETE", f"/tokens/{made['id']}")
        self.took["revocation"].append(time.monotonic() - begun)
        stolen = {"Authorization": f"Bearer {made['token']}"}
        status = self._client.get("/whoami", headers=stolen).status_code
        if status not in (401, 429):  # 429 after many wrong tokens
            self.wrong.append(f"a token that was revoked was answered {status}")
        begun = time.monotonic()
        self._ask("GET", "/users")
        self.took["read"].append(time.monotonic() - begun)


def bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("tidegate.db*"))


class Written:
    """How many bytes the process has sent to the disk since it was made, also by thread.

    A page of a file counts for the thread that changed it first since it was last written.
    """

    def __init__(self, process: int) -> None:
        self._folder = Path(f"/proc/{process}")
        self._last: dict[Path, tuple[str, int]] = {}
        self._first: dict[Path, int] = {}
        self.total = 0
        self.measure()
        self._first = {path: bytes for path, (_, bytes) in self._last.items()}
        self._first[self._folder] = self.total
        self.total = 0

    def measure(self) -> None:
        for thread in self._folder.glob("task/*"):
            with contextlib.suppress(OSError):  # it has ended
                self._last[thread] = (thread / "comm").read_text().strip(), _written_by(thread)
        self.total = _written_by(self._folder) - self._first.get(self._folder, 0)

    def by_thread(self) -> Counter[str]:
        """Returns the bytes by the names of threads, those that have ended since too."""
        found: Counter[str] = Counter()
        for path, (name, bytes) in self._last.items():
            found[name] += bytes - self._first.get(path, 0)
        return found


def _written_by(folder: Path) -> int:
    lines = (folder / "io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--most-bytes", type=int, default=2**26, metavar="N")
    parser.add_argument("--connections", type=int, default=2, metavar="N")
    parser.add_argument(
        "--operator-every", type=float, default=0.0, metavar="SECONDS", help="0: without a pause"
    )
    parser.add_argument("--within", type=float, default=1.0, metavar="SECONDS")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-invented") as folder:
        failures = flood(Path(folder), given)
    for failure in failures:
        print("failed:", failure)
    return 1 if failures else 0


def flood(directory: Path, given: argparse.Namespace) -> list[str]:
    served = Served(directory, SETTINGS.format(most_bytes=given.most_bytes), program=[NAMED])
    stop, answers = multiprocessing.Event(), multiprocessing.Value("q")
    processes: list[Any] = []
    largest = 0
    try:
        operator = Operator(served)
        operator.make_rules()
        known = Known(served.checks)
        time.sleep(HEAD_START)
        port = urlsplit(served.checks).port
        processes = [
            multiprocessing.Process(target=invent, args=(port, stop, answers), daemon=True)
            for _ in range(given.connections)
        ]
        for each in processes:
            each.start()
        begun = time.monotonic()
        written = Written(served.process.pid)
        said = acted = begun
        while (now := time.monotonic()) - begun < given.seconds:
            if now >= acted:
                acted = now + given.operator_every
                operator.try_to_act()
            else:
                time.sleep(min(1.0, acted - now))
            largest = max(largest, bytes_of(directory))
            written.measure()
            if now - said >= (10 if given.seconds < 1000 else 60):
                said = now
                print(
                    f"{now - begun:6.0f} s: {answers.value:>10,} invented users, "
                    f"{bytes_of(directory) / 2**20:7.1f} MiB of database, "
                    f"{written.total / 2**20:7.1f} MiB written, "
                    f"{written.by_thread()[OF_HISTORY] / 2**20:7.1f} MiB by the history",
                    flush=True,
                )
        stop.set()
        for each in processes:
            each.join()
        known.stop()
        written.measure()
    finally:
        stop.set()
        for each in processes:
            each.kill()
        status = served.end()
    largest = max(largest, bytes_of(directory))
    failures = [f"{len(operator.wrong)} of the operator's turns"] if operator.wrong else []
    failures += operator.wrong[:3] + ([] if status == 0 else [f"the service ended with {status}"])
    for what, times in operator.took.items():
        print(
            f"{what}: {len(times)} times, median {statistics.median(times) * 1e3:.0f} ms, "
            f"longest {max(times) * 1e3:.0f} ms"
        )
        if max(times) > given.within:
            failures.append(
                f"the longest {what} took {max(times):.2f} s; expected {given.within:g}"
            )
    print(
        f"{answers.value:,} invented users in {given.seconds:g} s: at most "
        f"{largest / 2**20:.1f} MiB of database, bound {given.most_bytes / 2**20:.1f} MiB; "
        f"{written.total / 2**20:.1f} MiB written"
    )
    by_thread = written.by_thread()
    for name, bytes in by_thread.most_common():
        if bytes:
            print(f"  {name:15} {bytes / 2**20:10.3f} MiB written")
    by_flood = written.total - by_thread[OF_OPERATOR]
    if by_flood > given.most_bytes:
        failures.append(f"the flood had {by_flood:,} bytes written; expected {given.most_bytes:,}")
    if largest > given.most_bytes:
        failures.append(f"the database had {largest:,} bytes; expected {given.most_bytes:,}")
    with sqlite3.connect(directory / "tidegate.db") as connection:
        found = dict(
            connection.execute(
                "SELECT user_id, sum(allowed + refused) FROM usage_hours "
                "WHERE user_id LIKE 'known%' GROUP BY user_id"
            ).fetchall()
        )
    lost = {
        user: (sent, found.get(user))
        for user, sent in known.sent.items()
        if found.get(user) != sent
    }
    print(
        f"{sum(known.sent.values()):,} requests of {KNOWN} known users, {len(lost)} of them differ"
    )
    if lost:
        failures.append(f"the history of known users differs: {dict(list(lost.items())[:3])}")
    return failures


if __name__ == "__main__":
    sys.exit(main())
