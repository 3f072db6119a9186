"""A development server of Flask whose requests are charged in Redis; see exit_cases.py.

python exit_flask.py redis://127.0.0.1:6379 8080
"""

from __future__ import annotations

import logging
import sys

import flask
import tidegate
from werkzeug.serving import run_simple

uri, port = sys.argv[1:]
logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
app = flask.Flask(__name__)
limiter = tidegate.Limiter("1000000000/hour", storage=uri)


@app.get("/")
@tidegate.rate_limit("1000000000/hour", storage=limiter.storage)
def hello() -> str:
    for _ in range(5):
        limiter.hit("k")
    return "hello"


run_simple("127.0.0.1", int(port), app, threaded=True)
