"""A report as one HTML file: figures, plots and tables, for a person.

The file asks for nothing else: no script, no font, nothing from the network.  Its content security policy says so too.
It follows the reader's light or dark mode, and a phone gets plots of its own.  Its size is bounded: it shows the first
few topics, and bins of time so long that their number is bounded.

    Report ──► content ──► Content, plain rows ──► document ──► text
                                 plots · formats ──────┘
                                 page.html.j2 · style.css

The template escapes all text of the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter.spark.page.content import collect
from skipfilter.spark.page.document import render

if TYPE_CHECKING:
    from skipfilter.spark.report import Report

__all__ = ["page"]


def page(report: Report, title: str = "What the hub did") -> str:
    """Return the whole file, as text to be written in UTF-8."""
    return render(collect(report), title)
