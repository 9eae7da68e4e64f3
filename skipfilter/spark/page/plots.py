"""Plots: the figures of the page, which matplotlib draws as SVG.

Each is drawn once for wide pages and once for narrow ones.  The colours are variables
of the style sheet, so that they follow the reader's light or dark mode.  No plot shows
text from the data.
"""

from __future__ import annotations

import io
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from matplotlib import rc_context
from matplotlib.dates import date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from skipfilter.spark.jobs.statistics import SECONDS
from skipfilter.spark.page import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from matplotlib.axes import Axes

    from skipfilter.spark.jobs.statistics import Per
    from skipfilter.spark.page.content import Content, Row


class Plot(NamedTuple):
    """A drawn plot, as the parts of an `svg` element in HTML."""

    id: str
    """The prefix of every id in the plot, because one page holds several plots."""
    wide: bool
    """True for wide pages, False for narrow ones."""
    view: str
    """The attribute `viewBox` of the element."""
    content: str
    """The content of the element."""


def plot(name: str, content: Content) -> list[Plot]:
    """Return the plot `name` of `content`, wide and narrow.

    Equal content gives equal plots, byte for byte.
    """
    with rc_context(_STYLE | {"svg.hashsalt": name}):
        return [_svg(f"{name}-{kind}", _DRAWINGS[name](content, wide), wide) for kind, wide in _WIDTHS.items()]


_WIDTHS: Final = {"wide": True, "narrow": False}


def _svg(id: str, figure: Figure, wide: bool) -> Plot:
    """Return a figure without the parts of an SVG file: prolog, size and metadata."""
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    # 1. Keep the content of the element, without its metadata, and its viewBox.
    _, _, tag = written.getvalue().partition("<svg ")
    tag, _, content = tag.partition(">")
    view = tag.partition('viewBox="')[2].partition('"')[0]
    before, _, rest = content.partition("<metadata>")
    content = before + rest.partition("</metadata>")[2].rpartition("</svg>")[0]
    # 2. Ids must be unique in the page, so put the plot's id before each.
    for reference in ('id="', "url(#", 'href="#'):
        content = content.replace(reference, f"{reference}{id}-")
    # 3. Replace the placeholders for colours by variables of the style sheet.
    for colour, variable in _COLOURS.items():
        content = content.replace(colour, f"var(--{variable})")
    return Plot(id, wide, view, content)


# Placeholders for the colours of the style sheet.  No plot has these colours otherwise.
INK, MUTED, GRID, BLUE, ORANGE, GREEN = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f", "#101112"
_COLOURS: Final = {INK: "ink", MUTED: "muted", GRID: "grid", BLUE: "a", ORANGE: "b", GREEN: "c"}

_STYLE: Final[dict[Any, Any]] = {
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": MUTED,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "font.size": 8,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "svg.fonttype": "none",  # text stays text and is not drawn as paths
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "ytick.major.size": 0,
}


def _draw_connections(content: Content, wide: bool) -> Figure:
    """Draw the connections, and below them connects and disconnects."""
    figure = _canvas(wide, 4.2 if wide else 4.4)
    # 1. Connections at once.  Each value holds until the next one.
    connections, churn = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    times = [row["time"] for row in content.moments]
    peaks = [row["peak"] for row in content.moments]
    connections.fill_between(times, peaks, color=BLUE, alpha=0.16, linewidth=0, step="post")
    connections.plot(times, peaks, color=BLUE, linewidth=1.4, drawstyle="steps-post")
    connections.set_title("connected at once")
    connections.set_ylim(0, max(*peaks, 1) * 1.08)
    # 2. Connects as bars upwards, and disconnects downwards.
    at, width = _bars(content.churn, content.per)
    churn.bar(at, [row["connected"] for row in content.churn], width, align="edge", color=BLUE)
    churn.bar(at, [-row["disconnected"] for row in content.churn], width, align="edge", color=ORANGE)
    churn.axhline(0, color=MUTED, linewidth=0.7)
    churn.set_title(f"connected (above) and disconnected (below), each {content.per}")
    _counted(connections, churn)
    _timed(churn, at, content.per, wide)
    return figure


def _draw_traffic(content: Content, wide: bool) -> Figure:
    """Draw updates, deliveries and bytes, one above the other."""
    figure = _canvas(wide, 4.6 if wide else 5.2)
    panels = figure.subplots(3, 1, sharex=True)
    at, width = _bars(content.traffic, content.per)
    updates, private, deliveries, size = (
        [row[name] for row in content.traffic]
        for name in ("updates", "private_updates", "deliveries", "delivered_bytes")
    )
    panels[0].bar(at, updates, width, align="edge", color=BLUE, alpha=0.45)
    panels[0].bar(at, private, width, align="edge", color=BLUE)
    panels[0].set_title(f"updates, each {content.per}; private ones in the stronger colour")
    panels[1].bar(at, deliveries, width, align="edge", color=ORANGE)
    panels[1].set_title("deliveries")
    panels[2].bar(at, size, width, align="edge", color=GREEN)
    panels[2].set_title("delivered bytes")
    _counted(*panels)
    panels[2].yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.size(value)))
    _timed(panels[2], at, content.per, wide)
    return figure


