"""The decorator, where newcomers look for it."""

raise ModuleNotFoundError(
    "there is no tidegate.decorators; expected `from tidegate import rate_limit`",
    name="tidegate.decorators",
)
