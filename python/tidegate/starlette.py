"""What Starlette knows of a request: its route, as an attribute for rules.

::

    app.add_middleware(RateLimitMiddleware, rules=rules, attributes={"endpoint": route_path})

The middleware is that of tidegate.asgi, and the decorator tidegate.rate_limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.limiter.errors import missing
from tidegate.web.frameworks.starlette_routes import route_path

__all__ = ["route_path"]

# Type checkers are to find names that do not exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        elsewhere = {
            "RateLimitMiddleware": "from tidegate.asgi import RateLimitMiddleware",
            "rate_limit": "from tidegate import rate_limit",
        }
        raise missing(__name__, name, elsewhere)
