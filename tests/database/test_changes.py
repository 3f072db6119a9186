"""Rules that change in their database while limiters decide by them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sqlite3
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from polling import eventually
from postgres_server import PostgresServer, program
from proxy import Proxy
from rule_database import RuleDatabase
from tidegate.rules import RulesError, RuleSet
from tidegate.rules.sql import SqlRules, upgrade

# Longer than any test. With this interval, only a notification can report a change.
NEVER = 3600.0


def set_limit(database: RuleDatabase, limits: str) -> None:
    database.run(f"UPDATE rate_limit_rules SET limits = '{limits}'")


def test_a_limiter_follows_its_database(database: RuleDatabase) -> None:
    database.add_rule("api", "2/minute")
    with SqlRules(database.url, interval=0.02) as source:
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        assert [bool(limiter.check(user="1")) for _ in range(3)] == [True, True, False]
        set_limit(database, "5/minute")
        eventually(lambda: limiter.peek(user="1").limit == 5)
        allowed = [bool(limiter.check(user="1")) for _ in range(4)]
        assert allowed == [True, True, True, False], "what was used before counts"
        assert (source.refused, source.failures, source.last_error) == (0, 0, None)


def restore(database: RuleDatabase, dump: Path, *options: str) -> None:
    command = [program("pg_restore"), "--dbname", database.url, *options, str(dump)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr


def test_a_restore_takes_no_limit_away_while_it_is_under_way(
    postgres: RuleDatabase, tmp_path: Path
) -> None:
    postgres.add_rule("api", "5/minute", tier="free")
    postgres.add("rate_limit_settings", name="default_tier", value='"free"')
    dump = tmp_path / "dump"
    command = [program("pg_dump"), "--format=custom", f"--file={dump}", postgres.url]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with SqlRules(postgres.url, interval=NEVER, timeout=60) as source:
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))

        def is_limited() -> bool:
            source.refresh()
            return [outcome.rule for outcome in limiter.peek(user="1").outcomes] == ["api"]

        set_limit(postgres, "4/minute")
        assert is_limited()
        restore(postgres, dump, "--clean", "--section=pre-data")
        assert is_limited(), "the tables are empty"
        # It fills the tables one after the other.
        restore(postgres, dump, "--section=data", "--table=rate_limit_rules")
        assert is_limited(), "the rules are there, and the default tier is not"
        said = "the tables seem to be restored at this moment: operation_costs, "
        assert said in str(source.last_error)
        restore(postgres, dump, "--section=data", "--table=rate_limit_settings")
        restore(postgres, dump, "--section=post-data")
        assert is_limited()
        assert limiter.peek(user="1").limit == 5, "the version that was restored"


def test_a_start_within_a_restore_is_no_start_with_half_of_the_rules(
    postgres: RuleDatabase,
) -> None:
    postgres.add_rule("api", "5/minute", tier="free")
    postgres.run("DROP TRIGGER tidegate_rules_changed ON rate_limit_settings")
    with pytest.raises(tg.StorageError, match="restored at this moment: rate_limit_settings has"):
        SqlRules(postgres.url)


def test_tables_that_were_made_by_hand_need_no_triggers(postgres: RuleDatabase) -> None:
    postgres.add_rule("api", "5/minute")
    postgres.run("DROP FUNCTION tidegate_rules_changed CASCADE")
    with SqlRules(postgres.url) as source:
        assert source.current.in_force == 1


def test_many_rules_are_read_by_a_process_and_are_those_of_the_database(
    database: RuleDatabase, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.rules.sql.sql_rules._MOST_ROWS_HERE", 40)
    for number in range(60):
        database.add_rule(f"r{number}", "2/minute", endpoint_pattern=f"/{number}")
    with SqlRules(database.url, interval=NEVER) as source:
        reading = source._reading_of_now
        assert reading() is None, "nothing has changed"
        set_limit(database, "5/minute")
        seen = reading()
        assert seen is not None
        assert seen.takes_long
        source._look_again()
        assert source.refresh()
        assert not source.refresh()
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        assert limiter.check(user="1", endpoint="/7").limit == 5
        set_limit(database, "5/mnute")
        assert not source.refresh()
        assert "rate_limit_rules row" in str(source.last_error)
    assert "within this process" not in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO rate_limit_rules (rule_id, limits, count_by) VALUES ('more', '1/s', 'ip')",
        "DELETE FROM rate_limit_rules WHERE rule_id = 'other'",
        "INSERT INTO rate_limit_settings VALUES ('default_tier', '\"free\"')",
        "INSERT INTO rate_limit_overrides (rule_id, key, limits) VALUES ('api', '\"42\"', '9/s')",
        "INSERT INTO rate_limit_lists (list, conditions) VALUES ('allow', '{\"user\": \"root\"}')",
        "INSERT INTO user_tiers VALUES ('4', 'x', '{\"api\": \"3/s\"}')",
        "INSERT INTO operation_costs (method, cost) VALUES ('POST', 5)",
    ],
    ids=lambda statement: " ".join(statement.split()[:3]),
)
@pytest.mark.parametrize("hears", [True, False], ids=["notified", "polling"])
def test_postgres_notifies_of_each_kind_of_change(
    postgres: RuleDatabase, statement: str, hears: bool
) -> None:
    postgres.add_rule("api", "2/minute", tier="free")
    postgres.add_rule("other", "2/minute", count_by="tenant")
    if not hears:
        postgres.run("CREATE OR REPLACE FUNCTION tidegate_rules_changed() RETURNS trigger "
                     "LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")  # fmt: skip
    with SqlRules(postgres.url, interval=NEVER if hears else 0.02) as source:
        before = source.current
        seen: list[RuleSet] = []
        source.subscribe(seen.append)
        if hears:
            eventually(lambda: _listens(postgres))
        postgres.run(statement)
        eventually(lambda: seen)
        assert source.current is seen[-1] is not before


def _listens(postgres: RuleDatabase) -> bool:
    return bool(
        postgres.rows(
            "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state LIKE 'idle%' "
            "AND datname = current_database()"
        )
    )


def test_a_bad_version_is_refused_counted_and_logged_once(
    database: RuleDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    database.add_rule("api", "2/minute")
    with SqlRules(database.url) as source, caplog.at_level(logging.ERROR, "tidegate"):
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        good = source.current
        set_limit(database, "many")
        for _ in range(3):
            assert not source.refresh()
        assert eventually(lambda: source.refused) == 1
        assert isinstance(source.last_error, RulesError)
        assert "cannot read the limit 'many'" in caplog.text
        assert len(caplog.records) == 1
        assert limiter.rules is source.current is good
        set_limit(database, "3/minute")
        eventually(lambda: limiter.peek(user="1").limit == 3)
        assert source.last_error is None


@pytest.mark.parametrize("change", ["DELETE FROM {}", "UPDATE {} SET enabled = false"])
def test_emptied_tables_take_no_limit_away(
    database: RuleDatabase, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    database.add_rule("api", "2/minute")
    with SqlRules(database.url, interval=NEVER) as source:
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        database.run(change.format("rate_limit_rules"))
        assert not source.refresh()
        assert limiter.check(user="1").limit == 2
        assert "no rule is in force, and 1 were before" in caplog.text
        database.run("DELETE FROM rate_limit_rules")
        database.add_rule("api", "3/minute")
        eventually(lambda: source.refresh() or source.current.rules[0].limits == ["3/minute"])
        assert limiter.check(user="1").limit == 3


def test_an_sqlite_that_is_replaced_or_deleted_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [tmp_path / name for name in ("rules.db", "restored.db")]
    for file, count in zip(files, (42, 78)):
        upgrade(f"sqlite:///{file}")
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
            RuleDatabase("sqlite://", connection).add_rule("api", f"{count}/minute")
    with SqlRules(f"sqlite:///{files[0]}", interval=NEVER) as source:
        limiter = tg.Limiter(rules=source)
        assert limiter.check(user="1").limit == 42
        files[1].rename(files[0])
        assert source.refresh()
        assert limiter.check(user="1").limit == 78
        files[0].unlink()
        assert not source.refresh()
        assert source.failures == 1
        assert "cannot be read, its last rules stay in force" in caplog.text
        assert not files[0].exists(), "looking makes no empty database"
        assert limiter.check(user="1").limit == 78


def test_a_limiter_that_cannot_count_for_new_rules_keeps_its_own(database: RuleDatabase) -> None:
    database.add_rule("api", "2/minute")
    with SqlRules(database.url) as source:
        told: list[RuleSet] = []

        def refuse(rules: RuleSet) -> None:
            raise tg.ConfigurationError("not these")

        source.subscribe(refuse)
        stop = source.subscribe(told.append)
        set_limit(database, "3/minute")
        source.refresh()
        eventually(lambda: told)
        assert source.refused == 1
        stop()
        set_limit(database, "4/minute")
        source.refresh()
        eventually(lambda: source.refused == 2)
        assert len(told) == 1


def test_the_thread_ends_with_the_last_listener(database: RuleDatabase) -> None:
    database.add_rule("api", "2/minute")
    source = SqlRules(database.url, interval=0.02)
    limiter = tg.Limiter(rules=source)
    assert source._thread is not None
    del limiter
    eventually(lambda: source._thread is None)
    source.subscribe(lambda rules: None)
    assert source._thread is not None
    source.close()
    assert not source._thread.is_alive()


def test_a_child_of_fork_follows_changes_too(database: RuleDatabase) -> None:
    database.add_rule("api", "2/minute")
    with SqlRules(database.url, interval=0.02) as source:
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                eventually(lambda: limiter.peek(user="1").limit == 7, 60)
                status = 0
            os._exit(status)
        set_limit(database, "7/minute")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        eventually(lambda: limiter.peek(user="1").limit == 7)
        set_limit(database, "8/minute")
        eventually(lambda: limiter.peek(user="1").limit == 8)
        assert source.failures == 0, "the child has left the parent's connections alone"


@pytest.mark.alone
def test_four_workers_see_a_change_within_two_seconds(database: RuleDatabase) -> None:
    database.add_rule("api", "2/minute")
    workers = []
    for _ in range(4):
        given, taken = os.pipe()
        worker = os.fork()
        if worker == 0:
            status = 1
            with contextlib.suppress(BaseException):
                source = SqlRules(database.url)
                limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
                os.write(taken, b"ready")
                eventually(lambda limiter=limiter: limiter.peek(user="1").limit == 3, 60)
                os.write(taken, str(time.monotonic()).encode())
                status = 0
            os._exit(status)
        os.close(taken)
        workers.append((worker, given))
    for _, given in workers:
        assert os.read(given, 5) == b"ready"
    changed = time.monotonic()
    set_limit(database, "3/minute")
    took = []
    for worker, given in workers:
        took.append(float(os.read(given, 100)) - changed)
        os.close(given)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
    assert max(took) <= 2


def test_frequent_changes_fail_no_request_and_exceed_no_limit(
    postgres: RuleDatabase,
) -> None:
    """A hundred changes a second. Each key is counted across all of them."""
    low, high = 50, 100
    postgres.add_rule("api", f"{low}/hour")
    admitted: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    errors: list[BaseException] = []
    lock = threading.Lock()
    ends = threading.Event()
    versions: list[str] = []
    with SqlRules(postgres.url, interval=0.05, timeout=60) as source:
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        source.subscribe(lambda rules: versions.append(rules.digest))
        eventually(lambda: _listens(postgres))

        def hammer(number: int) -> None:
            try:
                for round in range(100_000):
                    if ends.is_set():
                        return
                    # Four threads use each key: some for 60 rounds, and one in all rounds.
                    for name in [*(f"{key}-{round // 60}" for key in range(10)), "always"]:
                        decision = limiter.check(user=name)
                        assert decision.limit in (low, high)
                        assert not decision.degraded
                        with lock:
                            asked[name] += 1
                            admitted[name] += decision.allowed
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=hammer, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        begun = time.monotonic()
        change = 0
        while change < 200 or len(versions) <= 10:  # the other threads leave the source little time
            assert change < 6000, "versions are adopted while requests are decided"
            postgres.run(f"UPDATE rate_limit_rules SET limits = '{(low, high)[change % 2]}/hour'")
            change += 1
            time.sleep(max(0.0, begun + change / 100 - time.monotonic()))
        ends.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert source.refused == source.failures == 0
        spent = [name for name, count in asked.items() if count >= 2 * high]
        assert spent
        assert max(admitted.values()) <= high
        assert min(admitted[name] for name in spent) >= low


class Asked:
    """Calls a limiter in a loop, and notes the longest time that a call took."""

    def __init__(self, limiter: tg.Limiter) -> None:
        self.limiter = limiter
        self.count = 0
        self.error: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Asked:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ends.set()
        self._thread.join()

    def _ask(self) -> None:
        try:
            while not self._ends.wait(0.001):
                assert self.limiter.check(user="1").rule == "api"
                self.count += 1
        except BaseException as error:
            self.error = error

    def goes_on(self) -> bool:
        seen = self.count
        eventually(lambda: self.count > seen + 20 or self.error)
        return self.error is None


def test_no_request_fails_or_waits_while_the_database_is_down(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_postgres.url("postgres")
    with own_postgres.connect("postgres") as connection:
        RuleDatabase(url, connection).add_rule("api", "2/minute")
    with SqlRules(url, interval=0.05, timeout=2) as source:
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        with Asked(limiter) as asked:
            own_postgres.kill()
            eventually(lambda: source.failures > 1)
            assert isinstance(source.last_error, tg.StorageError)
            assert asked.goes_on()
            assert limiter.peek(user="1").limit == 2
            own_postgres.start()
            with own_postgres.connect("postgres") as connection:
                set_limit(RuleDatabase(url, connection), "3/minute")
            eventually(lambda: limiter.peek(user="1").limit == 3, 60)
            assert asked.goes_on()
        assert source.last_error is None
    told = [record.message for record in caplog.records if "cannot be read" in record.message]
    assert len(told) == 1, "an outage is logged once"


@pytest.fixture
def proxy(shared_postgres: PostgresServer) -> Iterator[Proxy]:
    """What stands between the database of `postgres` and a source of rules."""
    proxy = Proxy(shared_postgres.port)
    yield proxy
    proxy.close()


@contextlib.contextmanager
def asked_through(
    proxy: Proxy, postgres: RuleDatabase, timeout: float
) -> Iterator[tuple[SqlRules, Any, Asked]]:
    """A source of rules behind the proxy, and the limiter by them, which is asked all the time."""
    postgres.add_rule("api", "2/minute")
    url = re.sub(r":\d+/", f":{proxy.port}/", postgres.url)
    with SqlRules(url, interval=0.02, timeout=timeout) as source:
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        with Asked(limiter) as asked:
            yield source, limiter, asked


def assert_a_change_arrives(postgres: RuleDatabase, limiter: Any, asked: Asked) -> None:
    set_limit(postgres, "3/minute")
    eventually(lambda: limiter.peek(user="1").limit == 3, 60)
    assert asked.goes_on()


@pytest.mark.parametrize("mode", ["hole", "stall", "garbage", "reset", "close"])
def test_no_request_fails_or_waits_while_the_network_is_slow_or_broken(
    proxy: Proxy, postgres: RuleDatabase, mode: str
) -> None:
    # Only the first two take all of the time-out; a busy machine may need more to connect.
    timeout = 3 if mode in ("hole", "stall") else 20
    with asked_through(proxy, postgres, timeout) as (source, limiter, asked):
        proxy.mode = mode
        eventually(lambda: source.failures > 0, 60)
        assert asked.goes_on()
        proxy.mode = "pass"
        assert_a_change_arrives(postgres, limiter, asked)


def test_no_request_fails_or_waits_while_answers_come_byte_by_byte(
    proxy: Proxy, postgres: RuleDatabase
) -> None:
    with asked_through(proxy, postgres, timeout=60) as (_, limiter, asked):
        proxy.mode = "drip"
        assert_a_change_arrives(postgres, limiter, asked)


def test_if_the_database_is_down_at_start_the_cached_rules_are_used(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    url = own_postgres.url("postgres")
    cache = tmp_path / "rules.json"
    with own_postgres.connect("postgres") as connection:
        database = RuleDatabase(url, connection)
        database.add_rule("api", "2/minute")
        database.add_override("9/minute", expires_at="2030-01-01 00:00:00+00")
    with SqlRules(url, cache=cache) as source:
        kept = source.current.digest
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    assert json.loads(cache.read_text())["rules"][0]["id"] == "api"
    own_postgres.kill()
    with pytest.raises(tg.StorageError, match="failed"):
        SqlRules(url, timeout=2)
    with SqlRules(url, cache=cache, interval=0.05, timeout=2) as source:
        assert source.current.digest == kept
        assert isinstance(source.last_error, tg.StorageError)
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        own_postgres.start()
        with own_postgres.connect("postgres") as connection:
            set_limit(RuleDatabase(url, connection), "3/minute")
        eventually(lambda: limiter.peek(user="1").limit == 3, 60)
    assert json.loads(cache.read_text())["rules"][0]["limits"] == ["3/minute"]


def test_bad_rules_at_start_raise_unless_there_is_a_cache(
    sqlite: RuleDatabase, tmp_path: Path
) -> None:
    cache = tmp_path / "rules.json"
    sqlite.add_rule("api", "2/minute")
    SqlRules(sqlite.url, cache=cache).close()
    set_limit(sqlite, "many")
    with pytest.raises(RulesError):
        SqlRules(sqlite.url)
    with SqlRules(sqlite.url, cache=cache) as source:
        assert source.refused == 1
        assert source.current.rules[0].limits == ["2/minute"]


def test_a_cache_that_cannot_be_written_is_only_logged(
    sqlite: RuleDatabase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite.add_rule("api", "2/minute")
    with SqlRules(sqlite.url, cache=tmp_path / "none" / "rules.json") as source:
        assert source.current.rules
    assert "cannot be kept" in caplog.text


@pytest.mark.parametrize("interval", [0, -1, True, None, "x", float("nan")])
def test_an_interval_that_is_no_time_is_refused(database: RuleDatabase, interval: Any) -> None:
    database.add_rule("api", "10/minute")
    with pytest.raises(tg.ConfigurationError, match=r"interval is .*; expected seconds above 0"):
        SqlRules(database.url, interval=interval)


def test_passwords_are_not_logged(own_postgres: PostgresServer) -> None:
    url = own_postgres.url("none").replace("tests@", "tests:secret@")
    with pytest.raises(tg.StorageError) as caught:
        SqlRules(url)
    assert "secret" not in str(caught.value)


def test_a_lock_of_the_file_makes_later_looks_no_rarer(sqlite: RuleDatabase) -> None:
    sqlite.add_rule("api", "1/minute")
    with SqlRules(sqlite.url, interval=0.02) as source:
        limiter = tg.Limiter(rules=source, clock=tg.ManualClock(0))
        looks = source._look
        waited = threading.Event()

        def look() -> Any:
            found = looks()
            waited.set()
            return found

        source._look = look  # type: ignore[method-assign]
        file = sqlite3.connect(sqlite.url.removeprefix("sqlite:///"), isolation_level=None)
        with contextlib.closing(file):
            file.execute("BEGIN EXCLUSIVE")
            waited.clear()
            assert not waited.wait(1.0), "the source waits for the lock"
            file.execute("ROLLBACK")
            assert waited.wait(10)
        for count in range(2, 5):
            set_limit(sqlite, f"{count}/minute")
            eventually(lambda count=count: limiter.peek(user="1").limit == count, 10)
