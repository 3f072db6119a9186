"""Pictures of replays, of what limits would refuse, and of traffic. They need matplotlib.

    from tidegate import tuning
    from tidegate.tuning import plots

    result = tuning.replay("100/minute", log["ip"], log.times)
    plots.over_time(result)

Each draws on `ax`, or on a new figure as wide as a notebook, and returns the Axes. The table that
is drawn is what the function of the same name and ``_frame`` returns. With ``backend="plotly"``
over_time() and what_if() return a figure of plotly instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.limit import Limit
from tidegate.tuning.frame import Frame
from tidegate.tuning.least import least_limits
from tidegate.tuning.optional import needed
from tidegate.tuning.pictures import interactive, style
from tidegate.tuning.pictures.frames import (
    DAYS,
    bucket_frame,
    hours_frame,
    over_time_frame,
    peaks_frame,
    peaks_table,
    top_clients_frame,
    what_if_frame,
)
from tidegate.tuning.pictures.style import ALLOWED, LIMIT, LINES, REFUSED

if TYPE_CHECKING:
    from tidegate.tuning.least import Period
    from tidegate.tuning.replay import Replay
    from tidegate.types import Algorithm

__all__ = [
    "algorithms",
    "algorithms_frame",
    "bucket",
    "bucket_frame",
    "hours",
    "hours_frame",
    "over_time",
    "over_time_frame",
    "peaks",
    "peaks_frame",
    "top_clients",
    "top_clients_frame",
    "what_if",
    "what_if_frame",
]

_HATCH = "////"
# The columns of a comparison that algorithms() draws, with their words.
_ANSWERS = {
    "refused": (
        "Shares refused",
        "share",
        {
            "refused_share": "requests",
            "clients_touched_share": "clients, at least once",
            "ordinary_touched_share": "ordinary clients, at least once",
        },
    ),
    "bursts": (
        "The worst burst of one client that passes",
        "units in any span of the window",
        {"worst_burst_client": "worst burst of a client"},
    ),
    "rate": (
        "The busiest second after limiting",
        "units a second, of all clients",
        {"peak_rate": "peak rate"},
    ),
}


def over_time(
    result: Replay, *, every: float | None = None, ax: Any = None, backend: str = "matplotlib"
) -> Any:
    """Draws the requests that were allowed and refused, in spans of `every` seconds."""
    table = over_time_frame(result, every)
    frame = _arrays(table)
    title = f"{_limits_of(result)}: {result.refused:,} of {len(result):,} requests refused"
    y = f"requests in {style.span(float(frame['seconds'][0]))}"
    if interactive.is_wanted(backend, ax):
        return interactive.over_time(table, title, y)
    ax = style.new_axes() if ax is None else ax
    dates = needed("matplotlib.dates", "a plot")
    starts = frame["time"]
    width = np.timedelta64(round(float(frame["seconds"][0]) * 1e9), "ns")
    edges = dates.date2num(np.append(starts, starts[-1:] + width))
    allowed, refused = frame["allowed"], frame["refused"]
    ax.stairs(allowed, edges, fill=True, color=ALLOWED, label="allowed")
    ax.stairs(
        allowed + refused, edges, baseline=allowed, fill=True, facecolor=REFUSED,
        edgecolor="white", hatch=_HATCH, linewidth=0, label="refused",
    )  # fmt: skip
    ax.xaxis_date()
    ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(ax.xaxis.get_major_locator()))
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(bottom=0)
    style.whole_numbers(ax.yaxis)
    style.legend_above(ax)
    return style.tidied(ax, title, "time (UTC)", y)


def peaks(
    keys: Any,
    times: Any,
    period: Period = "minute",
    limit: str | int | Limit | None = None,
    *,
    costs: Any = None,
    algorithm: Algorithm = "token-bucket",
    ax: Any = None,
) -> Any:
    """Draws how many clients have which peak, with p50, p90, p99 and `limit`.

    The peak of a client is the least count in `period` that would have refused it nothing.
    """
    least = least_limits(keys, times, period, costs, algorithm=algorithm)
    frame = _arrays(peaks_table(least))
    least = least[least > 0]
    ax = style.new_axes() if ax is None else ax
    first, last, clients = (frame[name] for name in ("peak_from", "peak_to", "clients"))
    edges = np.append(first, last[-1:] + 1) - 0.5
    ax.stairs(clients, edges, fill=True, color=ALLOWED, label=f"{len(least):,} clients")
    if np.all(first == last):
        style.whole_numbers(ax.xaxis)
    else:
        ax.set_xscale("log")
        plain_counts(ax, [1, last[-1]])
    if clients.max() > 200:
        ax.set_yscale("log")
        ax.set_ylim(bottom=0.7)
        ax.yaxis.set_major_formatter(_whole())
    for share, line in ((50, ":"), (90, "-."), (99, "--")):
        value = int(np.percentile(least, share, method="higher"))
        ax.axvline(value, color="#0072B2", linestyle=line, label=f"p{share}: {value:,}")
    if limit is not None:
        count, label = _limit_among(least, limit, period, algorithm)
        # Below the percentiles, which may be the same.
        ax.axvline(count, color=REFUSED, linewidth=2.5, zorder=1.9, label=label)
    ax.legend(loc="upper right", frameon=True)
    title = f"Peaks of clients in {_period(period)} ({algorithm})"
    return style.tidied(ax, title, "least limit that refuses the client nothing", "clients")


def _limit_among(
    least: Any, limit: str | int | Limit, period: Period, algorithm: Algorithm
) -> tuple[int, str]:
    """The count of a limit, and what it does to clients with these peaks."""
    shape = Limit(1, period, algorithm=algorithm)
    if isinstance(limit, int):
        limit = Limit(limit, period, algorithm=algorithm)
    elif isinstance(limit, str):
        limit = Limit(limit, algorithm=algorithm)
    if (limit.period_ns, limit.algorithm) != (shape.period_ns, shape.algorithm):
        raise ConfigurationError(
            f"the limit is {limit} ({limit.algorithm}) and the peaks are those in "
            f"{_period(period)} ({shape.algorithm}); expected one of that period and algorithm"
        )
    if limit.capacity != limit.count:  # the peaks say nothing of another burst
        return limit.count, f"limit {limit}"
    touched = int(np.count_nonzero(least > limit.count))
    share = style.percent(touched / len(least))
    return limit.count, f"limit {limit.count:,}: refuses {touched:,} ({share})"


def what_if(
    what: Any, *, limit: int | str | Limit | None = None, ax: Any = None,
    backend: str = "matplotlib",
) -> Any:  # fmt: skip
    """Draws the share of requests refused, and of clients refused at least once, by the limit.

    `what` is a Frame of tuning.what_if(), or a WhatIf. Where it has several bursts, there are lines
    for each. `limit` is drawn in.
    """
    frame = what_if_frame(what)
    chosen = limit.count if isinstance(limit, Limit) else limit
    chosen = _parsed(chosen).count if isinstance(chosen, str) else chosen
    if interactive.is_wanted(backend, ax):
        return interactive.what_if(frame, chosen)
    ax = style.new_axes() if ax is None else ax
    lines = style.share_lines(frame)
    for line in lines:
        ax.plot(
            line.counts, line.shares, color=line.colour, marker=line.marker, markersize=4,
            linestyle="--" if line.is_dashed else "-", label=line.words,
        )  # fmt: skip
    shares = np.concatenate([frame["refused_share"], frame["clients_touched_share"]])
    positive = shares[shares > 0]
    least = 10.0 ** np.floor(np.log10(positive.min())) if len(positive) else 0.01
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=least, linscale=0.4)
    ax.set_ylim(0, max(float(shares.max()) * 1.5, least))
    ticker = needed("matplotlib.ticker", "a plot")
    powers = [10.0**power for power in range(-9, 1) if 10.0**power >= least * 0.99]
    ax.yaxis.set_major_locator(ticker.FixedLocator([0, *powers]))
    ax.yaxis.set_minor_locator(ticker.NullLocator())
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(style.percent))
    plain_counts(ax, frame["count"])
    if chosen is not None:
        ax.axvline(chosen, color=LIMIT, linestyle=":", linewidth=2, label=f"limit {chosen:,}")
    if len(lines) > 2:
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    else:
        ax.legend(loc="lower left", frameon=True)
    title = f"What a limit refuses: {frame['limit'][0]} to {frame['limit'][-1]}"
    return style.tidied(ax, title, "limit (units in a period)", "share (logarithmic, down to 0)")


def plain_counts(ax: Any, counts: Any) -> None:
    """Ticks of a logarithmic axis as whole numbers: 1, 2, 5, 10, ..."""
    ticker = needed("matplotlib.ticker", "a plot")
    low, high = int(min(counts)), int(max(counts))
    ticks = [f * 10**p for p in range(19) for f in (1, 2, 5) if low <= f * 10**p <= high]
    ax.xaxis.set_major_locator(ticker.FixedLocator(ticks or [low]))
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    ax.xaxis.set_major_formatter(_whole())


def _whole() -> Any:
    """Ticks as whole numbers, not as powers of ten."""
    ticker = needed("matplotlib.ticker", "a plot")
    return ticker.FuncFormatter(lambda value, _: f"{value:,.0f}")


def top_clients(result: Replay, *, most: int = 15, by: str | None = None, ax: Any = None) -> Any:
    """Draws the clients that were refused most, with the share of theirs that was refused."""
    frame = top_clients_frame(result, most, by)
    if not len(frame):
        raise ConfigurationError("the replay has no requests; expected at least one")
    ax = style.new_axes() if ax is None else ax
    names = [_short(name) for name in next(iter(frame.columns.values()))]
    rows = np.arange(len(names))
    columns = _arrays(frame)
    allowed, refused, share = (columns[name] for name in ("allowed", "refused", "refused_share"))
    ax.barh(rows, allowed, color=ALLOWED, label="allowed")
    ax.barh(
        rows, refused, left=allowed, color=REFUSED, hatch=_HATCH, edgecolor="white", linewidth=0,
        label="refused",
    )  # fmt: skip
    for row, total, part in zip(rows, allowed + refused, share):
        ax.annotate(
            style.percent(part), (total, row), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
    ax.set_yticks(rows, names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, max(float((allowed + refused).max()) * 1.1, 1))
    style.whole_numbers(ax.xaxis)
    style.legend_above(ax)
    title = f"{_limits_of(result)}: the most refused, with their refused share"
    style.tidied(ax, title, "requests", "")
    ax.grid(visible=False, axis="y")
    return ax


def hours(times: Any, *, zone: str = "UTC", ax: Any = None) -> Any:
    """Draws requests by hour and weekday: means of the hours that the log has."""
    frame = hours_frame(times, zone)
    ax = style.new_axes() if ax is None else ax
    mean = np.ma.masked_invalid(np.asarray(frame["mean"]).reshape(7, 24))
    mesh = ax.pcolormesh(np.arange(25), np.arange(8), mean, cmap="cividis", vmin=0)
    ax.set_facecolor("#dddddd")
    for day, hour in zip(*np.nonzero(np.ma.getmaskarray(mean))):
        ax.text(hour + 0.5, day + 0.5, "+", ha="center", va="center", color="#777777", fontsize=7)
    ax.figure.colorbar(mesh, ax=ax, label="requests an hour (mean)")
    ax.set_yticks(np.arange(7) + 0.5, DAYS)
    ax.set_xticks(np.arange(0, 25, 3))
    ax.invert_yaxis()
    gaps = " (+: not in the log)" if np.ma.is_masked(mean) else ""
    style.tidied(ax, f"Requests by hour and weekday{gaps}", f"hour of the day ({zone})", "")
    ax.grid(visible=False)
    return ax


def bucket(limit: str | Limit, times: Any, costs: Any = None, *, ax: Any = None) -> Any:
    """Draws the units in one client's bucket while its requests come."""
    frame = _arrays(bucket_frame(limit, times, costs))
    shape = _parsed(limit)
    ax = style.new_axes() if ax is None else ax
    seconds, levels = _saw(frame, shape)
    ax.plot(seconds, levels, color="#0072B2", linewidth=1.5)
    start = frame["time"][0]
    at = (frame["time"] - start).astype(np.int64) / 1e9
    allowed = frame["allowed"]
    ax.plot(
        at[allowed], frame["after"][allowed], linestyle="", marker="o", markersize=4,
        color="#0072B2", label=f"allowed ({int(allowed.sum()):,})",
    )  # fmt: skip
    ax.plot(
        at[~allowed], frame["before"][~allowed], linestyle="", marker="x", markersize=7,
        markeredgewidth=2, color=REFUSED, label=f"refused ({int((~allowed).sum()):,})",
    )  # fmt: skip
    ax.axhline(shape.capacity, color=LIMIT, linestyle=":", label=f"burst {shape.capacity:,}")
    ax.set_ylim(0, shape.capacity * 1.05)
    style.legend_above(ax)
    first = np.datetime_as_string(start, unit="s").replace("T", " ")
    return style.tidied(
        ax, f"One client's bucket, {shape}", f"seconds after {first} UTC", "units in the bucket"
    )


