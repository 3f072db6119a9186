"""The components of the package: the limiter, and what a build may leave out."""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec

from tidegate.limiter.errors import ConfigurationError

__all__ = ["built", "missing"]

_EXTENSIONS = {"tuning": "_logs", "server": "_native"}


def built() -> list[str]:
    """Returns the components that this installation has."""
    return ["limiter", *filter(_has_extension, _EXTENSIONS)]


def _has_extension(component: str) -> bool:
    """Looks for it without importing the component's package."""
    package = find_spec(f"tidegate.{component}")
    assert package is not None
    found = PathFinder.find_spec(_EXTENSIONS[component], package.submodule_search_locations)
    return found is not None


def missing(component: str, error: ImportError) -> ConfigurationError:
    """Returns the error to raise where a component's extension cannot be imported."""
    system = ", for which Linux is needed" if component == "server" else ""
    return ConfigurationError(
        f"this installation has no {component} component ({error}); expected a build with it"
        f"{system}: `pip install .` in a clone builds every component"
    )
