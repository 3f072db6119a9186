"""`tidegate serve` as a process that answers, follows its files, and ends at a signal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import plain_http
import pytest
from polling import eventually
from serving import RULES, SETTINGS, Served, run
from tidegate._core import ShmStore


def test_the_service_answers_checks_and_ends_on_sigterm(served: Served) -> None:
    answers = [served.check()["allowed"] for _ in range(4)]
    assert answers == [True, True, True, False]
    assert plain_http.get(f"{served.admin}/readyz").json() == {
        "status": "ready",
        "storage": "answers",
    }
    assert plain_http.get(f"{served.admin}/livez").status_code == 200
    metrics = plain_http.get(f"{served.admin}/metrics").text
    assert 'tidegate_decisions_total{limiter="tg",outcome="refused"} 1.0' in metrics
    assert "tidegate_front_" in metrics
    assert plain_http.get(f"{served.admin}/v1/admin/ratelimit/rules").status_code == 401
    assert served.end() == 0


def test_the_dashboard_shows_what_was_just_decided(served: Served) -> None:
    for _ in range(4):
        served.check()
    url = f"sqlite:///{served.directory / 'tidegate.db'}"
    made = subprocess.run(
        [sys.executable, "-m", "tidegate", "tokens", "create", url, "me", "--role", "operator"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    token = re.search(r"tg_[\w-]+", made.stdout)
    assert token is not None, made.stdout
    with plain_http.client(base_url=served.admin, follow_redirects=True) as client:
        form = re.search(r'name="csrf" value="([^"]+)"', client.get("/dashboard").text)
        assert form is not None
        page = client.post("/dashboard/sign-in", data={"csrf": form[1], "token": token[0]})
        assert "<h1>Overview</h1>" in page.text
        shown = eventually(lambda: "3 allowed, 1 refused" in client.get("/dashboard/").text, 30)
        assert shown
        assert "user:1" in client.get("/dashboard/keys").text
        assert ">api<" in client.get("/dashboard/key?user=1&endpoint=/a").text
        user = client.get("/v1/dashboard/status?user=1", headers={"Authorization": token[0]})
        assert user.status_code == 401, "the scheme is missing"
        bearer = {"Authorization": f"Bearer {token[0]}"}
        (limit,) = client.get("/v1/dashboard/status?user=1", headers=bearer).json()["rateLimits"]
        assert (limit["limit"], limit["remaining"]) == (3, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_decisions_are_written_before_the_service_ends(served: Served, number: int) -> None:
    for _ in range(4):
        served.check(ip="192.0.2.1")
    assert served.end(number) == 0
    with closing(sqlite3.connect(served.directory / "tidegate.db")) as database:
        usage = database.execute("SELECT user_id, endpoint, allowed, refused FROM usage_hours")
        assert usage.fetchall() == [("1", "/a", 3, 1)]
        violations = database.execute(
            "SELECT caller, rule_id, attempted_count FROM rate_limit_violations"
        )
        assert violations.fetchall() == [("user:1", "api", 1)]
    messages = [each["message"] for each in served.records()]
    assert "'user:1' was refused 1 times by api at '/a'" in messages
    # There is one line a second, so there may be several.
    allowed = [re.search(r"'user:1' at '/a': (\d) allowed", each) for each in messages]
    assert sum(int(each[1]) for each in allowed if each) == 3


def test_rules_change_without_a_restart(served: Served) -> None:
    assert served.check()["limit"] == 3
    (served.directory / "rules.yaml").write_text(RULES.replace("3/hour", "5/hour"))
    served.process.send_signal(signal.SIGHUP)
    served.logged("the service was reloaded")
    eventually(lambda: served.check("probe")["limit"] == 5)
    assert [served.check()["allowed"] for _ in range(5)] == [True] * 4 + [False], "usage stays"


def test_soft_events_of_quotas_are_logged_and_counted(served: Served) -> None:
    assert served.check()["limit"] == 3
    rules = RULES.replace("free: 3/hour", "free: quota 10/month")
    (served.directory / "rules.yaml").write_text(rules)
    served.process.send_signal(signal.SIGHUP)
    served.logged("the service was reloaded")
    eventually(lambda: served.check("probe")["limit"] == 10)
    many = {"checks": [{"userId": "42", "cost": cost} for cost in (7, 1, 2, 1)]}
    answer = plain_http.post(f"{served.checks}/v1/ratelimit/check-many", json=many)
    assert [each["allowed"] for each in answer.json()["answers"]] == [True, True, True, False]
    served.logged("'42' has used 80 % of the quota api: 8 used, 2 available until 2")
    served.logged("'42' has used 100 % of the quota api: 10 used, 0 available")
    events = [each["quota"] for each in served.records() if "quota" in each]
    assert [(each["key"], each["percent"]) for each in events] == [("42", 80), ("42", 100)]
    text = plain_http.get(f"{served.admin}/metrics").text
    assert "tidegate_quota_events_80_total 1.0" in text
    assert "tidegate_quota_events_100_total 1.0" in text


def test_invalid_rules_are_refused_and_the_old_ones_stay(served: Served) -> None:
    assert served.check()["limit"] == 3
    (served.directory / "rules.yaml").write_text("rules: [{id: x, limits: many}]\n")
    served.process.send_signal(signal.SIGHUP)
    served.logged("the service was reloaded")
    served.logged("a new version of the rules was refused")
    assert served.check()["limit"] == 3
    assert served.process.poll() is None


def test_the_tier_of_a_user_comes_from_the_database(served: Served) -> None:
    assert served.check()["limit"] == 3
    file = served.directory / "tidegate.db"
    with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as database:
        database.execute("INSERT INTO user_tiers (user_id, tier) VALUES ('1', 'premium')")
    served.process.send_signal(signal.SIGHUP)
    eventually(lambda: served.check()["limit"] == 1000)
    with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as database:
        database.execute("UPDATE user_tiers SET tier = 'free'")  # keeps updated_at
    served.process.send_signal(signal.SIGHUP)
    eventually(lambda: served.check()["limit"] == 3)


def test_neither_a_start_nor_an_end_looks_for_garbage(directory: Path) -> None:
    """There are 100,000 objects, which the interpreter would visit several times."""
    lines = """
