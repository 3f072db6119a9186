"""The ride-hailing platform's API: six endpoints in front of one matching service.

The environment configures it:

RIDES_LIMITS    `none`, `rules` (the default), or `load`: rules, and less of them under load
RIDES_STORAGE   where counts live, for all workers: shm://rides, or redis://...
RIDES_MATCHING  the port of the matching service
RIDES_SECRET    what signs the tokens of riders

serve.py starts it together with the matching service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from matching import MatchingClient
from pydantic import BaseModel
from riders import client_of
from tidegate.asgi import RateLimitMiddleware
from tidegate.load import LoadShedding, QueueWait
from tidegate.rules import RuleSet

RULES = Path(__file__).with_name("rules.yaml")
LIMITS = ("none", "rules", "load")


class Trip(BaseModel):
    pickup_lat: float
    pickup_lng: float
    dropoff_lat: float
    dropoff_lng: float


class Position(BaseModel):
    lat: float
    lng: float


def create_app() -> FastAPI | RateLimitMiddleware:
    """The ASGI application, as the environment configures it; uvicorn calls this in each worker."""
    limits = os.environ.get("RIDES_LIMITS", "rules")
    if limits not in LIMITS:
        raise ValueError(f"RIDES_LIMITS is {limits!r}; expected one of {', '.join(LIMITS)}")
    matching = MatchingClient(int(os.environ.get("RIDES_MATCHING", "9100")))
    # How long jobs wait in the queue is how loaded the service is: a second is the most.
    wait = QueueWait(full=1.0)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await matching.open()
        yield
        await matching.close()

    app = FastAPI(title="Rides", lifespan=lifespan)

    @app.exception_handler(ConnectionError)
    async def unavailable(request: Request, error: ConnectionError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 503)

    async def job(what: str, request: Request, trip: Trip) -> dict[str, Any]:
        rider = client_of(request.scope)
        place = {"lat": trip.pickup_lat, "lng": trip.pickup_lng}
        found = await matching(what, rider=rider, **place)
        wait.record(found["waited"])
        return found

    @app.post("/api/rides/request")
    async def request_ride(trip: Trip, request: Request) -> dict[str, Any]:
        return await job("ride", request, trip)

    @app.post("/api/fares/estimate")
    async def estimate_fare(trip: Trip, request: Request) -> dict[str, Any]:
        return await job("fare", request, trip)

    @app.post("/api/drivers/location")
    async def locate_driver(position: Position, request: Request) -> dict[str, Any]:
        driver = client_of(request.scope)
        if not driver.startswith("user:"):
            raise HTTPException(401, "a driver's token is missing; expected Authorization: Bearer")
        # The leaky bucket says when it is this update's turn to be written.
        decision = request.scope.get("tidegate.decision")
        if decision is not None and decision.delay > 0:
            await asyncio.sleep(decision.delay)
        return await matching("locate", driver=driver, lat=position.lat, lng=position.lng)

    @app.get("/api/drivers/nearby")
    async def nearby_drivers(lat: float, lng: float) -> dict[str, Any]:
        return await matching("nearby", lat=lat, lng=lng)

    @app.get("/api/trips/history")
    async def trip_history(request: Request) -> dict[str, Any]:
        return await matching("history", rider=client_of(request.scope))

    @app.get("/api/admin/zones/stats")
    async def zone_statistics() -> dict[str, Any]:
        return await matching("zones")

    return app if limits == "none" else limited(app, wait if limits == "load" else None)


def limited(app: FastAPI, wait: QueueWait | None) -> RateLimitMiddleware:
    """The application behind its limits, which give less while jobs `wait` long.

    The middleware is around FastAPI and not in it, so that a refusal costs nothing there.
    """
    shedding = None
    if wait is not None:
        shedding = LoadShedding(
            wait,
            steps=[(0.4, 0.75), (0.6, 0.5), (0.8, 0.25)],
            smoothing=1.0,
            recovery=3.0,
            interval=0.5,
        )
    return RateLimitMiddleware(
        app,
        rules=RuleSet.load(RULES),
        attributes={"client": client_of},
        storage=os.environ.get("RIDES_STORAGE", "shm://rides"),
        load=shedding,
    )
