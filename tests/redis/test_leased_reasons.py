"""What tells which limits are leased, and why the others are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tidegate as tg
from redis_server import PATIENT, RedisServer
from tidegate.cli.main import main
from tidegate.rules import RuleSet

LEASED = f"{PATIENT}&mode=leased"
TOO_SMALL = "its burst is 10; expected 20 to 1099511627776"


def test_a_limiter_tells_how_its_limits_are_leased(server: RedisServer) -> None:
    (leasing,) = tg.Limiter("2000/second", storage=server.uri(f"{LEASED}&lease=0.1")).leasing
    assert (str(leasing.limit), leasing.seconds, leasing.why) == ("2000/second", 0.1, "")
    assert str(leasing) == "leased for 100 ms, twice that for few calls"
    # No longer than a quarter of the burst takes to come back.
    (leasing,) = tg.Limiter("1000/second burst 200", storage=server.uri(LEASED)).leasing
    assert leasing.seconds == 0.05


def test_a_limit_that_is_not_leased_has_the_others_asked_for(server: RedisServer) -> None:
    limiter = tg.Limiter(["2000/second", "10/second"], storage=server.uri(LEASED))
    first, second = limiter.leasing
    assert (first.seconds, second.seconds) == (0, 0)
    assert first.why == "10/second, which the same call is charged to, is asked for each call"
    assert second.why == TOO_SMALL
    assert str(second) == f"asked for each call: {TOO_SMALL}"


def test_other_storages_lease_nothing(server: RedisServer) -> None:
    (leasing,) = tg.Limiter("2000/second", storage=server.uri(PATIENT)).leasing
    assert (leasing.seconds, leasing.why) == (0, "the storage has no mode=leased")
    assert tg.Limiter("2000/second").leasing[0].why == "the storage is no Redis"


RULES = {
    "rules": [
        {"id": "user", "by": "user", "limits": "2000/second"},
        {"id": "pay", "by": "ip", "endpoint": "/pay", "limits": "10/second"},
    ]
}


def test_explain_tells_it_of_the_limits_of_a_request(server: RedisServer) -> None:
    limiter = tg.Limiter(rules=RuleSet(RULES), storage=server.uri(LEASED))
    told = {
        each.rule: [one.why for one in each.leasing]
        for each in limiter.explain(user="1", ip="::1", endpoint="/pay")
    }
    assert told["pay"] == [TOO_SMALL]
    assert "10/second" in told["user"][0]
    user, pay = limiter.explain(user="1", ip="::1", endpoint="/x")
    assert [one.seconds for one in user.leasing] == [0.2]
    assert pay.leasing == ()


def test_the_command_explains_it_too(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(RULES))
    command = ["rules", "explain", str(file), "--user", "1", "--endpoint", "/x", "--storage"]
    assert main([*command, server.uri(LEASED)]) == 0
    assert "        leased for 200 ms, twice that for few calls\n" in capsys.readouterr().out
    assert main([*command, server.uri(PATIENT)]) == 0
    assert "lease" not in capsys.readouterr().out


def test_the_doctor_tells_it_of_each_limit(
    server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["--limit", "2000/second", "--limit", "10/second", "--samples", "5", "--json"]
    assert main(["doctor", server.uri(LEASED), *limits]) == 0
    report = json.loads(capsys.readouterr().out)
    found = [
        (each["level"], each["text"]) for each in report["findings"] if each["topic"] == "leases"
    ]
    assert found == [
        ("ok", "2000/second (token-bucket): leased for 200 ms, twice that for few calls"),
        ("note", f"10/second (token-bucket): asked for each call: {TOO_SMALL}"),
    ]
    assert [each["seconds"] for each in report["leases"]] == [0.2, 0]
    assert main(["doctor", server.uri(PATIENT), *limits[:2], "--samples", "5"]) == 0
    assert "asked for each call: the storage has no mode=leased" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("limit", "algorithm", "why"),
    [
        ("1000/second", "leaky-bucket", "the calls of all processes wait in one queue, which"),
        ("quota 100000/day", "token-bucket", "units of a process that died would stay charged"),
    ],
)
def test_what_leases_would_harm_stays_strict(
    server: RedisServer, limit: str, algorithm: tg.types.Algorithm, why: str
) -> None:
    limiter = tg.Limiter(limit, algorithm=algorithm, storage=server.uri(LEASED))
    assert limiter.leasing[0].why.startswith(why)
    decisions = [limiter.hit("k") for _ in range(50)]
    assert all(decisions)
    assert not any(decision.leased for decision in decisions)
    # No call waits longer than for those before it.
    assert decisions[-1].delay <= 49 / 1000
