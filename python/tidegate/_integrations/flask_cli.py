"""`flask tidegate`: lists the limits of an application's routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

import click
import flask
from flask.cli import AppGroup, with_appcontext

if TYPE_CHECKING:
    from tidegate._web.request_limiter import RequestLimiter

__all__ = ["add_command", "blueprints_of"]

# The limiters of an endpoint for a method, each with the name of what it limits.
LimitsOf = Callable[[str, str], "list[tuple[str, RequestLimiter]]"]

_NAME = "tidegate"


def add_command(app: flask.Flask, limits_of: LimitsOf) -> None:
    """Gives `app` the command, which lists what each of its extensions limits."""
    sources: list[LimitsOf] = app.extensions.setdefault("tidegate.limits", [])
    sources.append(limits_of)
    if len(sources) > 1:
        return
    group = AppGroup(_NAME, help="Rate limits of this application.")

    @group.command("limits")
    @with_appcontext
    def limits() -> None:
        """Lists the routes and the limits of their requests."""
        for line in _lines(flask.current_app, sources):
            click.echo(line)

    app.cli.add_command(group)


def blueprints_of(endpoint: str | None) -> list[str]:
    """The blueprints of an endpoint by name, the innermost first."""
    name = "" if endpoint is None else endpoint
    found = []
    while "." in name:
        name = name.rpartition(".")[0]
        found.append(name)
    return found


def _lines(app: flask.Flask, sources: list[LimitsOf]) -> Iterator[str]:
    rows = []
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: rule.rule):
        by_limits: dict[str, list[str]] = {}
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            told = [_told(*one) for source in sources for one in source(rule.endpoint, method)]
            by_limits.setdefault("; ".join(told) or "no limit", []).append(method)
        for limits, methods in by_limits.items():
            rows.append((",".join(methods), rule.rule, rule.endpoint, limits))
    widths = [max(map(len, column)) for column in list(zip(*rows))[:3]]
    for row in rows:
        columns = [text.ljust(width) for text, width in zip(row, widths)]
        yield "  ".join([*columns, row[3]])


def _told(what: str, limiter: RequestLimiter) -> str:
    """`5/minute (login)`, or the name of the function that chooses."""
    if limiter.limiter is not None:
        limits = ", ".join(map(str, limiter.limiter.limits))
    else:
        assert limiter.dynamic_limit is not None
        chooses: Any = limiter.dynamic_limit.function
        limits = f"chosen by {getattr(chooses, '__qualname__', repr(chooses))}"
    return f"{limits} ({what})"
