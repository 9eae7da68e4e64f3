"""Write the figures in the text of a page, from the result files.

A page has text such as `1/26,700<!-- container: 1,000,000 subscribers / 1 match -->`.
The figure is the text before the comment, back to a space, a bar or a parenthesis.  The
comment, which a rendered page does not show, names the result file, the case and the
variant.

    <!-- NAME: CASE / VARIANT -->                     its ratio to the case's baseline
    <!-- NAME: CASE / VARIANT / OTHER -->             its ratio to another variant
    <!-- NAME: CASE / VARIANT = COLUMN -->            its figure in a column: KiB
    <!-- NAME: CASE / VARIANT / OTHER = COLUMN -->    the ratio of two such figures
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
"""A ratio below this is written as a fraction: 1/26,700 reads better than 3.74e-05."""


def fill(page: str, results: Path) -> str:
    """Return `page`, with each marked figure as the files in `results` have it.

    Raises KeyError if a file has no such case, variant or column, and FileNotFoundError
    if the file does not exist.
    """

    def written(mark: re.Match[str]) -> str:
        """Return the figure of a comment, followed by the comment."""
        document: Document = json.loads((results / f"{mark['name']}.json").read_text("utf-8"))
        return figure(document, mark["place"]) + mark[0][mark[0].index("<!--") :]

    return _FIGURE.sub(written, page)


def figure(document: Document, place: str) -> str:
    """Return the figure of a document that `place` names, with about three digits.

    >>> fast, other = {"ratio": 0.0021, "KiB": 7.31}, {"ratio": 0.5, "KiB": 9.98}
    >>> results = {"10": {"slow": {"ratio": 1}, "fast": fast, "other": other}}
    >>> places = "10 / other", "10 / fast", "10 / slow / other", "10 / fast = KiB"
    >>> [figure({"results": results}, place) for place in places]
    ['0.5', '1/476', '2', '7.31']
    >>> figure({"results": results}, "10 / fast / other = KiB")
    '0.732'
    """
    place, _, column = place.partition(" = ")
    case, variant, *other = place.split(" / ")
    value, *divisor = (document["results"][case][name][column or "ratio"] for name in (variant, *other))
    if column and not other:
        return shown(value)
    ratio = value / divisor[0] if divisor else value
    return shown(ratio) if ratio >= _FRACTION_BELOW else f"1/{float(f'{1 / ratio:.3g}'):,.0f}"
