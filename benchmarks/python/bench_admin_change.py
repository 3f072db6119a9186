"""How long a change of one rule by the admin API takes, and how long it holds the lock.

    python benchmarks/python/bench_admin_change.py [--quick] [--rounds N] [--rules N]
        [--overrides N] [--json FILE]

The database is an SQLite file with 300 rules and 20,000 overrides. The application is called in
process, so no network is included. Beside it stands the time of reading the same rules once, as a
process does that begins with them.
"""

from __future__ import annotations

import datetime as dt
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=5, quick_rounds=2)
    parser.add_argument("--rules", type=int, default=300)
    parser.add_argument("--overrides", type=int, default=20_000)
    options = harness.begin(parser)
    from admin_client import AdminService
    from tidegate.rules.sql import read_rules, schema, upgrade
    from tidegate.server.admin.database import AdminDatabase

    held: list[float] = []
    change = AdminDatabase.change

    @contextmanager
    def timed(self: Any, *args: Any, **more: Any) -> Iterator[Any]:
        with change(self, *args, **more) as opened:
            begun = time.perf_counter()
            yield opened
        held.append(time.perf_counter() - begun)

    with tempfile.TemporaryDirectory(prefix="tg") as folder:
        url = f"sqlite:///{folder}/rules.db"
        upgrade(url)
        now = dt.datetime.now(dt.timezone.utc)
        times = {"created_at": now, "updated_at": now}
        rules = [
            {"rule_id": f"r{i}", "count_by": "user", "endpoint_pattern": f"/s{i}/*", **times}
            | {"tier": "*", "limits": "100/minute"}
            for i in range(options.rules)
        ]
        keys = [
            {"rule_id": f"r{i % options.rules}", "key": f"user-{i}", "limits": "7/minute", **times}
            for i in range(options.overrides)
        ]
        with sa.create_engine(url).begin() as connection:
            connection.execute(sa.insert(schema.rules), rules)
            connection.execute(sa.insert(schema.overrides), keys)
        with AdminService(url, lambda: dt.datetime.now(dt.timezone.utc)) as service:
            AdminDatabase.change = timed  # type: ignore[method-assign]
            took, read = [], []
            for i in range(harness.rounds_of(options)):
                body = {"by": "user", "endpoints": ["/s7/*"], "limits": f"{200 + i}/minute"}
                begun = time.perf_counter()
                answer = service.ask(
                    "PUT", "/ratelimit/rules/r7", json=body, headers={"If-Match": "*"}
                )
                took.append(time.perf_counter() - begun)
                assert answer.status_code == 200, answer.text
                begun = time.perf_counter()
                read_rules(url)
                read.append(time.perf_counter() - begun)
    once = statistics.median(read)
    lines = [
        [
            name,
            *(f"{1e3 * value:.1f}" for value in (statistics.median(found), found[0], max(found))),
            f"{statistics.median(found) / once:.2f}x",
        ]
        for name, found in (
            ("PUT of one rule", took),
            ("lock held", held),
            ("all rules read once", read),
        )
    ]
    title = f"A change of one of {options.rules} rules with {options.overrides:,} overrides"
    harness.print_table(title, ["", "median ms", "first", "most", "x one read"], lines)
    targets = [
        harness.Target(what, 1e3 * statistics.median(found), most, at_least=False, unit=" ms")
        for what, found, most in (
            ("PUT of one rule", took, 300.0),
            ("lock held by it", held, 50.0),
        )
    ]
    figures = {"took_s": took, "held_s": held, "read_s": read}
    harness.report(options.json, "admin_change", figures, targets)


if __name__ == "__main__":
    main()
