"""A Flask application to limit, and its answers."""

from __future__ import annotations

import flask

NOW = 1_700_000_000 * 10**9


def service(**config):
    """An application with this configuration and two endpoints, /a/… and /b/…."""
    app = flask.Flask(__name__)
    app.config.update(config)
    for name in ("a", "b"):
        app.add_url_rule(f"/{name}/<path:rest>", name, lambda rest: {"rest": rest})
    return app


def statuses(app, *paths, method="GET", **options):
    """The answers to requests for `paths`, one after the other."""
    client = app.test_client()
    options["buffered"] = True
    return [client.open(path, method=method, **options).status_code for path in paths]


def nothing():
    """A view."""
    return {}
