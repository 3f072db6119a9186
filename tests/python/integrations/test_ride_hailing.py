"""The ride-hailing platform of the examples: the whole of it with real requests, and its parts."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from polling import eventually
from ports import free_port
from servers import Answer, Client
from tidegate.cli.main import main

HERE = Path(__file__).resolve().parents[3] / "examples" / "ride_hailing"


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"ride_hailing_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RIDERS = _module("riders")
MATCHING = _module("matching")


class Platform:
    """A client of the running platform, who is a different rider with each name."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(self, path: str, rider: str | None, body: object | None = None) -> Answer:
        headers = {} if rider is None else {"authorization": f"Bearer {RIDERS.token_of(rider)}"}
        if body is None:
            return self._client(path, headers=headers)
        headers["content-type"] = "application/json"
        return self._client(path, "POST", body=json.dumps(body).encode(), headers=headers)

    def job(self, path: str, rider: str) -> Answer:
        trip = {"pickup_lat": 40.75, "pickup_lng": -73.99, "dropoff_lat": 40.76, "dropoff_lng": -74}
        return self(path, rider, trip)

    def until_refused(self, path: str, rider: str) -> list[Answer]:
        """The answers to a rider who asks until one is a refusal, which is the last."""
        answers = [self.job(path, rider)]
        while answers[-1].status == 200:
            answers.append(self.job(path, rider))
            assert len(answers) < 100
        assert answers[-1].status == 429
        return answers


@contextlib.contextmanager
def running(storage: str, limits: str = "rules") -> Iterator[Platform]:
    port = free_port()
    command = [sys.executable, str(HERE / "serve.py"), "--port", str(port)]
    command += ["--matching-port", str(free_port()), "--seconds", "0.001"]
    command += ["--limits", limits, "--storage", storage]

    def answers() -> Client:
        client = Client(("127.0.0.1", port), timeout=60)
        assert client("/openapi.json").status == 200
        return client

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with (
        processes.running(command, grace=30, **quiet),
        contextlib.closing(eventually(answers, 120, interval=0.1, despite=OSError)) as client,
    ):
        yield Platform(client)


@pytest.fixture(params=["shm", "redis"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "shm":
        yield f"shm://{tmp_path}/counts"
        return
    from redis_server import RedisServer

    server = RedisServer(tmp_path)
    server.start()
    try:
        yield server.uri()
    finally:
        server.kill()


def test_the_six_endpoints_answer_and_refuse(storage: str) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with running(storage) as platform:
        rides = platform.until_refused("/api/rides/request", "anna")
        assert len(rides) > 3
        assert rides[0].json()["driver"]
        assert rides[-1].json()["violated-policies"] == ["rides"]
        assert int(rides[-1]["retry-after"]) in (1, 2)
        assert platform.job("/api/rides/request", "bert").status == 200

        fares = platform.until_refused("/api/fares/estimate", "anna")
        assert len(fares) > 2
        assert fares[0].json()["fare"] == 12.5
        assert fares[-1].json()["violated-policies"] == ["fares"]

        place = {"lat": 40.7, "lng": -73.9}
        assert platform("/api/drivers/location", "dora", place).json() == {"drivers": 1}
        assert platform("/api/drivers/location", None, place).status == 401
        near = platform("/api/drivers/nearby?lat=40.7&lng=-73.9", "anna")
        assert near.json() == {"drivers": ["user:dora"]}
        assert near["ratelimit-policy"] == '"nearby";q=5;w=1'

        # Those who took a ride are matched with the nearest driver from now on.
        assert platform.job("/api/rides/request", "carl").json()["driver"] == "user:dora"
        history = platform("/api/trips/history", "carl")
        assert history.json() == {"trips": ["user:dora"]}
        assert history["x-ratelimit-limit"] == "30"
        (zone,) = platform("/api/admin/zones/stats", "ops").json()["rides"].items()
        assert zone == ("40.8,-74.0", len(rides) + 1)


def test_a_name_that_nobody_has_signed_is_no_client_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with running(f"shm://{tmp_path}/counts") as platform:
        for number in range(3):
            forged = {"authorization": f"Bearer rider-{number}.{'0' * 32}"}
            assert platform._client("/api/trips/history", headers=forged).status == 200
        counted = platform("/api/trips/history", None)
        assert counted["x-ratelimit-remaining"] == "26"


def test_without_limits_nothing_is_refused() -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with running("memory://", limits="none") as platform:
        rides = [platform.job("/api/rides/request", "anna") for _ in range(8)]
        assert [ride.status for ride in rides] == [200] * 8
        assert "ratelimit" not in rides[0]


def test_the_rules_are_checked_and_decide_as_their_cases_expect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("pydantic")
    pytest.importorskip("yaml")
    rules, cases = str(HERE / "rules.yaml"), str(HERE / "rules_cases.yaml")
    assert main(["rules", "check", "--strict", rules]) == 0
    assert main(["rules", "test", rules, cases]) == 0, capsys.readouterr().out


def test_a_token_proves_the_name_that_it_was_made_for() -> None:
    token = RIDERS.token_of("anna.b")
    assert RIDERS.name_in(f"Bearer {token}") == "anna.b"
    for forged in (
        "",
        "Bearer ",
        "Bearer anna",
        f"Bearer x{token}",
        f"Bearer {token}0",
        "Bearer ä.ö",
    ):
        assert RIDERS.name_in(forged) is None


def test_jobs_wait_for_a_worker_in_their_order() -> None:
    """One worker is held by the first job, so the others queue behind it."""

    async def run() -> None:
        matching = MATCHING.Matching(workers=1, seconds=0.01, clock=lambda: 0.0)
        working = asyncio.create_task(matching.run())
        ended: list[str] = []

        async def job(rider: str) -> float:
            place = {"lat": 40.7, "lng": -73.9}
            reply = await matching.answer({"what": "ride", "rider": rider, **place})
            ended.append(rider)
            return float(reply["waited"])

        waits = await asyncio.gather(*(job(rider) for rider in ("a", "b", "c")))
        assert ended == ["a", "b", "c"]
        # The capacity is exact, however late the loop wakes: each begins as the one before ends.
        assert waits == pytest.approx([0, 0.01, 0.02])
        assert await matching.answer({"what": "stats"}) == {"queued": 0, "done": 3, "workers": 1}
        working.cancel()

    asyncio.run(run())


def test_an_operator_takes_workers_away() -> None:
    async def run() -> None:
        matching = MATCHING.Matching(workers=2, seconds=0)
        assert await matching.answer({"what": "pool", "workers": 0}) == {
            "queued": 0,
            "done": 0,
            "workers": 0,
        }
        working = asyncio.create_task(matching.run())
        job = asyncio.create_task(matching.answer({"what": "fare"}))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not job.done()
        assert (await matching.answer({"what": "stats"}))["queued"] == 1
        assert (await matching.answer({"what": "pool", "workers": 9}))["workers"] == 2
        assert (await job)["fare"] == 12.5
        working.cancel()

    asyncio.run(run())


def test_requests_that_wait_fail_when_the_matching_service_goes() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.close()
            ended.set()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        client = MATCHING.MatchingClient(server.sockets[0].getsockname()[1])
        await client.open()
        with pytest.raises(ConnectionError):
            await client("ride")
        await ended.wait()
        with pytest.raises(ConnectionError):
            await client("ride")
        await client.close()
        server.close()

    asyncio.run(run())
