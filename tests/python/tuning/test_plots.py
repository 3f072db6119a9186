"""Pictures draw the values of their frames, and never distinguish anything by colour alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tidegate as tg
from tidegate import tuning
from tidegate.tuning import plots
from tidegate.tuning.pictures.style import percent, span

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

SECOND = 10**9
NOON = 1_772_366_400 * SECOND  # of 1 March 2026, a Sunday


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def traffic() -> tuple[Any, Any]:
    """Client 0 sends thirty requests in a minute; twenty others send one each in five minutes."""
    seconds = np.concatenate([np.arange(30) * 2, np.arange(20) * 15])
    clients = np.concatenate([np.zeros(30, int), np.arange(1, 21)])
    order = np.argsort(seconds, kind="stable")
    return clients[order], NOON + seconds[order] * SECOND


def replayed(limit: str = "10/minute") -> tuning.Replay:
    keys, times = traffic()
    return tuning.replay(limit, keys, times)


def texts(ax: Any) -> list[str]:
    legend = ax.get_legend()
    return [text.get_text() for text in legend.get_texts()]


def stairs(ax: Any) -> list[Any]:
    from matplotlib.patches import StepPatch

    return [patch.get_data() for patch in ax.patches if isinstance(patch, StepPatch)]


def test_over_time_draws_its_frame() -> None:
    result = replayed()
    frame = plots.over_time_frame(result, every=60)
    ax = plots.over_time(result, every=60)
    allowed, refused = stairs(ax)
    assert allowed.values.tolist() == frame["allowed"].tolist()
    assert (refused.values - refused.baseline).tolist() == frame["refused"].tolist()
    assert frame["refused"].sum() == result.refused == 11
    assert frame["allowed"].sum() + frame["refused"].sum() == len(result)
    assert frame["time"][0] == np.datetime64("2026-03-01T12:00:00")
    assert texts(ax) == ["allowed", "refused"]
    assert ax.get_ylabel() == "requests in 1 min"
    assert ax.get_xlabel() == "time (UTC)"
    hatches = [patch.get_hatch() for patch in ax.patches]
    assert len(set(hatches)) == 2, "the bars differ by colour alone"


@pytest.mark.parametrize(
    ("length", "width"), [(0.001, 1e-5), (1, 0.01), (140, 1), (86_400, 600), (10**8, 1e8 / 149.2)]
)
def test_the_width_of_spans_follows_the_length_of_the_log(length: float, width: float) -> None:
    times = np.array([NOON, NOON + round(length * SECOND)])
    frame = plots.over_time_frame(tuning.replay("1/day", np.array([1, 1]), times))
    assert len(frame) <= 151
    assert frame["seconds"][0] == pytest.approx(width, rel=0.02)
    assert frame["allowed"].sum() + frame["refused"].sum() == 2


def test_peaks_draw_clients_percentiles_and_the_limit() -> None:
    keys, times = traffic()
    ax = plots.peaks(keys, times, "minute", "10/minute")
    frame = plots.peaks_frame(keys, times, "minute")
    (drawn,) = stairs(ax)
    assert drawn.values.tolist() == frame["clients"].tolist()
    assert frame["clients"].sum() == 21
    lines = {line.get_label(): line.get_xdata()[0] for line in ax.lines}
    least = tuning.least_limits(keys, times, "minute").max()
    assert lines == {
        "p50: 1": 1,
        "p90: 1": 1,
        f"p99: {least}": least,
        "limit 10: refuses 1 (4.76 %)": 10,
    }
    assert len({line.get_linestyle() for line in ax.lines}) == 4


def test_peaks_do_not_count_refusals_for_a_burst_of_its_own() -> None:
    keys, times = traffic()
    ax = plots.peaks(keys, times, "minute", "10/minute burst 20")
    assert ax.lines[-1].get_label() == "limit 10/minute burst 20"
    ax = plots.peaks(keys, times, 60, 10, algorithm="fixed-window")
    assert "limit 10: refuses" in ax.lines[-1].get_label()


def test_peaks_of_heavy_tails_are_on_logarithmic_axes() -> None:
    keys = np.repeat(np.arange(301), [500, *[1] * 300])
    ax = plots.peaks(keys, np.full(len(keys), NOON), 60)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    frame = plots.peaks_frame(keys, np.full(len(keys), NOON), 60)
    assert frame["clients"].sum() == 301
    assert (frame["peak_from"][1:] == frame["peak_to"][:-1] + 1).all()
    assert frame["peak_to"][-1] == 500


def test_what_if_draws_both_shares() -> None:
    keys, times = traffic()
    frame = tuning.what_if(keys, times, [5, 10, 20, 30])
    ax = plots.what_if(frame, limit=10)
    drawn = {line.get_label(): line for line in ax.lines}
    for words, column in (
        ("requests refused", "refused_share"),
        ("clients refused at least once", "clients_touched_share"),
    ):
        assert drawn[words].get_xdata().tolist() == [5, 10, 20, 30]
        assert drawn[words].get_ydata().tolist() == frame[column].tolist()
    assert drawn["limit 10"].get_xdata()[0] == 10
    assert len({(line.get_linestyle(), line.get_marker()) for line in ax.lines}) == 3
    assert ax.get_ylim()[0] == 0


def test_what_if_accepts_a_what_if_object_and_bursts() -> None:
    keys, times = traffic()
    what = tuning.WhatIf(keys, times)
    ax = plots.what_if(what, limit="7/minute")
    assert ax.lines[0].get_xdata().tolist() == what.curve()["count"].tolist()
    assert "limit 7" in texts(ax)
    ax = plots.what_if(what.curve([5, 10], bursts=[1, 2]))
    assert texts(ax)[::2] == ["requests refused, burst 1", "requests refused, burst 2"]


def test_what_if_draws_a_limit_that_refuses_nothing() -> None:
    keys, times = traffic()
    ax = plots.what_if(tuning.what_if(keys, times, [1000]))
    assert ax.lines[0].get_ydata().tolist() == [0]


def test_top_clients_draw_the_most_refused() -> None:
    result = replayed()
    ax = plots.top_clients(result, most=3)
    frame = plots.top_clients_frame(result, most=3)
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [*frame["allowed"].tolist(), *frame["refused"].tolist()]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        str(name) for name in frame["key"]
    ]
    assert [text.get_text() for text in ax.texts] == ["36.7 %", "0 %", "0 %"]


def test_names_are_not_drawn_as_formulas() -> None:
    result = tuning.replay("1/minute", ["$x^2$" + "y" * 100], [NOON])
    ax = plots.top_clients(result)
    ax.figure.canvas.draw()
    assert ax.get_yticklabels()[0].get_text().startswith(r"\$x^2\$")


def test_hours_draw_means_over_the_hours_in_the_log() -> None:
    hour = 3600 * SECOND
    # Two Sundays have 10 and 20 requests at noon; the week between them has none.
    times = np.concatenate([np.full(10, NOON), np.full(20, NOON + 168 * hour)])
    frame = plots.hours_frame(times)
    sunday = 6 * 24 + 12
    assert frame["weekday"][sunday] == "Sun"
    assert (frame["hours"][sunday], frame["mean"][sunday]) == (2, 15.0)
    assert (frame["hours"][sunday - 1], frame["mean"][sunday - 1]) == (1, 0.0)
    assert frame["requests"].sum() == 30
    ax = plots.hours(times)
    drawn = ax.collections[0].get_array()
    assert np.asarray(drawn).ravel().tolist() == frame["mean"].tolist()


def test_hours_respect_the_zone_and_mark_hours_not_in_the_log() -> None:
    frame = plots.hours_frame([NOON], zone="Asia/Kolkata")
    (at,) = np.flatnonzero(frame["requests"])
    assert (frame["weekday"][at], frame["hour"][at]) == ("Sun", 17)
    assert np.isnan(frame["mean"]).sum() == 167
    assert "not in the log" in plots.hours([NOON]).get_title("left")


def test_the_drawn_bucket_drains_and_refills() -> None:
    seconds = np.array([0, 0, 0, 30, 200])
    times = NOON + seconds * SECOND
    frame = plots.bucket_frame("2/minute", times)
    assert frame["allowed"].tolist() == [True, True, False, True, True]
    assert frame["before"].tolist() == [2, 1, 0, 1, 2]
    assert frame["after"].tolist() == [1, 0, 0, 0, 1]
    ax = plots.bucket("2/minute", times)
    line, allowed, refused, burst = ax.lines
    corners = list(zip(line.get_xdata().tolist(), line.get_ydata().tolist()))
    assert (30.0, 1.0) in corners
    assert (90.0, 2.0) in corners, "the bucket is full again at 90 s"
    assert corners[-1] == (200.0, 1.0)
    assert allowed.get_ydata().tolist() == [1, 0, 0, 1]
    assert refused.get_ydata().tolist() == [0]
    assert burst.get_ydata()[0] == 2
    assert texts(ax) == ["allowed (4)", "refused (1)", "burst 2"]


def test_a_bucket_sorts_costs_with_their_times() -> None:
    times = [NOON + 10 * SECOND, NOON]
    frame = plots.bucket_frame(tg.Limit("60/minute burst 10"), times, [3, 8])
    assert frame["cost"].tolist() == [8, 3]
    assert frame["after"].tolist() == [2, 7]


@pytest.mark.parametrize("what", ["refused", "bursts", "rate"])
def test_algorithms_draw_the_comparison(what: str) -> None:
    keys, times = traffic()
    comparison = tuning.compare("10/minute", keys, times)
    ax = plots.algorithms(comparison, what=what)
    columns = {
        "refused": ["refused_share", "clients_touched_share", "ordinary_touched_share"],
        "bursts": ["worst_burst_client"],
        "rate": ["peak_rate"],
    }[what]
    expected = [float(value) for name in columns for value in comparison[name]]
    assert [bar.get_width() for bar in ax.patches] == expected
    assert [label.get_text() for label in ax.get_yticklabels()] == list(comparison["name"])
    assert plots.algorithms_frame(comparison) is comparison


def test_plotly_draws_the_same_values() -> None:
    pytest.importorskip("plotly")
    result = replayed()
    figure = plots.over_time(result, every=60, backend="plotly")
    frame = plots.over_time_frame(result, 60)
    assert [list(bar.y) for bar in figure.data] == [
        frame["allowed"].tolist(),
        frame["refused"].tolist(),
    ]
    keys, times = traffic()
    table = tuning.what_if(keys, times, [5, 10])
    figure = plots.what_if(table, limit=7, backend="plotly")
    assert list(figure.data[0].y) == table["refused_share"].tolist()
    assert list(figure.data[1].x) == [5, 10]
    (line,), (words,) = figure.layout.shapes, figure.layout.annotations
    assert (line.x0, words.x) == (7, pytest.approx(np.log10(7))), (
        "plotly takes a line's value and a text's logarithm"
    )


def test_a_given_ax_is_drawn_on() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    keys, times = traffic()
    assert plots.peaks(keys, times, ax=ax) is ax
    new = plots.peaks(keys, times)
    assert new.figure.get_size_inches().tolist() == [9, 4]


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: plots.over_time("2/minute"), "expected what replay"),
        (lambda: plots.over_time(replayed(), every=0), "expected seconds"),
        (lambda: plots.over_time(replayed(), every="minute"), "expected seconds"),
        (lambda: plots.over_time(replayed(), every=1e-9), "at most a million"),
        (
            lambda: plots.over_time(replayed(), backend="ggplot"),
            "expected 'matplotlib' or 'plotly'",
        ),
        (lambda: plots.over_time(replayed(), ax=1, backend="plotly"), "expected one of them"),
        (lambda: plots.over_time(tuning.replay("1/s", [], [])), "no requests"),
        (lambda: plots.peaks([], []), "no clients"),
        (lambda: plots.peaks(*traffic(), "minute", "10/hour"), "expected one of that period"),
        (
            lambda: plots.peaks(*traffic(), 60, tg.Limit("9/minute"), algorithm="fixed-window"),
            "expected one of that period and algorithm",
        ),
        (lambda: plots.what_if(replayed()), "what tuning.what_if"),
        (lambda: plots.top_clients(replayed(), most=0), "an int from 1 up"),
        (lambda: plots.hours([]), "no times"),
        (lambda: plots.hours([NOON], zone="Mars"), "expected a name such as"),
        (lambda: plots.bucket(tg.Limit("1/s", algorithm="sliding-log"), [NOON]), "leaky bucket"),
        (lambda: plots.bucket("1/s", []), "no times"),
        (lambda: plots.algorithms(tuning.Frame({})), "expected what tuning.compare"),
        (
            lambda: plots.algorithms(tuning.compare("1/s", *traffic()), what="all"),
            "expected 'refused', 'bursts', 'rate'",
        ),
    ],
)
def test_what_cannot_be_drawn_is_an_error(draw: Any, said: str) -> None:
    with pytest.raises((tg.ConfigurationError, TypeError), match=said):
        draw()


def test_lengths_of_time_and_shares_are_written_in_words() -> None:
    assert [span(each) for each in (90, 60, 0.25, 7200, 86400)] == [
        "1.5 min",
        "1 min",
        "250 ms",
        "2 h",
        "1 d",
    ]
    assert percent(0.00125) == "0.125 %"


def test_an_empty_replay_has_no_top_clients() -> None:
    with pytest.raises(tg.ConfigurationError, match="no requests; expected at least one"):
        plots.top_clients(tuning.replay("1/minute", [], []))


def test_names_that_cannot_be_drawn_are_escaped(tmp_path: Any) -> None:
    names = ["$x^2$", "a\nb", "\ud800", "\x00", "$" * 40, b"\xff"]
    texts_only = [name for name in names if isinstance(name, str)]
    result = tuning.replay("1/minute", texts_only, [NOON] * len(texts_only))
    ax = plots.top_clients(result)
    labels = {label.get_text() for label in ax.get_yticklabels()}
    assert labels == {r"\$x^2\$", r"a\nb", r"\ud800", r"\x00", r"\$" * 29 + "..."}
    ax.figure.savefig(tmp_path / "names.png")


def test_a_log_of_one_instant_is_drawn_as_one_second() -> None:
    ax = plots.over_time(tuning.replay("1/minute", ["a"], [NOON]))
    assert ax.get_ylabel() == "requests in 1 s"
    low, high = ax.get_xlim()
    assert (high - low) * 86_400 == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("backend", ["matplotlib", "plotly"])
def test_each_burst_has_its_own_lines(backend: str) -> None:
    if backend == "plotly":
        pytest.importorskip("plotly")
    table = tuning.what_if(*traffic(), [5, 10, 20], bursts=[5, 10])
    drawn = plots.what_if(table, backend=backend)
    if backend == "plotly":
        lines = [(each.name, list(each.x), each.line.color) for each in drawn.data]
    else:
        lines = [(e.get_label(), list(e.get_xdata()), e.get_color()) for e in drawn.lines]
    assert [(name, counts) for name, counts, _ in lines] == [
        ("requests refused, burst 5", [5, 10, 20]),
        ("clients refused at least once, burst 5", [5, 10, 20]),
        ("requests refused, burst 10", [5, 10, 20]),
        ("clients refused at least once, burst 10", [5, 10, 20]),
    ]
    colours = [colour for _, _, colour in lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]


@pytest.mark.parametrize("width", [8, 12])
def test_no_legend_lies_over_a_title_where_pictures_stand_side_by_side(width: int) -> None:
    from matplotlib import pyplot

    result = replayed()
    keys, times = traffic()
    draw: list[Any] = [
        lambda ax: plots.over_time(result, every=60, ax=ax),
        lambda ax: plots.top_clients(result, ax=ax),
        lambda ax: plots.bucket("10/minute", times[keys == 0], ax=ax),
        lambda ax: plots.algorithms(tuning.compare("10/minute", keys, times), ax=ax),
    ]
    for layout in (None, "constrained"):
        figure, axes = pyplot.subplots(1, 2, figsize=(width, 4), layout=layout)
        for one, other in ((draw[0], draw[1]), (draw[2], draw[3])):
            for ax, make in zip(axes, (one, other)):
                ax.clear()
                make(ax)
            figure.canvas.draw()
            for ax in axes:
                title = ax._left_title
                assert title.get_text()
                legend = ax.get_legend()
                assert not legend.get_window_extent().overlaps(title.get_window_extent())