import gc
from tidegate.cli.main import main

visits = 0

def look(phase, info):
    global visits
    visits += info['generation'] == 2

gc.callbacks.append(look)
main(['serve', '--check'])
print(visits, gc.get_freeze_count())
"""
    done = subprocess.run(
        [sys.executable, "-c", lines],
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    visits, frozen = map(int, done.stdout.split()[-2:])
    assert visits == 0
    assert frozen > 10_000


# A service with the methods of a test.
FAKE = """
import gc, os, signal, threading, time, types
from tidegate.cli.serve import _until_signalled

class Service:
    settings, has_closed, reloads = types.SimpleNamespace(drain=0), True, 0
    {0}

raise SystemExit(_until_signalled(Service(), None))
"""


def run_fake(methods: str, status: int = 0) -> str:
    """Serves until a signal, by a service with these methods; what the process says."""
    command = [sys.executable, "-c", FAKE.format(methods)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
    return done.stderr


def test_a_running_service_looks_for_garbage() -> None:
    run_fake("""
    def start(self):
        gc.disable()  # as while the process starts
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self):
        return gc.isenabled()
""")


def test_the_service_ends_while_a_reload_hangs_or_fails() -> None:
    """Such as one that waits for a database that does not answer."""
    said = run_fake("""
    def start(self):
        os.kill(os.getpid(), signal.SIGHUP)

    def reload(self):
        self.reloads += 1
        if self.reloads == 1:
            os.kill(os.getpid(), signal.SIGHUP)
            raise OSError("the first fails")
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait()

    def stop(self):
        return self.reloads == 2
""")
    assert "the first fails" in said


def test_a_signal_that_another_thread_gets_ends_the_service() -> None:
    """The system chooses the thread, and Python runs handlers on the main one, which waits."""
    run_fake("""
    def start(self):
        threading.Thread(target=self.signal, daemon=True).start()

    def signal(self):
        time.sleep(0.3)  # by then the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        threading.Event().wait()

    def stop(self):
        return True
