"""A Flask service with limits on its routes.

pip install 'tidegate[flask]'
python examples/flask_app.py
curl -i http://127.0.0.1:5000/tides
"""

from __future__ import annotations

from typing import Any

from flask import Flask, Request, request
from tidegate import Decision, rate_limit

app = Flask(__name__)


def from_harbour(request: Request) -> bool:
    """The harbour's own machines are exempt."""
    return (request.remote_addr or "").startswith("10.")


def too_many(request: Request, decision: Decision) -> tuple[dict[str, Any], int]:
    """An answer in this service's own style; the header fields are added to it."""
    return {"ok": False, "wait": decision.retry_after}, 429


@app.get("/tides")
@rate_limit("10/second burst 20", exempt_when=from_harbour)
def tides() -> dict[str, str]:
    return {"high": "04:12", "low": "10:31"}


# Reads and writes of a ship's log count together, for each ship.
@app.get("/ships/<ship>/log")
@rate_limit("3/minute", scope="ship-log", key=lambda request: request.view_args["ship"])
def read_log(ship: str) -> dict[str, str]:
    return {"ship": ship, "log": "all quiet"}


@app.post("/ships/<ship>/log")
@rate_limit("3/minute", scope="ship-log", key=lambda request: request.view_args["ship"])
def write_log(ship: str) -> tuple[dict[str, str], int]:
    return {"ship": ship, "log": request.get_data(as_text=True)}, 201


@app.post("/login")
@rate_limit("5/minute", algorithm="sliding-log", on_refused=too_many)
def login() -> dict[str, bool]:
    return {"welcome": request.form.get("password") == "ebb and flow"}


if __name__ == "__main__":
    app.run(port=5000)
