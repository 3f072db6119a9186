"""The style of pictures: colours for colour-blind readers, and never colour alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.tuning.optional import needed

if TYPE_CHECKING:
    from tidegate.tuning.frame import Frame

__all__ = [
    "ALLOWED",
    "LIMIT",
    "LINES",
    "REFUSED",
    "SIZE",
    "legend_above",
    "new_axes",
    "percent",
    "share_lines",
    "span",
    "tidied",
    "whole_numbers",
]

# The colours of Okabe and Ito (sky blue, vermilion, black), and the markers of lines.
ALLOWED, REFUSED, LIMIT = "#56B4E9", "#D55E00", "#000000"
LINES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"))
SIZE = (9.0, 4.0)


@dataclass
class ShareLine:
    """A line of what_if()."""

    words: str
    counts: Any
    shares: Any
    limits: list[str]
    colour: str
    marker: str
    is_dashed: bool


def share_lines(frame: Frame) -> list[ShareLine]:
    """Returns the lines of requests refused and clients touched, for each burst.

    The two lines of a burst have the same colour. Bursts that equal the count share one pair.
    """
    counts, bursts = np.asarray(frame["count"]), np.asarray(frame["burst"])
    own = np.array_equal(counts, bursts)
    limits = np.array([str(limit) for limit in frame["limit"]], dtype=object)
    lines = []
    for at, burst in enumerate([None] if own else np.unique(bursts).tolist()):
        rows = np.full(len(counts), True) if burst is None else bursts == burst
        for is_second, (column, words) in enumerate(
            (
                ("refused_share", "requests refused"),
                ("clients_touched_share", "clients refused at least once"),
            )
        ):
            colour, marker = LINES[(is_second if burst is None else at) % len(LINES)]
            lines.append(
                ShareLine(
                    words if burst is None else f"{words}, burst {burst:,}",
                    counts[rows],
                    np.asarray(frame[column])[rows],
                    limits[rows].tolist(),
                    colour,
                    marker,
                    bool(is_second),
                )
            )
    return lines


def new_axes() -> Any:
    """Returns the axes of a new figure that is as wide as a notebook."""
    _, ax = needed("matplotlib.pyplot", "a plot").subplots(figsize=SIZE, layout="constrained")
    return ax


def tidied(ax: Any, title: str, x: str, y: str) -> Any:
    """Labels `ax` and removes distracting lines."""
    heading = ax.set_title(title, loc="left", fontsize=11)
    legend = ax.get_legend()
    # In a narrow picture the title stands above the legend, and beside it in others.
    if legend is not None and legend.get_window_extent().overlaps(heading.get_window_extent()):
        points = legend.get_window_extent().height * 72 / ax.figure.dpi
        ax.set_title(title, loc="left", fontsize=11, pad=points + 8)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, alpha=0.3, linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def legend_above(ax: Any) -> None:
    """Adds a legend above the right end of the picture, where it hides nothing."""
    entries = len(ax.get_legend_handles_labels()[1])
    ax.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=entries, frameon=False, fontsize=9,
        borderaxespad=0.2, columnspacing=1.2, handlelength=1.6,
    )  # fmt: skip


def whole_numbers(axis: Any) -> None:
    """Sets whole numbers as the ticks of counts."""
    axis.set_major_locator(needed("matplotlib.ticker", "a plot").MaxNLocator(integer=True))


def percent(share: float, _: object = None) -> str:
    """Formats a share from 0 to 1 as a percentage."""
    return f"{100 * share:.3g} %"


def span(seconds: float) -> str:
    """Formats a length of time: ``2 min``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"
