"""Pictures drawn with plotly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.optional import needed
from tidegate.tuning.pictures.style import ALLOWED, REFUSED, share_lines

if TYPE_CHECKING:
    from tidegate.tuning.frame import Frame

__all__ = ["is_wanted", "over_time", "what_if"]


# Plotly's names for the markers of matplotlib.
_SYMBOLS = {
    "o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down",
}  # fmt: skip


def is_wanted(backend: str, ax: Any) -> bool:
    """Whether the backend is plotly. Raises ConfigurationError for an unknown backend."""
    if backend not in ("matplotlib", "plotly"):
        raise ConfigurationError(f"the backend is {backend!r}; expected 'matplotlib' or 'plotly'")
    if backend == "plotly" and ax is not None:
        raise ConfigurationError("ax was given with the backend 'plotly'; expected one of them")
    return backend == "plotly"


def over_time(frame: Frame, title: str, y: str) -> Any:
    """Draws allowed and refused requests as stacked bars."""
    graphs = needed("plotly.graph_objects", "the backend 'plotly'")
    figure = graphs.Figure()
    for name, colour, pattern in (("allowed", ALLOWED, ""), ("refused", REFUSED, "/")):
        figure.add_bar(
            x=frame["time"], y=frame[name], name=name, marker={
                "color": colour, "line_width": 0, "pattern_shape": pattern,
            },
        )  # fmt: skip
    return _laid_out(figure, title, "time (UTC)", y, barmode="stack", bargap=0)


def what_if(frame: Frame, chosen: int | None) -> Any:
    """Draws the refused shares by limit, as lines."""
    graphs = needed("plotly.graph_objects", "the backend 'plotly'")
    figure = graphs.Figure()
    for line in share_lines(frame):
        figure.add_scatter(
            x=line.counts, y=[share or None for share in line.shares], name=line.words,
            mode="lines+markers",
            line={"color": line.colour, "dash": "dash" if line.is_dashed else "solid"},
            marker={"symbol": _SYMBOLS[line.marker]}, text=line.limits,
            hovertemplate="%{text}: %{y:.3%}",
        )  # fmt: skip
    if chosen:
        # The template draws shapes without an outline.
        figure.add_vline(
            x=chosen, line_dash="dot", line_width=2, line_color="#404040", opacity=1
        )  # fmt: skip
        # On a logarithmic axis a line lies at its value, and a text at the logarithm of it.
        figure.add_annotation(
            x=math.log10(chosen), y=1, yref="paper", yanchor="top", xanchor="right",
            showarrow=False, text=f"limit {chosen:,} ",
        )  # fmt: skip
    figure.update_xaxes(type="log", dtick="D2")
    # The last tenth of a percent is what a limit is chosen by.
    figure.update_yaxes(type="log", tickformat=".3~%", dtick=1)
    return _laid_out(
        figure, "What a limit refuses", "limit (units in a period)", "share (0 is not drawn)"
    )


def _laid_out(figure: Any, title: str, x: str, y: str, **layout: Any) -> Any:
    return figure.update_layout(
        title=title, xaxis_title=x, yaxis_title=y, width=800, height=420, template="simple_white",
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        **layout,
    )  # fmt: skip
