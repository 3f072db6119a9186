"""Draws charts as SVG, on the server.

A drawing stretches with the page, so it has no text: the page writes the axes around it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Chart", "bar_chart", "line_chart", "step_chart"]

WIDTH = 600
HEIGHT = 160


class Chart(NamedTuple):
    """A drawing, and the values that are written beside it."""

    svg: Markup
    top: int
    """The number at the top of the axis."""
    is_empty: bool


def line_chart(allowed: Sequence[int], refused: Sequence[int], label: str, length: int) -> Chart:
    """Draws allowed requests as a line and refused ones as a filled area.

    The values are the latest of `length`; before them, nothing is drawn.
    """
    top = _round_top(max([*allowed, *refused], default=0))
    points = [_points(values, top, length) for values in (allowed, refused)]
    body = Markup(
        '<polygon class="refused-area" points="{first},{h} {refused} {w},{h}"/>'
        '<polyline class="refused-line" points="{refused}"/>'
        '<polyline class="allowed-line" points="{allowed}"/>'
    ).format(
        h=HEIGHT,
        w=WIDTH,
        first=points[1].partition(",")[0] or WIDTH,
        allowed=points[0],
        refused=points[1],
    )
    return Chart(_svg(body, label), top, not any(allowed) and not any(refused))


def step_chart(lines: Mapping[str, Sequence[float | None]], label: str, length: int) -> Chart:
    """Draws lines of values that last from one place to the next, each of the class of its name.

    The values are the latest of `length`; where there is none, nothing is drawn.
    """
    known = [value for values in lines.values() for value in values if value is not None]
    top = _round_top(math.ceil(max(known, default=0)))
    body = Markup("").join(
        Markup('<path class="{}" d="{}"/>').format(name, _steps(values, top, length))
        for name, values in lines.items()
    )
    return Chart(_svg(body, label), top, not known)


def _steps(values: Sequence[float | None], top: int, length: int) -> str:
    parts = []
    before = None
    for i, value in enumerate(values, length - len(values)):
        if value is not None:
            begin, end, y = (
                WIDTH * i / length,
                WIDTH * (i + 1) / length,
                HEIGHT - HEIGHT * value / top,
            )
            parts.append(f"V{y:.1f}" if before is not None else f"M{begin:.1f},{y:.1f}")
            parts.append(f"H{end:.1f}")
        before = value
    return "".join(parts)


def bar_chart(allowed: Sequence[int], refused: Sequence[int], label: str) -> Chart:
    """Draws a bar for each pair, with refused requests below allowed ones."""
    top = _round_top(max((a + b for a, b in zip(allowed, refused)), default=0))
    step = WIDTH / max(1, len(allowed))
    parts = []
    for i, (good, bad) in enumerate(zip(allowed, refused)):
        low = HEIGHT * bad / top
        high = HEIGHT * good / top
        x, width = i * step + step * 0.1, step * 0.8
        for kind, y, height in (
            ("refused-bar", HEIGHT - low, low),
            ("allowed-bar", HEIGHT - low - high, high),
        ):
            if height:
                parts.append(
                    Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                        kind, f"{x:.2f}", f"{y:.2f}", f"{width:.2f}", f"{height:.2f}"
                    )
                )
    return Chart(_svg(Markup("").join(parts), label), top, not parts)


def _svg(body: Markup, label: str) -> Markup:
    return Markup(
        '<svg role="img" aria-label="{label}" viewBox="0 0 {w} {h}" preserveAspectRatio="none">'
        '<path class="grid" d="M0,0.5H{w}M0,{half}H{w}M0,{base}H{w}"/>{body}</svg>'
    ).format(label=label, w=WIDTH, h=HEIGHT, half=HEIGHT / 2, base=HEIGHT - 0.5, body=body)


def _points(values: Sequence[int], top: int, length: int) -> str:
    last = max(1, length - 1)
    return " ".join(
        f"{WIDTH * i / last:.1f},{HEIGHT - HEIGHT * value / top:.1f}"
        for i, value in enumerate(values, length - len(values))
    )


def _round_top(most: int) -> int:
    """Returns the least of 2, 4, 10, 20, 40, 100, … that is at least `most`. Its half is whole."""
    scale = 1
    while True:
        for step in (2, 4, 10):
            if most <= step * scale:
                return step * scale
        scale *= 10
