"""A report as one HTML file: figures, plots and tables, for a person.

It asks for nothing else: no script, no font, nothing from the network, which its content security policy also says.
Light or dark is as the reader's system has it, and a phone gets plots of its own.  Its size is bounded: there are the
first few topics, and bins of time so long that there are not too many of them.

    Report ──► collect ──► Found, plain rows ──► render ──► text

Plots are drawn with matplotlib, twice, for wide and for narrow pages; its colours become those of the style sheet.  All
text from the data is in HTML, never in a plot, and is escaped.
"""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from matplotlib import rc_context
from matplotlib.dates import date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.fanout import Per
from skipfilter.spark.gaps import sentences
from skipfilter.spark.report import concurrency, topic_hours, traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes
    from pyspark.sql import DataFrame

    from skipfilter.spark.report import Report

    Row = dict[str, Any]

TOPICS: Final = 20
BARS: Final = 100
"""Bins of a plot of bars, and of a table, at most."""
MOMENTS: Final = 1_500
"""Bins in which the concurrency is looked at for its line."""
POINTS: Final = 400
"""Of that line."""
CELLS: Final = 50
"""Bins of the heat map."""
LONGEST: Final = 120
"""Characters of a topic that are shown."""

_SECONDS: Final[dict[Per, int]] = {
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "month": 28 * 86_400,
    "year": 365 * 86_400,
}


class Found(NamedTuple):
    """What the page shows, in plain rows."""

    overview: Row
    growth: float
    per: Per
    traffic: list[Row]
    churn: list[Row]
    moments: list[Row]
    """Concurrency again, of shorter bins."""
    fanout: Row
    distribution: list[Row]
    topics: list[Row]
    heat_per: Per
    heat: list[Row]
    private: Row
    selectors: list[Row]
    lengths: Row
    capacity: list[Row]
    gaps: list[str]
    """What may be missing, in sentences."""


def page(report: Report, title: str = "What the hub did") -> str:
    """The whole file, as text to be written in UTF-8."""
    return render(collect(report), title)


def collect(report: Report) -> Found:
    """Compute what the page shows, and no more of it."""
    tables = report.tables
    (overview,) = _rows(tables["overview"])
    start, end = overview["start"], overview["end"]
    length = end - start if start is not None and end is not None else timedelta()
    per, fine, heat_per = (_bin(length, most) for most in (BARS, MOMENTS, CELLS))
    hot = tables["topics"].limit(TOPICS)
    return Found(
        overview=overview,
        growth=report.growth,
        per=per,
        traffic=_rows(traffic(report.published, report.period, per)),
        churn=_rows(concurrency(report.sessions, report.period, per)),
        moments=_highest(_rows(concurrency(report.sessions, report.period, fine))),
        fanout=_rows(tables["fanout"])[0],
        distribution=_rows(tables["fanout_distribution"]),
        topics=_rows(hot),
        heat_per=heat_per,
        heat=_rows(topic_hours(report.published, hot, heat_per)),
        private=_rows(tables["private_updates"])[0],
        selectors=_rows(tables["selectors"]),
        lengths=_rows(tables["session_lengths"])[0],
        capacity=_rows(tables["capacity"]),
        gaps=sentences(tables["gaps"]),
    )


def _rows(table: DataFrame) -> list[Row]:
    """The rows, with times in UTC: those that Spark's `collect` makes are of the machine's zone, and do not say."""
    micros = [F.unix_micros(name).alias(name) if type == "timestamp" else F.col(name) for name, type in table.dtypes]
    times = [name for name, type in table.dtypes if type == "timestamp"]
    rows = [row.asDict() for row in table.select(micros).collect()]
    for row in rows:
        row.update({name: _time(row[name]) for name in times})
    return rows


