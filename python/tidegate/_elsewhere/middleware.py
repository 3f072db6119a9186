"""Middleware of each kind of service, where newcomers look for it."""

raise ModuleNotFoundError(
    "there is no tidegate.middleware; expected `from tidegate.asgi import RateLimitMiddleware`, or "
    "of tidegate.wsgi or tidegate.django",
    name="tidegate.middleware",
)
