"""The components of the package: the limiter, and what a build may leave out."""

from __future__ import annotations

from importlib.util import find_spec

from tidegate._errors import ConfigurationError

__all__ = ["built", "missing"]

_EXTENSIONS = {"tuning": "tidegate.tuning._logs", "server": "tidegate.server._native"}


def built() -> list[str]:
    """Returns the components that this installation has."""
    return ["limiter", *(name for name, module in _EXTENSIONS.items() if find_spec(module))]


def missing(component: str, error: ImportError) -> ConfigurationError:
    """Returns the error to raise where a component's extension cannot be imported."""
    system = ", for which Linux is needed" if component == "server" else ""
    return ConfigurationError(
        f"this installation has no {component} component ({error}); expected a build with it"
        f"{system}: `pip install .` in a clone builds every component"
    )
