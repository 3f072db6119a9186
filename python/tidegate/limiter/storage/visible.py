"""Whether another process's storage can be looked at."""

from __future__ import annotations

import os

from tidegate._core import ShmStore
from tidegate.limiter.errors import ConfigurationError

__all__ = ["check_visible"]


def check_visible(storage: str) -> None:
    """Raises ConfigurationError for a storage that this process cannot see, or would create."""
    scheme, _, rest = storage.partition("://")
    if scheme == "shm":
        name = rest.partition("?")[0]
        # Opening it would create it.
        if not os.path.lexists(ShmStore.path_of(name)):
            raise ConfigurationError(
                f"there is no shared memory {name!r}; expected one that `tidegate shm list` "
                "names, or an absolute path"
            )
    elif scheme == "memory":
        raise ConfigurationError(
            "the storage is memory://, which no other process can see; expected shm:// or redis://"
        )
