"""Exceptions, where newcomers look for them."""

raise ModuleNotFoundError(
    "there is no tidegate.exceptions; expected `from tidegate import RateLimitExceeded`",
    name="tidegate.exceptions",
)