""")


def test_a_second_signal_ends_the_service_at_once_whatever_the_main_thread_does() -> None:
    methods = """
    def start(self):
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        threading.Event().wait()
"""
    run_fake(methods, 128 + signal.SIGINT)


def test_a_second_signal_ends_the_service_at_once(served: Served) -> None:
    host, port = served.checks.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /v1/ratelimit/check HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        served.process.send_signal(signal.SIGTERM)
        served.logged("calls in flight have")
        assert served.end() == 128 + signal.SIGTERM


def test_usage_in_shared_memory_outlives_a_restart(directory: Path) -> None:
    name = f"tidegate-test-{os.getpid()}-{time.monotonic_ns()}"
    storage = f"shm://{name}?capacity=1000"
    try:
        for first in (True, False):
            service = Served(directory, TIDEGATE_STORAGE=storage)
            try:
                assert service.check(cost=2)["allowed"] is first
            finally:
                assert service.end() == 0
    finally:
        Path(ShmStore.path_of(name)).unlink(missing_ok=True)


def front_counts(service: Served, counter: str) -> bool:
    metrics = plain_http.get(f"{service.admin}/metrics").text
    return f"\ntidegate_front_{counter}\n" in metrics


def test_bounds_of_connections_and_bodies_are_those_of_the_settings(directory: Path) -> None:
    service = Served(
        directory, TIDEGATE_CHECKS__MAX_CONNECTIONS="2", TIDEGATE_CHECKS__MAX_BODY_BYTES="1024"
    )
    try:
        body = {"userId": "1" * 1024, "endpoint": "/a"}
        url = f"{service.checks}/v1/ratelimit/check"
        assert plain_http.post(url, json=body).status_code == 413
        eventually(lambda: front_counts(service, "connections_open 0.0"), 60)
        address = ("127.0.0.1", int(service.checks.rpartition(":")[2]))
        with contextlib.ExitStack() as opened:
            for _ in range(2):
                opened.enter_context(socket.create_connection(address, 60))
            eventually(lambda: front_counts(service, "connections_open 2.0"), 60)
            assert opened.enter_context(socket.create_connection(address, 60)).recv(1) == b""
            eventually(lambda: front_counts(service, "connections_refused_total 1.0"), 60)
    finally:
        assert service.end() == 0


def test_a_connection_is_idle_for_as_long_as_the_settings_say(directory: Path) -> None:
    service = Served(directory, TIDEGATE_CHECKS__IDLE_TIMEOUT="1")
    try:
        address = ("127.0.0.1", int(service.checks.rpartition(":")[2]))
        with socket.create_connection(address, 60) as idle:
            assert idle.recv(1) == b""
    finally:
        assert service.end() == 0


def test_checks_from_other_machines_need_a_token(directory: Path) -> None:
    service = Served(directory, TIDEGATE_CHECKS__REQUIRE_TOKEN="true")
    try:
        url = f"{service.checks}/v1/ratelimit/check"
        body = {"userId": "1", "endpoint": "/a"}
        assert plain_http.post(url, json=body).status_code == 401
        token = subprocess.run(
            [
                *(sys.executable, "-m", "tidegate", "tokens", "create"),
                *("sqlite:///tidegate.db", "shop", "--role", "check"),
            ],
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        found = re.search(r"tg_\S+", token)
        assert found is not None
        headers = {"authorization": f"Bearer {found[0]}"}
        service.process.send_signal(signal.SIGHUP)
        eventually(lambda: plain_http.post(url, json=body, headers=headers).is_success)
        wrong = {"authorization": f"Bearer {found[0][:-1]}"}
        assert plain_http.post(url, json=body, headers=wrong).status_code == 401
        assert found[0] not in service.log.read_text()
    finally:
        assert service.end() == 0


def test_the_option_check_says_what_a_start_would_do(directory: Path) -> None:
    (directory / "tidegate.yaml").write_text(SETTINGS)
    done = run(directory, "--check")
    assert done.returncode == 0, done.stderr
    assert "rules: 1 of rules.yaml" in done.stdout
    assert "warning" not in done.stdout


def test_check_warns_of_no_rules_and_of_a_storage_that_does_not_answer(directory: Path) -> None:
    settings = SETTINGS.replace("rules: rules.yaml", "database: sqlite:///t.db")
    (directory / "tidegate.yaml").write_text(settings)
    done = run(directory, "--check", TIDEGATE_STORAGE="redis://:secret@127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert "warning: there are no rules, so every check is allowed; expected some in" in done.stdout
    assert "warning: the storage redis://***@127.0.0.1:1 does not answer: " in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_the_log_says_that_there_are_no_rules(directory: Path) -> None:
    (directory / "rules.yaml").write_text("rules: []\n")
    service = Served(directory)
    try:
        eventually(lambda: "there are no rules" in service.log.read_text())
    finally:
        assert service.end() == 0


def test_a_relative_path_that_is_not_there_is_named_with_its_directory(directory: Path) -> None:
    (directory / "tidegate.yaml").write_text("rules: missing.yaml\n")
    for arguments in (["--check"], []):
        done = run(directory, *arguments)
        assert f"missing.yaml: No such file or directory in {directory.resolve()}" in done.stderr
        assert done.returncode == 2


def test_descriptors_of_envoy_need_no_rules(directory: Path) -> None:
    (directory / "envoy.yaml").write_text(
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
    )
    (directory / "tidegate.yaml").write_text(
        "envoy: {config: envoy.yaml}\ndatabase: null\nadmin: {listen: null}\n"
    )
    done = run(directory, "--check", TIDEGATE_CHECKS__LISTEN="127.0.0.1:0")
    assert done.returncode == 0, done.stderr
    assert "\nrules: none\n" in done.stdout
    assert "rule" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["--config", "missing.yaml"], SETTINGS),
        (["--config", "folder.yaml"], SETTINGS),
        (["--config", "rules.yaml/missing.yaml"], SETTINGS),
        ([], "rules: folder.yaml\nadmin: {listen: null}\n"),
        ([], "envoy: {config: missing.yaml}\nadmin: {listen: null}\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_mistake_like_any_other(
    directory: Path, arguments: list[str], settings: str
) -> None:
    (directory / "folder.yaml").mkdir()
    (directory / "tidegate.yaml").write_text(settings)
    done = run(directory, *arguments)
    assert done.returncode == 2, done.stderr
    assert ".yaml: " in done.stderr
    assert f" in {directory.resolve()}\n" in done.stderr or f"{directory}/" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("rules: missing.yaml", "missing.yaml: No such file"),
        ("rules: broken.yaml", "broken.yaml:1: rules[0].limits: "),
        ("storage: mongo://localhost", "mongo"),
        ("database: nosuch://x", "nosuch"),
        (
            "rules: rules.yaml\n"
            "admin: {listen: '127.0.0.1:0', tls: {certificate: a.pem, key: b.pem}}",
            "admin.tls has a.pem, b.pem",
        ),
        ("checks: {listen: 'no.such.host.invalid:1'}\nrules: rules.yaml", "no.such.host.invalid"),
    ],
)
def test_a_failed_start_names_the_reason(directory: Path, settings: str, said: str) -> None:
    (directory / "broken.yaml").write_text("rules: [{id: x, limits: many}]\n")
    (directory / "tidegate.yaml").write_text(settings)
    (directory / "tidegate.yaml").write_text(f"{settings}\n")
    if "admin" not in settings:
        (directory / "tidegate.yaml").write_text(f"{settings}\nadmin: {{listen: null}}\n")
    done = run(directory)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("part", ["checks", "admin"])
def test_an_address_in_use_is_named(directory: Path, part: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        (directory / "tidegate.yaml").write_text(SETTINGS)
        done = run(directory, **{f"TIDEGATE_{part.upper()}__LISTEN": address})
    assert done.returncode in (1, 2)
    host, port = address.split(":")
    assert re.search(rf"{host}( port |:){port}", done.stderr)
    assert "Traceback" not in done.stderr
