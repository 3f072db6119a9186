"""The sliders show the figures of a replay of their limit."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from tidegate import tuning

pytest.importorskip("ipywidgets")
pytest.importorskip("matplotlib")

from tidegate.tuning import traffic, widgets


def explorer(**options: Any) -> tuple[widgets.Explorer, traffic.Traffic]:
    log = traffic.zipf(5, 600, clients=30, seed=1)
    return widgets.what_if(log.keys, log.times, **options), log


def refused(limit: str | tg.Limit, log: traffic.Traffic) -> int:
    return tuning.replay(limit, log.keys, log.times).refused


def test_a_moved_slider_shows_what_the_new_limit_refuses() -> None:
    shown, log = explorer()
    before = bytes(shown._image.value)
    assert before.startswith(b"\x89PNG")
    shown.count.value = 7
    assert shown.effect.refused == refused("7/minute", log) > 0
    assert f"7/minute would have refused {shown.effect.refused:,} of" in shown._sentence.value
    assert bytes(shown._image.value) != before
    assert shown._marks.get_xdata() == [7, 7]
    assert shown._marks.get_ydata().tolist() == [
        shown.effect.refused_share,
        shown.effect.clients_touched_share,
    ]


def test_a_bucket_has_its_own_burst_slider() -> None:
    shown, log = explorer()
    shown.count.value = 7
    assert shown.burst.disabled
    shown.same.value = False
    shown.burst.value = 3
    assert not shown.burst.disabled
    assert str(shown.effect.limit) == "7/minute burst 3"
    assert shown.effect.refused == refused("7/minute burst 3", log)


def test_windows_have_no_burst_slider() -> None:
    shown, log = explorer(algorithm="fixed-window", period="hour")
    shown.count.value = 20
    assert shown.effect.refused == refused(tg.Limit("20/hour", algorithm="fixed-window"), log)
    assert shown.burst not in shown.widget.children[0].children


def test_an_explorer_is_displayed_in_notebooks() -> None:
    shown, _ = explorer()
    assert "application/vnd.jupyter.widget-view+json" in shown._repr_mimebundle_()
    assert "would have refused" in repr(shown)


def test_an_explorer_without_a_what_if_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"expected a tuning\.WhatIf"):
        widgets.Explorer([1, 2])  # type: ignore[arg-type]
