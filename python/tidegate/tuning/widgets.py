"""Sliders in a notebook: what a limit would refuse, redrawn while it is moved. Needs ipywidgets.

from tidegate.tuning import widgets

widgets.what_if(log["ip"], log.times)
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.limiter.errors import ArgumentTypeError
from tidegate.tuning import plots
from tidegate.tuning.columns import shown
from tidegate.tuning.optional import needed
from tidegate.tuning.pictures import style
from tidegate.tuning.what_if import WhatIf
from tidegate.types import BUCKETS

if TYPE_CHECKING:
    from tidegate.tuning.effect import Effect
    from tidegate.tuning.least import Period
    from tidegate.types import Algorithm

__all__ = ["Explorer", "what_if"]


def what_if(
    keys: Any,
    times: Any,
    costs: Any = None,
    *,
    period: Period = "minute",
    algorithm: Algorithm = "token-bucket",
) -> Explorer:
    """Shows sliders for the count and the burst of a limit, and what it would refuse of a log.

    The arguments are those of tuning.WhatIf, whose answers are exact.
    """
    return Explorer(WhatIf(keys, times, costs, period=period, algorithm=algorithm))


class Explorer:
    """Sliders over a WhatIf: `count`, `burst` (of buckets), a sentence, and the what-if curve.

    `effect` is the effect of the limit that the sliders show.
    """

    effect: Effect

    def __init__(self, what: WhatIf) -> None:
        if not isinstance(what, WhatIf):
            raise ArgumentTypeError(f"the what-if is {shown(what)}; expected a tuning.WhatIf")
        widgets = needed("ipywidgets", "a slider")
        self._what = what
        most = max(int(what.least[-1]), 2)
        start = max(int(what.least[min(int(0.99 * what.clients), what.clients - 1)]), 1)
        self.count = widgets.IntSlider(
            value=start, min=1, max=most, description="limit", continuous_update=False
        )
        self.burst = widgets.IntSlider(
            value=start, min=1, max=most, description="burst", continuous_update=False
        )
        self.same = widgets.Checkbox(value=True, description="a burst of the limit")
        self._sentence = widgets.HTML()
        self._image = widgets.Image(format="png")
        self._draw_curve()
        controls = [self.count]
        if what.algorithm in BUCKETS:
            controls += [self.burst, self.same]
        self.widget = widgets.VBox([widgets.HBox(controls), self._sentence, self._image])
        """The widget, which may be put into any layout."""
        for control in controls:
            control.observe(self._moved, "value")
        self._moved()

    def _draw_curve(self) -> None:
        """The part that stays, once: only two marks move."""
        figure = needed("matplotlib.figure", "a picture").Figure
        self._figure = figure(figsize=style.SIZE, dpi=80, layout="constrained")
        ax = plots.what_if(self._what, ax=self._figure.subplots())
        self._line = ax.axvline(1, color=style.LIMIT, linestyle=":", linewidth=2)
        (self._marks,) = ax.plot(
            [1, 1], [0, 0], linestyle="", marker="*", markersize=14, color=style.LIMIT
        )
        # The layout is known after one drawing, and does not change.
        self._figure.draw_without_rendering()
        self._figure.set_layout_engine("none")

    def _moved(self, _: object = None) -> None:
        count = self.count.value
        is_bucket = self._what.algorithm in BUCKETS
        self.burst.disabled = self.same.value
        burst = self.burst.value if is_bucket and not self.same.value else None
        self.effect = effect = self._what.at(count, burst)
        self._sentence.value = html.escape(_sentence(effect))
        self._line.set_xdata([count, count])
        shares = np.array([effect.refused_share, effect.clients_touched_share])
        self._marks.set_data([count, count], shares)
        self._image.value = self._png()

    def _png(self) -> bytes:
        import io

        file = io.BytesIO()
        self._figure.savefig(file, format="png", pil_kwargs={"compress_level": 1})
        return file.getvalue()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return f"Explorer({_sentence(self.effect)})"


def _sentence(effect: Effect) -> str:
    return (
        f"{effect.limit} would have refused {effect.refused:,} of {effect.requests:,} requests "
        f"({style.percent(effect.refused_share)}) and touched {effect.clients_touched:,} of "
        f"{effect.clients:,} clients ({style.percent(effect.clients_touched_share)})."
    )
