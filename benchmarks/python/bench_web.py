"""Requests a second of FastAPI and Flask applications, bare and under rate limiters.

    python benchmarks/python/bench_web.py [--quick] [--rounds N] [--only TEXT] [--json FILE]

Each subject is served by a uvicorn of its own (httptools, uvloop), those of Flask by a gunicorn
(one gthread worker), and `wrk` sends requests to them in turn, round after round. Each round has
servers of its own, because two that do the same may differ by 5 % for as long as they live. Needs
wrk, uvicorn[standard] and fastapi. Flask under gunicorn, slowapi, fastapi-limiter and Flask-Limiter
are measured if they are installed, and subjects that count in Redis if there is a redis-server,
which is started on a free port.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))
from redis_server import PATIENT, RedisServer

# No request reaches this limit, so allowed requests are measured. Its interval is a whole number of
# microseconds, as for nearly all limits; others need a longer script in Redis.
_LIMIT = "1000000/second"

# The subject that must answer with 429.
_REFUSING = "tidegate middleware, refusing"

# The variable that names the Redis to the servers.
_REDIS = "TIDEGATE_BENCH_REDIS"


def bare() -> Any:
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def middleware() -> Any:
    from tidegate.asgi import RateLimitMiddleware

    return RateLimitMiddleware(bare(), limit=_LIMIT)


def rules() -> Any:
    """Three rules apply to each request, of four."""
    from tidegate.asgi import RateLimitMiddleware
    from tidegate.rules import RuleSet

    document = {
        "rules": [
            {"id": "address", "by": "ip", "limit": _LIMIT},
            {"id": "endpoint", "by": "ip+endpoint", "endpoint": "/**", "limit": _LIMIT},
            {"id": "all", "by": "global", "limit": _LIMIT},
            {"id": "users", "by": "user", "limit": _LIMIT},
        ]
    }
    return RateLimitMiddleware(bare(), rules=RuleSet(document))


def refusing() -> Any:
    from tidegate.asgi import RateLimitMiddleware

    return RateLimitMiddleware(bare(), limit="1/hour")


def five_headers(app: Any = None) -> Any:
    """A wrapper that sends as many fields, which it knows beforehand, to time the sending alone."""
    app = app or bare()
    fields = [(b"x-ratelimit-%d" % number, b"a value of 26 characters..") for number in range(5)]

    async def wrapper(scope: Any, receive: Any, send: Any) -> None:
        def send_with_fields(message: Any) -> Any:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *fields]}
            return send(message)

        await app(scope, receive, send_with_fields)

    return wrapper


def decorator() -> Any:
    from fastapi import FastAPI
    from tidegate import rate_limit

    app = FastAPI()

    @app.get("/")
    @rate_limit(_LIMIT)
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def dependency() -> Any:
    from fastapi import Depends, FastAPI
    from tidegate.fastapi import RateLimit

    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimit(_LIMIT))])
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def _redis() -> str:
    """A Redis with a long timeout, so that a machine that stalls does not measure the fallback."""
    return f"{os.environ[_REDIS]}?{PATIENT}"


def middleware_on_redis() -> Any:
    from tidegate.asgi import RateLimitMiddleware

    return RateLimitMiddleware(bare(), limit=_LIMIT, storage=_redis())


def decorator_on_redis() -> Any:
    from fastapi import FastAPI
    from tidegate import rate_limit

    app = FastAPI()

    @app.get("/")
    @rate_limit(_LIMIT, storage=_redis())
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def slowapi_on_redis() -> Any:
    return slowapi_middleware(storage_uri=os.environ[_REDIS])


def slowapi_on_tidegate() -> Any:
    """slowapi as it is, with tidegate's storage."""
    import tidegate.limits  # noqa: F401

    return slowapi_middleware(storage_uri="tidegate+" + _redis())


def empty_dependency() -> Any:
    from fastapi import Depends, FastAPI

    async def nothing() -> None:
        pass

    app = FastAPI()

    @app.get("/", dependencies=[Depends(nothing)])
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def empty_dependency_headers() -> Any:
    return five_headers(empty_dependency())


def slowapi_middleware(**options: Any) -> Any:
    from slowapi import Limiter
    from slowapi.middleware import SlowAPIASGIMiddleware
    from slowapi.util import get_remote_address

    app = bare()
    app.state.limiter = Limiter(
        get_remote_address, default_limits=[_LIMIT], headers_enabled=True, **options
    )
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


def slowapi_decorator() -> Any:
    from fastapi import FastAPI, Request, Response
    from slowapi import Limiter
    from slowapi.util import get_remote_address

    app = FastAPI()
    limiter = app.state.limiter = Limiter(get_remote_address, headers_enabled=True)

    async def hello(request, response):  # type: ignore[no-untyped-def]
        return {"hello": "world"}

    # FastAPI could not resolve the annotations as text, which they are in this module.
    hello.__annotations__ = {"request": Request, "response": Response, "return": dict[str, str]}
    app.get("/")(limiter.limit(_LIMIT)(hello))
    return app


