"""Exceptions, where newcomers look for them."""

raise ModuleNotFoundError(
    "there is no tidegate.errors; expected `from tidegate import RateLimitExceeded`",
    name="tidegate.errors",
)