def _saw(frame: dict[str, Any], limit: Limit) -> tuple[Any, Any]:
    """The corners of the line of levels: refills, where the bucket is full, and charges."""
    at = (frame["time"] - frame["time"][0]).astype(np.int64) / 1e9
    before, after = frame["before"], frame["after"]
    full_after = (limit.capacity - after[:-1]) * limit.period / limit.count
    full_at = np.minimum(at[:-1] + full_after, at[1:])
    between = np.where(full_at < at[1:], float(limit.capacity), before[1:])
    seconds = np.concatenate([[at[0], at[0]], np.column_stack([full_at, at[1:], at[1:]]).ravel()])
    levels = np.column_stack([between, before[1:], after[1:]]).ravel()
    return seconds, np.concatenate([[before[0], after[0]], levels])


def algorithms_frame(comparison: Frame) -> Frame:
    """The comparison itself. Raises ConfigurationError for another frame."""
    missing = [
        name for _, _, columns in _ANSWERS.values() for name in ("name", *columns)
        if name not in getattr(comparison, "columns", ())
    ]  # fmt: skip
    if missing:
        raise ConfigurationError(
            f"the comparison has no column {missing[0]!r}; expected what tuning.compare() returns"
        )
    return comparison


def algorithms(comparison: Frame, *, what: str = "refused", ax: Any = None) -> Any:
    """Draws rows of tuning.compare() side by side.

    `what` is ``"refused"``, ``"bursts"`` (the worst burst of a client that passes) or ``"rate"``
    (the busiest second of all clients).
    """
    frame = algorithms_frame(comparison)
    if what not in _ANSWERS:
        raise ConfigurationError(f"what is {what!r}; expected {', '.join(map(repr, _ANSWERS))}")
    title, x, columns = _ANSWERS[what]
    ax = style.new_axes() if ax is None else ax
    names = [_short(name) for name in frame["name"]]
    rows = np.arange(len(names))
    height = 0.8 / len(columns) if len(columns) > 1 else 0.5
    hatches = ("", _HATCH, "....")
    most = max(float(np.max(np.asarray(frame[name]))) for name in columns)
    for at, (name, words) in enumerate(columns.items()):
        values = np.asarray(frame[name], dtype=float)
        places = rows + (at - (len(columns) - 1) / 2) * height
        ax.barh(
            places, values, height * 0.9, color=LINES[at][0], hatch=hatches[at], edgecolor="white",
            linewidth=0, label=words,
        )  # fmt: skip
        for place, value in zip(places, values):
            text = style.percent(value) if what == "refused" else f"{value:,.4g}"
            ax.annotate(
                text, (value, place), xytext=(4, 0), textcoords="offset points", va="center",
                fontsize=8,
            )  # fmt: skip
    ax.set_yticks(rows, names)
    ax.invert_yaxis()
    ax.set_xlim(0, most * 1.15 or 1)
    if what != "refused":
        style.whole_numbers(ax.xaxis)
    if what == "refused":
        ax.xaxis.set_major_formatter(
            needed("matplotlib.ticker", "a plot").FuncFormatter(style.percent)
        )
        style.legend_above(ax)
    style.tidied(ax, title, x, "")
    ax.grid(visible=False, axis="y")
    return ax


def _arrays(frame: Frame) -> dict[str, Any]:
    """Returns the columns of `frame` without those of names."""
    return {name: each for name, each in frame.columns.items() if isinstance(each, np.ndarray)}


def _limits_of(result: Replay) -> str:
    return ", ".join(str(limit) for limit in result.limits) or "rules"


def _parsed(limit: str | Limit) -> Limit:
    return limit if isinstance(limit, Limit) else Limit(limit)


def _period(period: Period) -> str:
    if isinstance(period, str):
        return period if period[0].isdigit() else f"a {period}" if period != "hour" else "an hour"
    seconds = period if isinstance(period, (int, float)) else period.total_seconds()
    return style.span(float(seconds))


def _short(name: object) -> str:
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:40])
    text = text if len(text) <= 32 else f"{text[:29]}..."
    # matplotlib would read a text between two dollars as a formula.
    return text.replace("$", r"\$")