def fastapi_limiter() -> Any:
    from fastapi import Depends, FastAPI
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Duration, Limiter, Rate

    app = FastAPI()
    limited = RateLimiter(limiter=Limiter(Rate(100_000_000, Duration.MINUTE)))

    @app.get("/", dependencies=[Depends(limited)])
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def flask_bare() -> Any:
    from flask import Flask

    app = Flask(__name__)

    @app.get("/")
    def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def flask_extension() -> Any:
    from tidegate.flask import RateLimiter

    app = flask_bare()
    RateLimiter(app, _LIMIT)
    return app


def flask_extension_endpoints() -> Any:
    from tidegate.flask import RateLimiter

    app = flask_bare()
    RateLimiter(app, endpoint_limit=_LIMIT)
    return app


def flask_limiter() -> Any:
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    app = flask_bare()
    Limiter(
        get_remote_address,
        app=app,
        default_limits=[_LIMIT],
        headers_enabled=True,
        storage_uri="memory://",
    )
    return app


# Each with the module that it needs.
SUBJECTS: dict[str, tuple[Callable[[], Any], str]] = {
    "bare": (bare, "fastapi"),
    "tidegate middleware": (middleware, "tidegate"),
    "tidegate middleware, rules": (rules, "tidegate"),
    "tidegate @rate_limit": (decorator, "tidegate"),
    "tidegate Depends": (dependency, "tidegate"),
    _REFUSING: (refusing, "tidegate"),
    "five fixed headers": (five_headers, "fastapi"),
    "empty dependency": (empty_dependency, "fastapi"),
    "empty dependency, five fixed headers": (empty_dependency_headers, "fastapi"),
    "slowapi middleware": (slowapi_middleware, "slowapi"),
    "slowapi decorator": (slowapi_decorator, "slowapi"),
    "fastapi-limiter": (fastapi_limiter, "fastapi_limiter"),
}

ON_REDIS: dict[str, tuple[Callable[[], Any], str]] = {
    "tidegate middleware, Redis": (middleware_on_redis, "tidegate"),
    "tidegate @rate_limit, Redis": (decorator_on_redis, "tidegate"),
    "slowapi middleware, Redis": (slowapi_on_redis, "slowapi"),
    "slowapi, tidegate+redis://": (slowapi_on_tidegate, "slowapi"),
}


FLASK_SUBJECTS: dict[str, tuple[Callable[[], Any], str]] = {
    "Flask, bare": (flask_bare, "flask"),
    "Flask, tidegate extension": (flask_extension, "tidegate"),
    "Flask, tidegate extension by endpoint": (flask_extension_endpoints, "tidegate"),
    "Flask-Limiter": (flask_limiter, "flask_limiter"),
}


