"""Rules that are lost, half there or damaged for a while, under checks: no check is without them.

    python tests/faults/lost_rules_campaign.py [--rate N] [--rounds N]

A database of PostgreSQL is restored by `pg_restore --clean`, emptied, hidden by row-level security,
damaged row by row, and killed; a file is written in place, piece by piece. All the while a thread
checks requests by the rules of both, of which each has a limit and a block list. Exit status 1 if
one check was decided without its limit, or let a blocked user pass.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable

if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(here), str(here / "database")]

import tidegate as tg
from postgres_server import PostgresServer, program
from rule_database import RuleDatabase
from tidegate.rules import RuleFile
from tidegate.rules.sql import SqlRules, upgrade

LOOK = 0.02  # seconds between two looks of a source
FILE = """\
default_tier: free
rules:
- id: api
  by: user
  limits: {free: 1000000/hour, pro: 2000000/hour}
- id: address
  by: ip
  limit: 1000000/hour
block:
- {user: mallory}
"""


class Checks(threading.Thread):
    """Checks requests by each limiter, so many times a second, and counts what came out."""

    def __init__(self, limiters: dict[str, Any], rate: float) -> None:
        super().__init__(daemon=True)
        self._limiters = limiters
        self._pause = 1 / rate
        self.over = threading.Event()
        self.during = "the start"
        self.checks = 0
        self.lost: Counter[str] = Counter()

    def run(self) -> None:
        while not self.over.wait(self._pause):
            during = self.during
            for name, limiter in self._limiters.items():
                self.checks += 2
                decision = limiter.check(user="42", ip="192.0.2.1")
                rules = {outcome.rule for outcome in decision.outcomes}
                for rule in {"api", "address"} - rules:
                    self.lost[f"{name}, {during}: without the limit of {rule}"] += 1
                if limiter.check(user="mallory", ip="192.0.2.2"):
                    self.lost[f"{name}, {during}: the blocked user passed"] += 1


def fill(database: RuleDatabase, ballast: int) -> None:
    database.add_rule("api", "1000000/hour", tier="free")
    database.add_rule("api", "2000000/hour", tier="pro")
    database.add_rule("address", "1000000/hour", count_by="ip")
    database.add("rate_limit_settings", name="default_tier", value='"free"')
    database.add("rate_limit_lists", list="block", conditions={"user": "mallory"})
    # A restore takes longer with more data. This comes after the rules and before the settings.
    database.run(
        "INSERT INTO rate_limit_rules_archive SELECT n, repeat('x', 200) "
        f"FROM generate_series(1, {ballast}) AS n"
    )


class Faults:
    """What happens to the rules, one after the other. Each ends with the rules as they were."""

    def __init__(self, server: PostgresServer, url: str, path: Path, folder: Path) -> None:
        self._server = server
        self._url = url
        self._path = path
        self._dump = folder / "rules.dump"
        self._run(program("pg_dump"), "--format=custom", f"--file={self._dump}", self._plain())

    def _plain(self) -> str:
        return self._url.replace("+psycopg", "")

    @staticmethod
    def _run(*command: str) -> None:
        made = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert made.returncode == 0, made.stderr

    def restored(self) -> None:
        """pg_restore --clean"""
        self._run(program("pg_restore"), "--clean", "--dbname", self._plain(), str(self._dump))

    def emptied(self) -> None:
        """TRUNCATE, then pg_restore --clean"""
        tables = "rate_limit_rules, rate_limit_settings, rate_limit_lists"
        with self._server.connect("postgres") as connection:
            connection.execute(f"TRUNCATE {tables}")
            time.sleep(10 * LOOK)
        self.restored()

    def hidden(self) -> None:
        """row-level security without a policy"""
        with self._server.connect("postgres") as connection:
            for what in ("ENABLE", "DISABLE"):
                connection.execute(f"ALTER TABLE rate_limit_rules {what} ROW LEVEL SECURITY")
                time.sleep(10 * LOOK)

    def disabled(self) -> None:
        """all rules disabled"""
        with self._server.connect("postgres") as connection:
            for value in ("false", "true"):
                connection.execute(f"UPDATE rate_limit_rules SET enabled = {value}")
                time.sleep(10 * LOOK)

    def damaged(self) -> None:
        """damaged rows"""
        values = {
            "limits": ["7 bananas", "1/minute; 1/minute", "0x5/minute"],
            "count_by": ["", "user+", "a b"],
            "algorithm": ["leaky", ""],
            "endpoint_pattern": ["/**/x", "/{}"],
        }
        with self._server.connect("postgres") as connection:
            for column, wrong in values.items():
                for value in wrong:
                    (before,) = connection.execute(
                        f"SELECT {column} FROM rate_limit_rules WHERE rule_id = 'address'"
                    ).fetchone()
                    for new in (value, before):
                        connection.execute(
                            f"UPDATE rate_limit_rules SET {column} = %s WHERE rule_id = 'address'",
                            (new,),
                        )
                        time.sleep(3 * LOOK)

    def killed(self) -> None:
        """the server is killed and started again"""
        self._server.kill()
        time.sleep(5 * LOOK)
        self._server.start()

    def half_written(self) -> None:
        """the file is written in place, a line at a time"""
        with open(self._path, "w") as file:
            for line in FILE.splitlines(keepends=True):
                file.write(line)
                file.flush()
                time.sleep(LOOK / 4)

    def cut(self) -> None:
        """the file is empty for a while"""
        self._path.write_text("")
        time.sleep(10 * LOOK)
        self._path.write_text(FILE)

    def all(self) -> list[Callable[[], None]]:
        of_database = [self.restored, self.emptied, self.hidden, self.disabled, self.damaged]
        return [*of_database, self.killed, self.half_written, self.cut]


def campaign(folder: Path, rate: float, rounds: int, ballast: int) -> Checks:
    """Runs all faults so many times, and returns the checks that were made meanwhile."""
    server = PostgresServer(folder)
    server.start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        url = server.url("postgres")
        upgrade(url)
        with server.connect("postgres") as connection:
            connection.execute("CREATE TABLE rate_limit_rules_archive (n integer, text text)")
            fill(RuleDatabase(url, connection), ballast)
            # Row-level security is not for a superuser.
            connection.execute("CREATE ROLE reader LOGIN")
            connection.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader")
            connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        path = folder / "rules.yaml"
        path.write_text(FILE)
        faults = Faults(server, url, path, folder)
        sources: dict[str, Any] = {
            "database": SqlRules(url.replace("tests@", "reader@"), interval=LOOK, timeout=30),
            "file": RuleFile(path, interval=LOOK),
        }
        for source in sources.values():
            stack.callback(source.close)
        checks = Checks({name: tg.Limiter(rules=each) for name, each in sources.items()}, rate)
        checks.start()
        for _ in range(rounds):
            for fault in faults.all():
                checks.during = str(fault.__doc__)
                fault()
                time.sleep(5 * LOOK)
        checks.over.set()
        checks.join()
        for name, source in sources.items():
            print(f"{name}: {source.refused} versions refused, {source.failures} reads failed")
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description="Lose rules under checks.")
    parser.add_argument("--rate", type=float, default=200, help="checks a second of each kind")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ballast", type=int, default=300_000, help="rows beside the rules")
    arguments = parser.parse_args()
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        os.chmod(directory, 0o755)  # PostgreSQL does not run as root
        checks = campaign(Path(directory), arguments.rate, arguments.rounds, arguments.ballast)
    print(f"{checks.checks} checks, {sum(checks.lost.values())} without a limit or a list")
    for what, count in checks.lost.most_common():
        print(f"{count} x {what}")
    return 1 if checks.lost else 0


if __name__ == "__main__":
    sys.exit(main())
