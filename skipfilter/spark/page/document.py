"""The HTML file: page.html.j2 filled in, with style.css inside."""

from __future__ import annotations

from datetime import datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from skipfilter.spark.page import formats
from skipfilter.spark.page.plots import plot

if TYPE_CHECKING:
    from skipfilter.spark.page.content import Content


def render(content: Content, title: str) -> str:
    """Return the page of `content`.  Pure: equal content makes equal text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "cell": _cell,
        "clock": formats.clock,
        "decimal": formats.decimal,
        "duration": formats.duration,
        "percent": _percent,
        "short": formats.short,
        "size": formats.size,
        "topic": formats.topic,
        "visible": formats.visible,
        "whole": formats.whole,
    }
    template = environment.from_string(_file("page.html.j2"))
    return template.render(
        content=content,
        title=title,
        style=Markup(_file("style.css")),  # noqa: S704  our own file
        period=formats.period(content.overview["start"], content.overview["end"]),
        plot=lambda name: [drawn._replace(content=Markup(drawn.content)) for drawn in plot(name, content)],  # noqa: S704
        heat=_heat(content),
        capacity=_capacity(content),
        is_text=_is_text,
    )


def _file(name: str) -> str:
    """Return a file of this package as text."""
    return files("skipfilter.spark.page").joinpath(name).read_text("utf-8")


def _heat(content: Content) -> dict[str, Any] | None:
    """Return the heat map: labels of its times; for each topic, counts and shades, 0 to
    1.
    """
    times = sorted({row["time"] for row in content.heat})
    if not times:
        return None
    counts = {(row["topic"], row["time"]): row["deliveries"] for row in content.heat}
    most = max(max(counts.values()), 1)
    one_day = times[0].date() == times[-1].date()
    topics = [row["topic"] for row in content.topics]
    return {
        "labels": [formats.bin_label(time, content.heat_per, one_day) for time in times],
        "rows": [
            (topic, [(count, _shade(count, most)) for count in (counts.get((topic, time), 0) for time in times)])
            for topic in topics
        ],
    }


def _shade(count: int, most: int) -> float:
    """Return the logarithm of `count`, as a share of that of `most`."""
    if not count:
        return 0
    fraction: float = count / 2 ** count.bit_length()
    return min(1, (count.bit_length() - 1 + fraction) / most.bit_length())


def _capacity(content: Content) -> list[dict[str, Any]]:
    """Return the rows with bytes as text; only the measure's name shows that they are
    bytes.
    """
    return [
        row | {key: formats.size(row[key]) for key in ("peak", "planned")} if "bytes" in row["measure"] else row
        for row in content.capacity
    ]


def _is_text(value: object) -> bool:
    """Return whether a column that begins with this value is aligned to the left, as
    text.
    """
    return isinstance(value, str) and not value[:1].isdigit()


def _cell(value: object, key: str) -> str:
    """Return a value as a cell shows it."""
    match value:
        case None:
            return "–"
        case datetime():
            return formats.clock(value)
        case int() | float():
            return formats.size(value) if key.endswith("_bytes") else formats.whole(value)
    return str(value)


def _percent(share: float, decimals: int = 0) -> str:
    """Return a share as a percentage."""
    return f"{share:.{decimals}%}"
