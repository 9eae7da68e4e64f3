"""The HTML file: the template page.html.j2, filled in, with style.css inside."""

from __future__ import annotations

from datetime import datetime
from importlib.resources import files
from math import log2
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from skipfilter.spark.page import formats
from skipfilter.spark.page.plots import plot
from skipfilter.text import escaped

if TYPE_CHECKING:
    from skipfilter.spark.page.content import Content


def render(content: Content, title: str) -> str:
    """Return the page of `content` as text.  Equal content makes equal text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": _cell, "percent": _percent, "escaped": escaped} | formats.FILTERS
    template = environment.from_string(_file("page.html.j2"))
    return template.render(
        content=content,
        title=title,
        style=Markup(_file("style.css")),  # noqa: S704  our own file
        period=formats.period(content.overview["start"], content.overview["end"]),
        plot=lambda name: [drawn._replace(content=Markup(drawn.content)) for drawn in plot(name, content)],  # noqa: S704
        traffic=_traffic(content.overview),
        heat=_heat(content),
        capacity=_capacity(content),
        is_text=_is_text,
    )


def _file(name: str) -> str:
    """Return the text of a file of this package."""
    return files("skipfilter.spark.page").joinpath(name).read_text("utf-8")


def _traffic(total: dict[str, Any]) -> dict[str, str]:
    """Return the headings and keys of the table of traffic.

    What is 0 in the whole report has no column.
    """
    columns = {"from": "time", "updates": "updates", "private": "private_updates"}
    if total["presence_updates"]:
        columns["about presence"] = "presence_updates"
    if total["unknown"]:
        columns["of unknown reach"] = "unknown"
    return columns | {"deliveries": "deliveries", "published": "published_bytes", "delivered": "delivered_bytes"}


def _heat(content: Content) -> dict[str, Any] | None:
    """Return the labels and rows of the heat map, or None if there is nothing to show.

    A row is a topic and, for each time, a count of deliveries and a shade from 0 to 1.
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
    """Return the logarithm of `count` + 1, as a share of that of `most` + 1."""
    return log2(count + 1) / log2(most + 1)


def _capacity(content: Content) -> list[dict[str, Any]]:
    """Return the rows of capacity, with numbers of bytes as text.

    Only the name of a measure shows that it is in bytes.
    """
    return [
        row | {key: formats.size(row[key]) for key in ("peak", "planned")} if "bytes" in row["measure"] else row
        for row in content.capacity
    ]


def _is_text(value: object) -> bool:
    """Return whether a column with this first value is text, aligned to the left."""
    return isinstance(value, str) and not value[:1].isdigit()


def _cell(value: object, key: str) -> str:
    """Return the text of a cell, for a value of the column `key`."""
    match value:
        case None:
            return "–"
        case datetime():
            return formats.clock(value)
        case int() | float():
            return formats.size(value) if key.endswith("_bytes") else formats.whole(value)
    return str(value)


def _percent(share: float, decimals: int = 0) -> str:
    """Return a share as a percentage: 12%."""
    return f"{share:.{decimals}%}"