def _draw_fanout(content: Content, wide: bool) -> Figure:
    """Draw the share of the updates that reach at least a number of subscribers."""
    figure = _canvas(wide, 3.4)
    axes = figure.subplots()
    # 1. Add up from the widest fan-out.  The logarithmic axis cannot show fan-out 0.
    rows = [row for row in content.distribution if row["fanout"]]
    above = [*accumulate(row["updates"] for row in reversed(rows))][::-1]
    shares = [count / (content.fanout["updates"] - content.fanout["unknown"]) for count in above]
    at = [row["fanout"] for row in rows]
    axes.set_xscale("log")
    axes.set_yscale("log")
    if rows:
        # A step: no update has a fan-out between two values.
        axes.step(at, shares, where="pre", color=BLUE, linewidth=1.6)
        axes.fill_between(at, shares, min(shares) / 2, step="pre", color=BLUE, alpha=0.1, linewidth=0)
        axes.set_ylim(min(shares) / 2, 1.6)
        axes.set_xlim(0.9, max(at) * 1.5)
    # 2. Mark the quantiles: about a tenth of the updates reach p90 or more.
    for name, share in (("p50", 0.5), ("p90", 0.1), ("p99", 0.01), ("p99.9", 0.001)):
        value = content.fanout[name.replace(".", "")]
        if value:
            axes.plot(value, share, "o", color=ORANGE, markersize=5)
            axes.annotate(f"{name} {value:,}", (value, share), (6, 4), textcoords="offset points", color=INK)
    # 3. Labels at the powers of ten only.
    axes.grid(visible=True, axis="both")
    axes.set_title(
        "share of the updates that reach at least a number of subscribers"
        if wide
        else "share of the updates that reach"
    )
    axes.set_xlabel("at least this number of subscribers")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}\N{NO-BREAK SPACE}%"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="minor", length=0)
    return figure


def _canvas(wide: bool, height: float) -> Figure:
    """Return an empty figure."""
    return Figure(figsize=(9 if wide else 4.2, height), layout="constrained")


def _bars(rows: list[Row], per: Per) -> tuple[list[datetime], list[timedelta]]:
    """Return the beginning of each bar, and its width: nine tenths of its bin."""
    # A bin ends at the beginning of the next one, because months differ in length.
    at = [row["time"] for row in rows]
    last = at[-1] + timedelta(seconds=SECONDS[per])
    return at, [(after - time) * 0.9 for time, after in zip(at, [*at[1:], last], strict=True)]


def _counted(*axes: Axes) -> None:
    """Label the vertical axes with short numbers, without a sign."""
    for each in axes:
        each.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.short(abs(value))))


def _timed(axes: Axes, times: Sequence[datetime], per: Per, wide: bool) -> None:
    """Label some of the bins on the horizontal axis, at round times."""
    most = 9 if wide else 5
    step = next((step for step in _STEPS[per] if len(times) / step <= most), _STEPS[per][-1])
    # Days and months count from 1.
    first = 1 if per in ("day", "month") else 0
    marked = [time for time in times if (getattr(time, per) - first) % step == 0] or times[:1]
    one_day = times[0].date() == times[-1].date()
    axes.set_xticks(date2num(marked), [formats.bin_label(time, per, one_day) for time in marked])  # type: ignore[no-untyped-call]
    length = times[-1] - times[0] + timedelta(seconds=SECONDS[per])
    axes.set_xlim(times[0] - length / 100, times[0] + length * 1.01)  # type: ignore[arg-type]


_STEPS: Final[dict[Per, tuple[int, ...]]] = {
    "second": (1, 2, 5, 10, 15, 20, 30),
    "minute": (1, 2, 5, 10, 15, 20, 30),
    "hour": (1, 2, 3, 6, 12, 24),
    "day": (1, 2, 7, 14, 31),
    "month": (1, 2, 3, 6, 12),
    "year": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000),
}
"""The possible numbers of bins between two labels."""

_DRAWINGS: Final[dict[str, Callable[[Content, bool], Figure]]] = {
    "connections": _draw_connections,
    "traffic": _draw_traffic,
    "fan-out": _draw_fanout,
}
