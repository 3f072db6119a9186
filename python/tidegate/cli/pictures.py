"""The pictures of ``tidegate replay`` and ``tidegate recommend``, as files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.tuning.replay import Replay

__all__ = ["check_path", "save_comparison", "save_recommendation", "save_replay"]

_ENDINGS = (".png", ".svg", ".pdf")


def check_path(path: str | None) -> None:
    """Raises ConfigurationError where no picture could be written, before a log is read."""
    if path is None:
        return
    folder = os.path.dirname(path) or "."
    if not path.endswith(_ENDINGS) or not os.path.isdir(folder):
        raise ConfigurationError(
            f"--plot is {path!r}; expected a name that ends in {', '.join(_ENDINGS)}, in a folder "
            "that exists"
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"{error}; expected `pip install 'tidegate[notebook]'`") from None


def save_replay(result: Replay, path: str) -> None:
    """Requests over time; of one limit the peaks of clients too, else who is refused most."""
    from tidegate.tuning import plots

    axes = _axes(2)
    plots.over_time(result, ax=axes[0])
    limit = result.limits[0]
    if len(result.limits) == 1 and limit.algorithm != "concurrency" and limit.capacity:
        (keys,) = result.keys.values()
        period = _period_of(limit)
        plots.peaks(
            keys, result.times, period, limit, algorithm=limit.algorithm, ax=axes[1]
        )  # fmt: skip
    else:
        plots.top_clients(result, ax=axes[1])
    _save(axes, path)


def save_comparison(comparison: Any, path: str) -> None:
    """Draws who is refused, and what reaches the backend."""
    from tidegate.tuning import plots

    axes = _axes(3)
    for ax, what in zip(axes, ("refused", "bursts", "rate")):
        plots.algorithms(comparison, what=what, ax=ax)
    _save(axes, path)


def save_recommendation(found: Any, keys: Any, times: Any, path: str) -> None:
    """Draws what limits would refuse, and the peaks of clients, with the limit."""
    from tidegate import tuning
    from tidegate.tuning import plots

    axes = _axes(2)
    limit = found.limit
    period = _period_of(limit)
    what = tuning.WhatIf(keys, times, period=period, algorithm=limit.algorithm)
    plots.what_if(what, limit=limit, ax=axes[0])
    plots.peaks(keys, times, period, limit, algorithm=limit.algorithm, ax=axes[1])
    _save(axes, path)


def _period_of(limit: Any) -> str:
    """Returns the period in the words of the limit's text: a month has no number of seconds."""
    text: str = str(limit).partition("/")[2].partition(" burst")[0]
    return text


def _axes(rows: int) -> Any:
    from matplotlib.figure import Figure

    # pyplot is not used, since it would look for a screen.
    return Figure(figsize=(9, 4 * rows), layout="constrained").subplots(rows)


def _save(axes: Any, path: str) -> None:
    try:
        axes[0].figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigurationError(f"the picture cannot be written: {error}") from None
