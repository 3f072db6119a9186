"""Storages, where newcomers look for them."""

raise ModuleNotFoundError(
    "there is no tidegate.redis; expected `tidegate.Limiter('5/minute', storage='redis://localhost')`",
    name="tidegate.redis",
)
