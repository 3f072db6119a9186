"""The applications that are put in front of the matching service, one for each limiter.

SURGE_LIMITER names it. tidegate's is the example as it is; the others have its two endpoints that
riders surge at, with limits of the same rate and burst in their own terms: a moving window of 3
rides in 4 s (45 a minute, 3 at once) and of 2 fares in 8 s (15 a minute, 2 at once).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "ride_hailing"))

import app as example
from matching import MatchingClient
from riders import client_of, name_in
from schedule import FARE, RIDE
from stopwatch import Stopwatch, WsgiStopwatch

RIDES, FARES = (3, 4), (2, 8)  # requests, and seconds
Trip = example.Trip


def _redis() -> str:
    return os.environ["SURGE_REDIS"]


def _place(trip: Any) -> dict[str, float]:
    return {"lat": trip.pickup_lat, "lng": trip.pickup_lng}


def _fastapi() -> tuple[Any, MatchingClient]:
    """An application without endpoints, and its connection to the matching service."""
    from fastapi import FastAPI

    matching = MatchingClient(int(os.environ["RIDES_MATCHING"]))

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await matching.open()
        yield
        await matching.close()

    return FastAPI(lifespan=lifespan), matching


def _endpoints(matching: MatchingClient) -> list[tuple[str, Any, tuple[int, int]]]:
    """The path, the function and the limit of each endpoint."""
    from fastapi import Request

    async def ride(request, trip):  # type: ignore[no-untyped-def]
        return await matching("ride", rider=client_of(request.scope), **_place(trip))

    async def fare(request, trip):  # type: ignore[no-untyped-def]
        return await matching("fare", rider=client_of(request.scope), **_place(trip))

    for endpoint in (ride, fare):
        endpoint.__annotations__ = {"request": Request, "trip": Trip, "return": dict[str, Any]}
    return [(RIDE, ride, RIDES), (FARE, fare, FARES)]


def slowapi() -> Any:
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded

    app, matching = _fastapi()
    limiter = Limiter(
        lambda request: client_of(request.scope), storage_uri=_redis(), strategy="moving-window"
    )
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)

    for path, endpoint, (count, seconds) in _endpoints(matching):
        app.post(path)(limiter.limit(f"{count}/{seconds} seconds")(endpoint))
    return app


def fastapi_limiter() -> Any:
    from fastapi import Depends
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import AbstractBucket, BucketFactory, Limiter, Rate, RateItem, RedisBucket
    from redis import asyncio as redis

    class EachClient(BucketFactory):
        """A bucket in Redis for each key, as pyrate-limiter's documents show."""

        def __init__(self, rate: Rate, connection: Any) -> None:
            self._rate = rate
            self._redis = connection
            self._buckets: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> RateItem:
            import time

            return RateItem(name, time.time_ns() // 1_000_000, weight=weight)

        async def get(self, item: RateItem) -> AbstractBucket:
            if item.name not in self._buckets:
                made = await RedisBucket.init([self._rate], self._redis, f"pyrate:{item.name}")
                self._buckets[item.name] = made
                self.schedule_leak(made)
            return self._buckets[item.name]

    app, matching = _fastapi()
    connection = redis.from_url(_redis())

    async def client(request: Any) -> str:
        return client_of(request.scope)

    for path, endpoint, (count, seconds) in _endpoints(matching):
        buckets = EachClient(Rate(count, seconds * 1000), connection)
        limited = RateLimiter(limiter=Limiter(buckets), identifier=client)
        app.post(path, dependencies=[Depends(limited)])(endpoint)
    return app


def create_app() -> Any:
    """What uvicorn serves."""
    limiter = os.environ["SURGE_LIMITER"]
    made = {"slowapi": slowapi, "fastapi-limiter": fastapi_limiter}
    return Stopwatch(made.get(limiter, example.create_app)())


class BlockingClient:
    """As MatchingClient, for threads: each has a connection, and waits for each reply."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._of_thread = threading.local()

    def __call__(self, what: str, **details: Any) -> dict[str, Any]:
        if not hasattr(self._of_thread, "stream"):
            connection = socket.create_connection(("127.0.0.1", self._port))
            self._of_thread.stream = connection.makefile("rwb")
        stream = self._of_thread.stream
        stream.write(json.dumps({"id": 0, "what": what, **details}).encode() + b"\n")
        stream.flush()
        reply: dict[str, Any] = json.loads(stream.readline())
        return reply


def flask_app() -> Any:
    """What gunicorn serves: Flask with Flask-Limiter."""
    from flask import Flask, request
    from flask_limiter import Limiter

    app = Flask(__name__)
    matching = BlockingClient(int(os.environ["RIDES_MATCHING"]))

    def client() -> str:
        name = name_in(request.headers.get("authorization", ""))
        return f"ip:{request.remote_addr}" if name is None else f"user:{name}"

    limiter = Limiter(client, app=app, storage_uri=_redis(), strategy="moving-window")

    def job(what: str) -> dict[str, Any]:
        place = _place(Trip.model_validate_json(request.data))
        return matching(what, rider=client(), **place)

    @app.post(RIDE)
    @limiter.limit(f"{RIDES[0]}/{RIDES[1]} seconds")
    def ride() -> dict[str, Any]:
        return job("ride")

    @app.post(FARE)
    @limiter.limit(f"{FARES[0]}/{FARES[1]} seconds")
    def fare() -> dict[str, Any]:
        return job("fare")

    return WsgiStopwatch(app)
