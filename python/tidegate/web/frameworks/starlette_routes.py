"""The route of Starlette or FastAPI that answers a request, as an attribute for rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidegate.web.request_access import path_of, source_of
from tidegate.web.router_paths import root_reader_of

__all__ = ["route_path"]

# starlette.routing.Match
_PARTIAL, _FULL = 1, 2
_CONVERTOR = re.compile(r"{(\w+):\w+}")


def route_path(request: Any) -> str:
    """Returns the path of the route that answers a request, such as ``/items/{id}``.

    ::

        RateLimitMiddleware(app, rules=rules, attributes={"endpoint": route_path})

    Starlette and FastAPI find the route themselves, once for this function and once to answer, so
    a rule for ``/items/{id}`` applies wherever that route answers, however the path is spelled.
    Routes of mounted applications have the path of the mount before theirs; convertors, as in
    ``{id:int}``, are left out. `request` is an ASGI scope or a request of Starlette. Returns the
    path inside the application if no route matches, for files and applications of other
    frameworks that are mounted, and for a middleware around the application
    (``RateLimitMiddleware(app)``), which the application is not known to: use
    ``app.add_middleware()``. Thread-safe.
    """
    scope = dict(source_of(request))
    routes = getattr(scope.get("app"), "routes", None)
    found = None if routes is None else _path_in(routes, scope)
    if found is None:
        found = _text_of((root_reader_of(scope.get("app")) or path_of)(scope))
    return found


def _path_in(routes: Any, scope: dict[str, Any]) -> str | None:
    """Returns the path of the first of `routes` that answers, as a router chooses it."""
    partial: Any = None
    # FastAPI notes in here which router it looks at.
    tried = {**scope, "fastapi": dict(scope.get("fastapi") or {})}
    for route in routes:
        match, child = route.matches(tried)
        if match.value == _FULL:
            return _path_of_route(route, {**scope, **child})
        if match.value == _PARTIAL and partial is None:
            partial = route, {**scope, **child}
    return None if partial is None else _path_of_route(*partial)


def _path_of_route(route: Any, scope: dict[str, Any]) -> str | None:
    if hasattr(route, "original_router"):
        return _path_in_router(route, scope)
    inner = getattr(route, "routes", None)
    if inner is None:
        return getattr(route, "path_format", None) or _without_convertors(route)
    inside = _path_in(inner, scope)
    return None if inside is None else _without_convertors(route) + inside


def _path_in_router(router: Any, scope: dict[str, Any]) -> str | None:
    """Returns the path of a route of a router that newer versions of FastAPI include as it is."""
    find = getattr(router, "_match", None)
    if find is None:
        return None
    scope = {**scope, "fastapi": dict(scope.get("fastapi") or {})}
    _, child, route, context = find(scope)
    if route is None:
        return None
    # The route that was included does not know the prefix; what FastAPI made of it does.
    known = getattr(context, "path_format", None)
    return known or _path_of_route(route, {**scope, **_plain(child)})


def _plain(child: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in child.items() if name != "fastapi"}


def _without_convertors(route: Any) -> str:
    return _CONVERTOR.sub(r"{\1}", getattr(route, "path", ""))


def _text_of(path: str | bytes | None) -> str:
    return path.decode("latin-1") if isinstance(path, bytes) else path or "/"
