"""Limiters of asyncio, where newcomers look for them."""

raise ModuleNotFoundError(
    "there is no tidegate.asyncio; expected `from tidegate import Limiter`, whose hit_async() is "
    "awaited",
    name="tidegate.asyncio",
)
