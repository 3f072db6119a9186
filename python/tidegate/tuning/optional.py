"""Imports of optional libraries."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["needed"]

_WITH_EXTRA = dict.fromkeys(["matplotlib", "ipywidgets", "tqdm"], "'tidegate[notebook]'")


def needed(module: str, by: str) -> Any:
    """Imports a library that `by` requires. Raises an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{by} needs {module}, which cannot be imported ({error}); expected it to be "
            f"installed: pip install {_WITH_EXTRA.get(package, package)}"
        ) from error
