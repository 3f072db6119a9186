"""The route of Django that answers a request, as an attribute for rules."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from django.urls import Resolver404, resolve

from tidegate.web.request_access import path_of

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["route_path"]

_PARAMETER = re.compile(r"<(?:[^<>:]+:)?(\w+)>")


def route_path(request: HttpRequest) -> str:
    """Returns the route that answers a request, such as ``/items/{id}``, as an attribute for rules.

    ::

        TIDEGATE = {"RULES": rules, "ATTRIBUTES": {"endpoint": "tidegate.django:route_path"}}

    Django finds the route itself, once for this function and once to answer, so a rule for
    ``/items/{id}`` applies wherever ``path("items/<int:id>", ...)`` answers, however the path is
    spelled. A regular expression of re_path() is written with its groups as ``{name}``, or
    ``{var}`` where they have none. Returns the path if no route matches. Thread-safe.
    """
    match = request.resolver_match
    if match is None:
        try:
            match = resolve(request.path_info, getattr(request, "urlconf", None))
        except Resolver404:
            path = path_of(request)
            return path if isinstance(path, str) else "/"
    return _as_pattern(match.route)


@functools.lru_cache(maxsize=4096)  # a project has as many routes as it has, whatever clients send
def _as_pattern(route: str) -> str:
    if "^" in route or "$" in route or "(" in route:  # of re_path()
        from django.contrib.admindocs import utils  # imports docutils where it is installed

        route = utils.remove_non_capturing_groups(route)
        route = utils.replace_named_groups(route)
        route = utils.replace_unnamed_groups(route)
        route = utils.replace_metacharacters(route)
    return "/" + _PARAMETER.sub(r"{\1}", route).lstrip("/")
