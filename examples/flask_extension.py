"""A Flask service with the extension: one set of limits for the service, from its configuration.

pip install 'tidegate[flask]' gunicorn
cd examples && gunicorn --workers 4 'flask_extension:create_app()'
curl -i http://127.0.0.1:8000/tides

The workers count together in shared memory; with FLASK_TIDEGATE_STORAGE=redis://localhost all
hosts count together.
"""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Flask, request
from flask.views import MethodView
from tidegate.flask import RateLimiter, RateLimitExceeded

limiter = RateLimiter()
harbour = Blueprint("harbour", __name__, url_prefix="/harbour")
limiter.limit("30/minute")(harbour)


@harbour.get("/berths")
def berths() -> list[str]:
    return ["north", "south"]


@harbour.post("/berths")
@limiter.limit("2/minute")
def book() -> tuple[dict[str, str], int]:
    return {"booked": request.form.get("berth", "north")}, 201


class Log(MethodView):
    # Reading has the limit of all endpoints; writing has a limit for each ship.
    def get(self, ship: str) -> dict[str, str]:
        return {"ship": ship, "log": "all quiet"}

    @limiter.limit("3/minute", key=lambda request: request.view_args["ship"])
    def post(self, ship: str) -> dict[str, str]:
        return {"ship": ship, "log": request.get_data(as_text=True)}


def too_many(refusal: RateLimitExceeded) -> tuple[dict[str, Any], int]:
    """An answer in this service's own style; the header fields are added to it."""
    return {"ok": False, "why": refusal.description, "wait": refusal.decision.retry_after}, 429


def create_app() -> Flask:
    app = Flask(__name__)
    app.config.from_mapping(
        TIDEGATE_LIMIT=["20/second", "1000/hour"],
        TIDEGATE_ENDPOINT_LIMIT="10/minute",
        TIDEGATE_STORAGE="shm://flask-extension",
    )
    app.config.from_prefixed_env()
    limiter.init_app(app)
    app.register_blueprint(harbour)
    app.register_error_handler(RateLimitExceeded, too_many)
    app.add_url_rule("/ships/<ship>/log", view_func=Log.as_view("log"))

    @app.get("/tides")
    def tides() -> dict[str, str]:
        return {"high": "04:12", "low": "10:31"}

    @app.get("/health")
    @limiter.exempt
    def health() -> str:
        return "ok"

    return app
