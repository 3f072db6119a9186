"""What Starlette knows of a request: its route, as an attribute for rules.

::

    app.add_middleware(RateLimitMiddleware, rules=rules, attributes={"endpoint": route_path})

The middleware is that of tidegate.asgi, and the decorator tidegate.rate_limit.
"""

from __future__ import annotations

from tidegate.web.frameworks.starlette_routes import route_path

__all__ = ["route_path"]
