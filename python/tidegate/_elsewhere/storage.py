"""Storages, where newcomers look for them."""

raise ModuleNotFoundError(
    "there is no tidegate.storage; expected `tidegate.Limiter('5/minute', "
    "storage='redis://localhost')`, 'shm://NAME' or 'memory://'",
    name="tidegate.storage",
)