def _highest(moments: list[Row]) -> list[Row]:
    """At most POINTS of them, each the highest of several neighbours."""
    step = -(-len(moments) // POINTS) or 1
    several = (moments[at : at + step] for at in range(0, len(moments), step))
    return [max(some, key=lambda row: row["peak"]) for some in several]


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _bin(length: timedelta, most: int) -> Per:
    """The shortest bins of which `length` has at most so many."""
    fitting = (per for per in get_args(Per) if length.total_seconds() / _SECONDS[per] <= most)
    return next(fitting, "year")


# -- the file


def render(found: Found, title: str) -> str:
    """The page of what was found.  Pure, and the same for the same."""
    total = found.overview
    sections = [
        _section("Connections", _connections(found)),
        _section("Traffic", _traffic(found)),
        _section("Fan-out", _fanout(found)),
        _section("Hot topics", _topics(found)),
        _section("Private updates", _private(found)),
        _section("Selectors", _selectors(found)),
        _section("Capacity", _capacity(found)),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="lead">{_period(total["start"], total["end"])}</p>
{_notice(found.gaps)}
{_tiles(found)}
</header>
<main>
{"".join(sections)}
</main>
<footer><p>Times are UTC. Figures are exact{", but for what may be missing" if found.gaps else ""}. Bytes are those of
the updates’ data: frames, headers and TLS come on top.</p></footer>
</body>
</html>
"""


def _section(name: str, content: str) -> str:
    slug = name.lower().replace(" ", "-")
    return f'<section aria-labelledby="{slug}">\n<h2 id="{slug}">{name}</h2>\n{content}\n</section>\n'


def _notice(gaps: list[str]) -> str:
    """That something may be missing, and what; nothing if nothing is."""
    if not gaps:
        return ""
    items = "".join(f"<li>{escape(_seen(gap))}</li>" for gap in gaps)
    return f"""<aside class="notice" aria-labelledby="missing">
<h2 id="missing">Something may be missing</h2>
<p>A hub was killed, or could not write all of its event log: the figures may be too low.</p>
<ul>{items}</ul>
</aside>"""


def _tiles(found: Found) -> str:
    total, fanout = found.overview, found.fanout
    peak = max((row["peak"] for row in found.moments), default=0)
    private = found.private["share"] or 0
    tiles = [
        (_short(total["updates"]), "updates", f"on {_whole(total['topics'])} topics"),
        (_short(total["deliveries"]), "deliveries", f"{_decimal(fanout['mean'])} for an update, on average"),
        (_short(peak), "peak connections", f"of {_whole(total['sessions'])} sessions"),
        (_short(fanout["max"]), "widest fan-out", f"p99 {_whole(fanout['p99'])}"),
        (_bytes(total["delivered_bytes"]), "delivered", f"of {_bytes(total['published_bytes'])} published"),
        (f"{private:.0%}", "private", f"{_whole(found.private['private'])} updates"),
    ]
    items = [
        f"<div><dt>{label}</dt><dd><strong>{value}</strong><small>{note}</small></dd></div>"
        for value, label, note in tiles
    ]
    return f'<dl class="tiles">{"".join(items)}</dl>'


def _connections(found: Found) -> str:
    if not found.churn:
        return NOTHING
    peak = max(found.moments, key=lambda row: row["peak"])
    came, went = (sum(row[name] for row in found.churn) for name in ("connected", "disconnected"))
    told = (
        f"At most {_whole(peak['peak'])} were connected at once, first at {_clock(peak['time'])}. "
        f"{_whole(came)} came and {_whole(went)} went."
    )
    figure = _figure("connections", "Connections over time, and who came and went", told, _draw_connections, found)
    columns = {"from": "time", "connected": "connected", "disconnected": "disconnected", "peak": "peak"}
    lengths = found.lengths
    quantiles = [
        ("sessions", _whole(lengths["sessions"])),
        ("still connected at the end", _whole(lengths["still_connected"])),
        *((f"length, {name}", _span(lengths[key])) for name, key in QUANTILES.items()),
        ("longest", _span(lengths["max"])),
    ]
    return figure + _details(f"Each {found.per} in figures", _table(columns, found.churn)) + _pairs(quantiles)


def _traffic(found: Found) -> str:
    if not found.traffic:
        return NOTHING
    busiest = max(found.traffic, key=lambda row: row["deliveries"])
    told = (
        f"The {found.per} with the most deliveries, {_whole(busiest['deliveries'])}, began at "
        f"{_clock(busiest['time'])}; they took {_bytes(busiest['delivered_bytes'])}."
    )
    columns = {
        "from": "time",
        "updates": "updates",
        "private": "private_updates",
        "deliveries": "deliveries",
        "published": "published_bytes",
        "delivered": "delivered_bytes",
    }
    figure = _figure("traffic", f"Updates, deliveries and bytes, each {found.per}", told, _draw_traffic, found)
    return figure + _details(f"Each {found.per} in figures", _table(columns, found.traffic))


def _fanout(found: Found) -> str:
    updates, fanout = found.fanout["updates"], found.fanout
    if not updates:
        return NOTHING
    nobody = sum(row["updates"] for row in found.distribution if not row["fanout"])
    told = f"{nobody / updates:.1%} of the updates reached nobody; one reached {_whole(fanout['max'])}."
    quantiles = [
        ("mean", _decimal(fanout["mean"])),
        *((name, _whole(fanout[key])) for name, key in QUANTILES.items()),
        ("most", _whole(fanout["max"])),
    ]
    figure = _figure("fan-out", "How many updates reach at least so many subscribers", told, _draw_fanout, found)
    return figure + _pairs(quantiles)


def _topics(found: Found) -> str:
    if not found.topics:
        return NOTHING
    most = max(max(row["deliveries"] for row in found.topics), 1)
    rows = [
        f'<tr><th scope="row" class="topic">{_topic(row["topic"])}'
        f'<span class="bar" style="--v:{row["deliveries"] / most:.3f}"></span></th>'
        f"<td>{_whole(row['deliveries'])}</td><td>{_whole(row['updates'])}</td>"
        f"<td>{_whole(row['private_updates'])}</td></tr>"
        for row in found.topics
    ]
    head = "".join(f'<th scope="col">{name}</th>' for name in ("topic", "deliveries", "updates", "private"))
    share = sum(row["deliveries"] for row in found.topics) / max(found.overview["deliveries"], 1)
    told = f"The first {len(rows)} by deliveries. An update on two topics counts with both: {min(share, 1):.0%} of all."
    table = f'<table class="hot"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f'<p>{told}</p>\n<div class="scroll">{table}</div>\n{_heat(found)}'


def _heat(found: Found) -> str:
    """Topics by time; the darker, the more deliveries, on a logarithmic scale."""
    times = sorted({row["time"] for row in found.heat})
    if not times:
        return ""
    counts = {(row["topic"], row["time"]): row["deliveries"] for row in found.heat}
    most = max(max(counts.values()), 1)
    labels = {time: _label(time, found.heat_per, times[0].date() == times[-1].date()) for time in times}
    head = "".join(f'<th scope="col"><span>{label}</span></th>' for label in labels.values())
    rows = []
    for row in found.topics:
        cells = []
        for time in times:
            count = counts.get((row["topic"], time), 0)
            shade = (count.bit_length() - 1 + count / 2 ** count.bit_length()) / most.bit_length() if count else 0
            cells.append(
                f'<td style="--v:{min(shade, 1):.2f}" title="{labels[time]}: {_whole(count)}"><span>{count}</span></td>'
            )
        rows.append(f'<tr><th scope="row" class="topic">{_topic(row["topic"])}</th>{"".join(cells)}</tr>')
    caption = f"Deliveries of each, each {found.heat_per}: the stronger the colour, the more, on a logarithmic scale."
    return (
        f'<p id="heat">{caption}</p><div class="scroll"><table class="heat" aria-describedby="heat">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _private(found: Found) -> str:
    row = found.private
    if not row["private"]:
        return "<p>No update was private.</p>"
    reached = row["private"] - row["to_nobody"]
    missed = row["to_nobody"] - row["unauthorised"]
    parts = [
        ("a", reached, "reached somebody"),
        ("b", missed, "reached nobody: who is authorised had not asked, or was not there"),
        ("c", row["unauthorised"], "could reach nobody: no session is authorised for any of their topics"),
    ]
    bar = "".join(f'<span class="{name}" style="flex-grow:{count}"></span>' for name, count, _ in parts if count)
    items = "".join(
        f'<li><i class="{name}"></i><b>{_whole(count)}</b> ({count / row["private"]:.1%}) {told}</li>'
        for name, count, told in parts
    )
    total = f"{_whole(row['private'])} of {_whole(row['updates'])} updates are private, {row['share']:.1%}:"
    return f'<p>{total}</p><div class="stack" aria-hidden="true">{bar}</div><ul class="legend">{items}</ul>'


def _selectors(found: Found) -> str:
    columns = {name: name for name in ("role", "type", "sessions", "selectors", "distinct")}
    told = "How sessions say what they want, and what they may read. All sessions of the tables."
    return f"<p>{told}</p>\n{_table(columns, found.selectors)}" if found.selectors else NOTHING


def _capacity(found: Found) -> str:
    growth = f"{found.growth:g}"
    columns = {
        "the most": "measure",
        "in one": "per",
        "was": "peak",
        "at": "at",
        f"at {growth} × subscribers": "planned",
    }
    rows = [
        row | {"peak": _bytes(row["peak"]), "planned": _bytes(row["planned"])} if "bytes" in row["measure"] else row
        for row in found.capacity
    ]
    assumed = [
        f"The last column is for {growth} times as many subscribers, who are like those that there were, and the same "
        "updates: connections, deliveries and bytes grow in proportion, updates do not.",
        "It has no reserve.",
        "Reconnecting is not in it: where a hub starts again, all its connections come back as fast as they may.",
    ]
    items = "".join(f"<li>{line}</li>" for line in assumed)
    return f"{_table(columns, rows)}\n<ul>{items}</ul>"


NOTHING: Final = "<p>There was none.</p>"
QUANTILES: Final = {"median": "p50", "p90": "p90", "p99": "p99", "p99.9": "p999"}


# -- pieces


def _figure(name: str, title: str, told: str, draw: Callable[[Found, bool], Figure], found: Found) -> str:
    """The plot, once for wide pages and once for narrow ones, of which the reader gets one."""
    with rc_context(_PLOT | {"svg.hashsalt": name}):  # the same report makes the same file
        drawn = "".join(_svg(name, title, told, draw(found, wide), wide=wide) for wide in (True, False))
    return f"<figure>\n{drawn}<figcaption>{told}</figcaption>\n</figure>\n"


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>\n{content}\n</details>\n"


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f'<dl class="pairs">{items}</dl>'


def _table(columns: dict[str, str], rows: Sequence[Row]) -> str:
    first = rows[0]
    head = "".join(f'<th scope="col"{_left(first[key])}>{escape(name)}</th>' for name, key in columns.items())
    body = "".join(
        f"<tr>{''.join(f'<td{_left(row[key])}>{_cell(row[key], key)}</td>' for key in columns.values())}</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _left(value: object) -> str:
    return ' class="text"' if isinstance(value, str) and not value[:1].isdigit() else ""


def _cell(value: object, key: str) -> str:
    match value:
        case None:
            return "–"
        case datetime():
            return _clock(value)
        case int() | float():
            return _bytes(value) if key.endswith("_bytes") else _whole(value)
    return escape(str(value))


def _topic(topic: str) -> str:
    """A topic as HTML: what cannot be seen is escaped, and its direction is its own."""
    seen = _seen(topic[: LONGEST + 1])
    cut = seen if len(seen) <= LONGEST else seen[:LONGEST] + "…"
    return f"<bdi>{escape(cut)}</bdi>"


def _seen(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def _whole(number: float | None) -> str:
    return "–" if number is None else f"{number:,.0f}"


def _decimal(number: float | None) -> str:
    return "–" if number is None else f"{number:,.1f}"


def _short(number: float | None) -> str:
    """Three digits or so: 1.23 M; all of them below 10,000."""
    return _whole(number) if number is None or number < 1e4 else _scaled(number, ("", "k", "M", "G", "T"))


def _bytes(number: float | None) -> str:
    return "–" if number is None else _scaled(number, ("B", "kB", "MB", "GB", "TB", "PB"))


def _scaled(number: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if number < 999.5:
            return f"{number:.3g}\N{NO-BREAK SPACE}{unit}"
        number /= 1_000
    return (
        f"{number:,.3g}\N{NO-BREAK SPACE}{units[-1]}"
        if number < 999.5
        else f"{number:,.0f}\N{NO-BREAK SPACE}{units[-1]}"
    )


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((at for at, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}\N{NO-BREAK SPACE}{unit}" for count, unit in parts[first : first + 2])


def _clock(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}" if time.second else f"{time:%Y-%m-%d %H:%M}"


def _label(time: datetime, per: Per, one_day: bool) -> str:
    """Where a bin begins; at midnight its day, if there are several."""
    formats = {
        "second": "%H:%M:%S",
        "minute": "%H:%M",
        "hour": "%H:%M",
        "day": "%d\N{NO-BREAK SPACE}%b",
        "month": "%b\N{NO-BREAK SPACE}%Y",
    }
    midnight = not one_day and time.hour == time.minute == time.second == 0 and formats.get(per, "").startswith("%H")
    return f"{time:{formats['day'] if midnight else formats.get(per, '%Y')}}"


def _period(start: datetime | None, end: datetime | None) -> str:
    if start is None or end is None:
        return "No updates."
    return f"{_clock(start.replace(microsecond=0))} to {_clock(end.replace(microsecond=0))} UTC"


# -- plots

# Stand-ins, which no plot uses otherwise, for the colours of the style sheet.
INK, MUTED, GRID, BLUE, ORANGE, GREEN = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f", "#101112"
_COLOURS: Final = {INK: "ink", MUTED: "muted", GRID: "grid", BLUE: "a", ORANGE: "b", GREEN: "c"}

_PLOT: Final[dict[Any, Any]] = {
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
    "svg.fonttype": "none",  # text stays text
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "ytick.major.size": 0,
}


def _draw_connections(found: Found, wide: bool) -> Figure:
    figure = _canvas(wide, 4.2 if wide else 4.4)
    there, churn = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    times = [row["time"] for row in found.moments]
    peaks = [row["peak"] for row in found.moments]
    there.fill_between(times, peaks, color=BLUE, alpha=0.16, linewidth=0, step="post")
    there.plot(times, peaks, color=BLUE, linewidth=1.4, drawstyle="steps-post")
    there.set_title("connected at once")
    there.set_ylim(0, max(*peaks, 1) * 1.08)
    at, width = _places(found.churn, found.per)
    churn.bar(at, [row["connected"] for row in found.churn], width, align="edge", color=BLUE)
    churn.bar(at, [-row["disconnected"] for row in found.churn], width, align="edge", color=ORANGE)
    churn.axhline(0, color=MUTED, linewidth=0.7)
    churn.set_title(f"came, above, and went, below, each {found.per}")
    _counted(there, churn)
    _timed(churn, at, found.per, wide)
    return figure


def _draw_traffic(found: Found, wide: bool) -> Figure:
    figure = _canvas(wide, 4.6 if wide else 5.2)
    panels = figure.subplots(3, 1, sharex=True)
    at, width = _places(found.traffic, found.per)
    updates, private, deliveries, size = (
        [row[name] for row in found.traffic] for name in ("updates", "private_updates", "deliveries", "delivered_bytes")
    )
    panels[0].bar(at, updates, width, align="edge", color=BLUE, alpha=0.45)
    panels[0].bar(at, private, width, align="edge", color=BLUE)
    panels[0].set_title(f"updates each {found.per}; the stronger part is private")
    panels[1].bar(at, deliveries, width, align="edge", color=ORANGE)
    panels[1].set_title("deliveries")
    panels[2].bar(at, size, width, align="edge", color=GREEN)
    panels[2].set_title("delivered bytes")
    _counted(*panels)
    panels[2].yaxis.set_major_formatter(FuncFormatter(lambda value, _: _bytes(value)))
    _timed(panels[2], at, found.per, wide)
    return figure


def _draw_fanout(found: Found, wide: bool) -> Figure:
    figure = _canvas(wide, 3.4)
    axes = figure.subplots()
    rows = [row for row in found.distribution if row["fanout"]]
    above = [*accumulate(row["updates"] for row in reversed(rows))][::-1]
    shares = [count / found.fanout["updates"] for count in above]
    at = [row["fanout"] for row in rows]
    axes.set_xscale("log")
    axes.set_yscale("log")
    if rows:
        # Between two values nobody is: whoever reaches more than the one reaches the other.
        axes.step(at, shares, where="pre", color=BLUE, linewidth=1.6)
        axes.fill_between(at, shares, min(shares) / 2, step="pre", color=BLUE, alpha=0.1, linewidth=0)
        axes.set_ylim(min(shares) / 2, 1.6)
        axes.set_xlim(0.9, max(at) * 1.5)
    for name, share in (("p50", 0.5), ("p90", 0.1), ("p99", 0.01), ("p99.9", 0.001)):
        value = found.fanout[name.replace(".", "")]
        if value:
            axes.plot(value, share, "o", color=ORANGE, markersize=5)
            axes.annotate(f"{name} {value:,}", (value, share), (6, 4), textcoords="offset points", color=INK)
    axes.grid(visible=True, axis="both")
    axes.set_title("share of the updates" if wide else "share of the updates that reach")
    axes.set_xlabel("subscribers reached, or more")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}\N{NO-BREAK SPACE}%"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="minor", length=0)
    return figure


def _canvas(wide: bool, height: float) -> Figure:
    return Figure(figsize=(9 if wide else 4.2, height), layout="constrained")


def _places(rows: list[Row], per: Per) -> tuple[list[datetime], list[timedelta]]:
    """Where bars begin, and how wide they are: nine tenths of what they stand for."""
    at = [row["time"] for row in rows]
    last = at[-1] + timedelta(seconds=_SECONDS[per])
    return at, [(after - time) * 0.9 for time, after in zip(at, [*at[1:], last], strict=True)]


def _counted(*axes: Axes) -> None:
    for each in axes:
        each.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(abs(value))))


def _timed(axes: Axes, times: Sequence[datetime], per: Per, wide: bool) -> None:
    """Mark a few whole hours, or whatever the bins are."""
    most = 9 if wide else 5
    step = next((step for step in _STEPS[per] if len(times) / step <= most), _STEPS[per][-1])
    first = 1 if per in ("day", "month") else 0
    marked = [time for time in times if (getattr(time, per) - first) % step == 0] or times[:1]
    one_day = times[0].date() == times[-1].date()
    axes.set_xticks(date2num(marked), [_label(time, per, one_day) for time in marked])  # type: ignore[no-untyped-call]
    length = times[-1] - times[0] + timedelta(seconds=_SECONDS[per])
    axes.set_xlim(times[0] - length / 100, times[0] + length * 1.01)  # type: ignore[arg-type]


_STEPS: Final[dict[Per, tuple[int, ...]]] = {
    "second": (1, 2, 5, 10, 15, 20, 30),
    "minute": (1, 2, 5, 10, 15, 20, 30),
    "hour": (1, 2, 3, 6, 12, 24),
    "day": (1, 2, 7, 14, 31),
    "month": (1, 2, 3, 6, 12),
    "year": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000),
}
"""How many bins from one mark to the next: of the number in the minute, hour, day, month, or of the year."""


def _svg(name: str, title: str, told: str, figure: Figure, *, wide: bool) -> str:
    """The plot as an element of HTML, with a title, in the colours of the style sheet."""
    kind = "wide" if wide else "narrow"
    own = f"{name}-{kind}"
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    _, _, tag = written.getvalue().partition("<svg ")
    tag, _, content = tag.partition(">")
    view = tag.partition('viewBox="')[2].partition('"')[0]
    before, _, rest = content.partition("<metadata>")
    content = before + rest.partition("</metadata>")[2]
    for reference in ('id="', "url(#", 'href="#'):  # there are several plots in the page
        content = content.replace(reference, f"{reference}{own}-")
    for colour, variable in _COLOURS.items():
        content = content.replace(colour, f"var(--{variable})")
    return (
        f'<svg class="{kind}" viewBox="{view}" role="img" aria-labelledby="{own}-title {own}-desc" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink"><title id="{own}-title">{escape(title)}</title>'
        f'<desc id="{own}-desc">{escape(told)}</desc>{content}'
    )


STYLE: Final = """
:root{--page:#f6f5f1;--panel:#fff;--ink:#1d2125;--muted:#5b636b;--grid:#dfe2e4;--a:#1f6fb2;--b:#c4570c;--c:#1d7f5f;
--a-rgb:31 111 178}
@media (prefers-color-scheme:dark){:root{--page:#121518;--panel:#1a1f24;--ink:#e8eaec;--muted:#a3abb3;--grid:#333a41;
--a:#62b0ee;--b:#f0914a;--c:#4cc39b;--a-rgb:98 176 238}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,
sans-serif;-webkit-text-size-adjust:100%}
header,main,footer{max-width:64rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.5rem}
h1{font-size:clamp(1.6rem,4vw,2.3rem);line-height:1.15;letter-spacing:-.02em;margin:0;text-wrap:balance}
h2{font-size:1.2rem;letter-spacing:-.01em;margin:0 0 .75rem}
p,ul,figcaption{color:var(--muted);max-width:46rem}
.lead{margin:.35rem 0 1.5rem}
section{background:var(--panel);border:1px solid var(--grid);border-radius:.8rem;padding:1.25rem 1.4rem;
margin:1.25rem 0}
.notice{background:var(--panel);border:1px solid var(--grid);border-left:.5rem solid var(--b);border-radius:.4rem;
padding:1rem 1.25rem;margin:0 0 1.25rem;overflow-wrap:anywhere}
.notice *{color:var(--ink)}
section>:last-child,.notice>:last-child{margin-bottom:0}
dl{margin:0}dd{margin:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.4rem,1fr));gap:.75rem}
.tiles div{background:var(--panel);border:1px solid var(--grid);border-radius:.8rem;padding:.9rem 1rem;display:flex;
flex-direction:column}
.tiles dt{color:var(--muted);font-size:.85rem}
.tiles strong{display:block;font-size:1.75rem;line-height:1.2;font-weight:650;letter-spacing:-.02em;white-space:nowrap}
.tiles small{color:var(--muted);font-size:.78rem}
figure{margin:0}
figure svg{display:block;width:100%;height:auto}
figure svg text{font-family:inherit!important}
svg.narrow{display:none}
figcaption{margin:.5rem 0 1rem;font-size:.92rem}
.pairs{display:flex;flex-wrap:wrap;gap:.6rem 2rem;margin-top:1rem}
.pairs dt{color:var(--muted);font-size:.8rem}
.pairs dd{font-variant-numeric:tabular-nums;font-weight:600}
.scroll{overflow-x:auto;margin:.5rem 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.34rem .6rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
.text,th:first-child,td:first-child{text-align:left}
thead th{color:var(--muted);font-weight:500;font-size:.82rem}
tbody tr:last-child>*{border-bottom:0}
th.topic{font-weight:400;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.82rem;
white-space:normal;overflow-wrap:anywhere}
.hot th.topic{width:60%;min-width:11rem}
.bar{display:block;height:.32rem;border-radius:.2rem;background:var(--a);width:calc(var(--v)*100%);min-width:2px;
margin-top:.2rem}
.heat{font-size:.75rem;margin-top:1rem;border-collapse:separate;border-spacing:1px}
.heat th,.heat td{border:0;padding:0}
.heat th.topic{font-size:.72rem;padding-right:.6rem;white-space:nowrap;max-width:16rem;overflow:hidden;
text-overflow:ellipsis;direction:rtl}
.heat thead span{writing-mode:vertical-rl;font-size:.66rem;line-height:1;padding:.2rem 0}
.heat thead th{text-align:center}
.heat tbody td{height:1.15rem;min-width:.55rem;border-radius:.15rem;background:rgb(var(--a-rgb)/var(--v));
box-shadow:inset 0 0 0 1px rgb(var(--a-rgb)/.08)}
.heat tbody td span{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.heat tbody td,.heat tbody tr{position:relative}
.stack{display:flex;height:1.1rem;border-radius:.4rem;overflow:hidden;gap:2px}
.stack span{min-width:2px}
.a{background:var(--a)}.b{background:var(--b)}.c{background:var(--c)}
.legend{list-style:none;padding:0}
.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:.2rem;margin-right:.5rem}
.legend b{color:var(--ink)}
details{margin:.5rem 0}
summary{cursor:pointer;color:var(--muted);font-size:.9rem}
footer{padding-bottom:3rem;font-size:.85rem}
@media (max-width:40rem){section{padding:1rem;border-radius:.6rem}header,main,footer{padding-left:.75rem;
padding-right:.75rem}svg.wide{display:none}svg.narrow{display:block}.tiles{grid-template-columns:1fr 1fr}
.heat th.topic{max-width:6.5rem}.heat tbody td{min-width:.3rem}th,td{padding:.3rem .4rem}}
@media print{body{background:#fff}section{break-inside:avoid}details{display:none}}
"""
