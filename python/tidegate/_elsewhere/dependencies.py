"""FastAPI's dependency, where newcomers look for it."""

raise ModuleNotFoundError(
    "there is no tidegate.dependencies; expected `from tidegate.fastapi import RateLimit`",
    name="tidegate.dependencies",
)