@contextlib.contextmanager
def served(name: str) -> Iterator[str]:
    """The URL of a subject, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        if name in FLASK_SUBJECTS:
            command = _gunicorn(name, listener.fileno())
        else:
            command = [sys.executable, __file__, "--serve", name, str(listener.fileno())]
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as server:
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
            finally:
                server.terminate()


def _gunicorn(name: str, fd: int) -> list[str]:
    here = Path(__file__).resolve()
    command = [sys.executable, "-m", "gunicorn", "--chdir", str(here.parent)]
    command += ["--bind", f"fd://{fd}", "--worker-class", "gthread", "--threads", "4"]
    command += ["--keep-alive", "60", "--no-control-socket", "--log-level", "error"]
    return [*command, f"{here.stem}:flask_application({name!r})"]


def flask_application(name: str) -> Any:
    """The application that gunicorn serves."""
    return FLASK_SUBJECTS[name][0]()


def serve(name: str, fd: int) -> None:
    import uvicorn

    app = (SUBJECTS | ON_REDIS)[name][0]()
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", access_log=False, log_level="error"
    )
    # uvicorn's own `fd` would treat it as a Unix socket: requests would have no addresses, and
    # replies would wait for delayed acknowledgements.
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=fd)])


@contextlib.contextmanager
def redis_for_servers() -> Iterator[dict[str, tuple[Callable[[], Any], str]]]:
    """Runs a redis-server, and yields the subjects that can be served with it; none without one."""
    if shutil.which("redis-server") is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        server = RedisServer(Path(directory))
        server.start()
        os.environ[_REDIS] = f"redis://127.0.0.1:{server.port}/0"
        try:
            yield ON_REDIS
        finally:
            server.kill()


def requests_per_second(url: str, seconds: int, refused: bool = False) -> float:
    command = ["wrk", "-t1", "-c64", f"-d{seconds}s", url]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in output and not refused:
        raise RuntimeError(f"{url} answers with errors: {output}")
    found = re.search(r"Requests/sec:\s*([\d.]+)", output)
    if found is None:
        raise RuntimeError(f"wrk printed no rate: {output}")
    return float(found[1])


def await_start(name: str, url: str, refused: bool) -> None:
    """Sends requests to a server until it has answered and is warm."""
    for _ in range(30):
        if requests_per_second(url, 1, refused) > 0:
            return
    raise RuntimeError(f"{name} does not answer")


def added_targets(figures: dict[str, dict[str, float]]) -> list[harness.Target]:
    """The ratio of the time that we add to a request to the time that a peer adds at that place."""
    pairs = [
        ("tidegate middleware", "slowapi middleware", 1 / 8),
        ("tidegate @rate_limit", "slowapi decorator", 1 / 8),
        ("tidegate Depends", "fastapi-limiter", 1 / 4),
    ]
    return [
        harness.Target(
            f"added: {ours} over {theirs}",
            max(figures[ours]["added_us"], 0.0) / figures[theirs]["added_us"],
            bound,
            at_least=False,
        )
        for ours, theirs, bound in pairs
        # Negative times are noise, which has no ratio.
        if {ours, theirs} <= figures.keys() and figures[theirs]["added_us"] > 0
    ]


# What the limiter at a place may take of the time of an application that does as much there without
# a limit: it sends as many fields, or has a dependency.
BESIDE = {
    "tidegate middleware": ("five fixed headers", 1.1),
    "tidegate Depends": ("empty dependency, five fixed headers", 1.1),
}


def figures_of(rates: dict[str, list[float]], name: str) -> dict[str, float]:
    """Medians over the rounds; a share is relative to the bare application in the same round."""
    found = rates[name]
    bare = rates["Flask, bare" if name in FLASK_SUBJECTS else "bare"]
    return {
        "requests_per_second": statistics.median(found),
        "share": statistics.median(a / b for a, b in zip(found, bare, strict=True)),
        "added_us": statistics.median(1e6 / a - 1e6 / b for a, b in zip(found, bare, strict=True)),
    }


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
        return
    parser = harness.arguments(__doc__ or "", rounds=7, quick_rounds=3)
    parser.add_argument("--only", metavar="TEXT", help="subjects with it in their names, and bare")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("web: skipped, there is no wrk (apt-get install wrk)")
        return
    harness.load_tidegate()
    harness.print_interpreter()
    with contextlib.ExitStack() as stack:
        subjects = SUBJECTS | stack.enter_context(redis_for_servers())
        if harness.optional("flask") and harness.optional("gunicorn"):
            subjects = subjects | FLASK_SUBJECTS
        names = [
            name
            for name, (_, module) in subjects.items()
            if harness.optional(module)
            and (options.only is None or options.only in name or "bare" in name)
        ]
        rates: dict[str, list[float]] = {name: [] for name in names}
        seconds = 1 if options.quick else 3
        for _ in range(harness.rounds_of(options)):
            for name in names:
                with served(name) as url:
                    await_start(name, url, name == _REFUSING)
                    rates[name].append(requests_per_second(url, seconds, name == _REFUSING))
    figures = {name: figures_of(rates, name) for name in names}
    for title, subjects in (
        ("FastAPI under uvicorn", SUBJECTS | ON_REDIS),
        ("Flask under gunicorn", FLASK_SUBJECTS),
    ):
        lines = [
            [name, f"{f['requests_per_second']:,.0f}", f"{f['share']:.2f}", f"{f['added_us']:.1f}"]
            for name, f in figures.items()
            if name in subjects
        ]
        harness.print_table(title, ["", "req/s", "share", "added us"], lines)
    bounds = {
        "tidegate middleware": 0.95,
        "tidegate @rate_limit": 0.93,
        "tidegate Depends": 0.90,
        _REFUSING: 2.5,
        "tidegate middleware, Redis": 0.75,
        "tidegate @rate_limit, Redis": 0.75,
        "Flask, tidegate extension": 0.93,
    }
    targets = [
        harness.Target(name, figures[name]["share"], bound)
        for name, bound in bounds.items()
        if name in figures
    ]
    by_rules, by_one = (rates.get(f"tidegate middleware{rest}") for rest in (", rules", ""))
    if by_rules and by_one:
        share = statistics.median(a / b for a, b in zip(by_rules, by_one, strict=True))
        targets.append(harness.Target("tidegate middleware: rules over one limit", share, 0.95))
    for name, (other, most) in BESIDE.items():
        if {name, other} <= rates.keys():
            ratio = statistics.median(b / a for a, b in zip(rates[name], rates[other], strict=True))
            what = f"a request: {name} over {other}"
            targets.append(harness.Target(what, ratio, most, at_least=False))
    targets += added_targets(figures)
    harness.print_targets(targets)
    harness.write_json(options.json, "web", figures)


if __name__ == "__main__":
    main()
