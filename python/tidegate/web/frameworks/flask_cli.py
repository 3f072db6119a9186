"""The command `flask tidegate`, which lists the limits of an application's routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import click
import flask
from flask.cli import AppGroup, with_appcontext

from tidegate.web.frameworks.fastapi_openapi import MARK as RATE_LIMIT
from tidegate.web.frameworks.flask_views import marks_of

if TYPE_CHECKING:
    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.web.request_limiter import RequestLimiter

__all__ = ["add_command", "blueprints_of"]

_NAME = "tidegate"


class Limits(Protocol):
    """The limits of one extension in an application."""

    def limits_of(self, endpoint: str | None, method: str) -> list[tuple[str, RequestLimiter]]:
        """Returns the limiters of an endpoint for a method, each with the name of its scope."""

    def rules_for(self, endpoint: str | None) -> RuleLimiter | None:
        """Returns the limiter with rules that requests for an endpoint meet."""


def add_command(app: flask.Flask, limited: Limits) -> None:
    """Adds the command to `app`; it lists what each of the application's extensions limits."""
    sources: list[Limits] = app.extensions.setdefault("tidegate.limits", [])
    sources.append(limited)
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
    """Returns the names of an endpoint's blueprints, the innermost first."""
    name = "" if endpoint is None else endpoint
    found = []
    while "." in name:
        name = name.rpartition(".")[0]
        found.append(name)
    return found


def _lines(app: flask.Flask, sources: list[Limits]) -> Iterator[str]:
    rows = []
    for route in sorted(app.url_map.iter_rules(), key=lambda route: route.rule):
        by_limits: dict[str, list[str]] = {}
        for method in sorted((route.methods or set()) - {"HEAD"}):
            told = []
            for source in sources:
                if method != "OPTIONS" and source.rules_for(route.endpoint) is not None:
                    told.append("rules")
                told += [_told(*one) for one in source.limits_of(route.endpoint, method)]
            view = app.view_functions.get(route.endpoint)
            is_automatic = method == "OPTIONS" and getattr(route, "provide_automatic_options", True)
            for mark in () if is_automatic else marks_of(view, method, RATE_LIMIT):
                told += [_told("@rate_limit", one) for one in mark.limiters if one.charges(method)]
            if method == "OPTIONS" and not told:
                continue
            by_limits.setdefault("; ".join(told) or "no limit", []).append(method)
        for limits, methods in by_limits.items():
            rows.append((",".join(methods), route.rule, route.endpoint, limits))
    yield from _aligned(rows)
    for source in sources:
        limiter = source.rules_for(None)
        if limiter is not None:
            yield f"\nrules of {limiter.rules.source}:"
            yield from _aligned([_row_of(rule) for rule in _rules_of(limiter)])


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in list(zip(*rows))[:-1]]
    for row in rows:
        columns = [text.ljust(width) for text, width in zip(row, widths)]
        yield "  ".join([*columns, row[-1]])


def _rules_of(limiter: RuleLimiter) -> list[Any]:
    rules = [rule for rule in limiter.rules.rules if rule.enabled]
    default = limiter.rules.default
    return rules if default is None else [*rules, default]


def _row_of(rule: Any) -> tuple[str, ...]:
    """Returns the id of a rule, what it counts by, where it applies, and its limits."""
    where = [*getattr(rule, "methods", ()), *getattr(rule, "endpoints", ())]
    limits = rule.limits
    if isinstance(limits, dict):
        told = "; ".join(f"{tier}: {_joined(each)}" for tier, each in limits.items())
    else:
        told = _joined(limits)
    by = f"by {'+'.join(rule.by)}" if rule.by else "in all"
    return rule.id, by, " ".join(where) or "everywhere", told + " (shadow)" * rule.shadow


def _joined(limits: Any) -> str:
    return limits if isinstance(limits, str) else ", ".join(limits)


def _told(what: str, limiter: RequestLimiter) -> str:
    """Returns `5/minute (login)`, or the name of the function that chooses the limit."""
    if limiter.limiter is not None:
        limits = ", ".join(map(str, limiter.limiter.limits))
    else:
        assert limiter.dynamic_limit is not None
        chooses: Any = limiter.dynamic_limit.function
        limits = f"chosen by {getattr(chooses, '__qualname__', repr(chooses))}"
    return f"{limits} ({what})"
