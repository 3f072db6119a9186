"""A development server of Flask whose requests are charged in Redis; see exit_cases.py.

python exit_flask.py redis://127.0.0.1:6379 8080
"""

from __future__ import annotations

import errno
import logging
import signal
import sys
from typing import Any

import flask
import tidegate
from werkzeug.serving import ThreadedWSGIServer, run_simple

uri, port = sys.argv[1:]
# Ignored in what a shell runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
app = flask.Flask(__name__)
limiter = tidegate.Limiter("1000000000/hour", storage=uri)


@app.get("/")
@tidegate.rate_limit("1000000000/hour", storage=limiter.storage)
def hello() -> str:
    for _ in range(5):
        limiter.hit("k")
    return "hello"


_report = ThreadedWSGIServer.handle_error


def _report_all_but_closed(server: ThreadedWSGIServer, *of_whom: Any) -> None:
    """Ctrl-C closes the connection that is being accepted, which its thread may be reading."""
    error = sys.exc_info()[1]
    if not (isinstance(error, OSError) and error.errno == errno.EBADF):
        _report(server, *of_whom)


ThreadedWSGIServer.handle_error = _report_all_but_closed  # type: ignore[method-assign]
run_simple("127.0.0.1", int(port), app, threaded=True)
