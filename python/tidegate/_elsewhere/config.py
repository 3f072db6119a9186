"""The set-up, where newcomers look for it."""

raise ModuleNotFoundError(
    "there is no tidegate.config; expected `from tidegate import configure`",
    name="tidegate.config",
)
