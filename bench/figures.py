"""Figures in pages: each names its place in the result files, so that it can be written
anew.

A page says `1/26,700<!-- container: 1,000,000 subscribers / 1 match -->`: the comment,
which no reader sees, names the file, the case and the way, and the text before it, up
to a space, a bar or a parenthesis, is the figure.

    <!-- NAME: CASE / WAY -->             the ratio of the way to the baseline of its case
    <!-- NAME: CASE / WAY / OTHER -->     the ratio of the way to another way
    <!-- NAME: CASE / WAY = COLUMN -->    a figure with its own column, such as KiB a connection
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from bench.benchmark import shown

if TYPE_CHECKING:
    from pathlib import Path

    from bench.benchmark import Document

_FIGURE = re.compile(r"[^\s|(]*<!-- (?P<name>\w+): (?P<place>[^>]+) -->")
_FRACTION_BELOW = 0.1
"""Below this ratio a figure is written as a fraction: 1/26,700 reads better than
3.74e-05."""


def fill(page: str, results: Path) -> str:
    """Return `page` with each marked figure as the files in `results` have it.

    Raises KeyError if a file has no such case, way or column, and FileNotFoundError if
    there is no such file.
    """

    def written(mark: re.Match[str]) -> str:
        document: Document = json.loads((results / f"{mark['name']}.json").read_text("utf-8"))
        return figure(document, mark["place"]) + mark[0][mark[0].index("<!--") :]

    return _FIGURE.sub(written, page)


def figure(document: Document, place: str) -> str:
    """Return the figure of a document that `place` names, in three digits.

    >>> ways = {"slow": {"ratio": 1}, "fast": {"ratio": 0.0021, "KiB": 7.31}, "other": {"ratio": 0.5}}
    >>> [figure({"results": {"10": ways}}, f"10 / {way}") for way in ("other", "fast", "slow / other", "fast = KiB")]
    ['0.5', '1/476', '2', '7.31']
    """
    place, _, column = place.partition(" = ")
    case, way, *other = place.split(" / ")
    ways = document["results"][case]
    if column:
        return shown(ways[way][column])
    ratio = ways[way]["ratio"] / (ways[other[0]]["ratio"] if other else 1)
    return shown(ratio) if ratio >= _FRACTION_BELOW else f"1/{float(f'{1 / ratio:.3g}'):,.0f}"
