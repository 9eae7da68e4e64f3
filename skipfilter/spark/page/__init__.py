"""A report as one HTML file: figures, plots and tables, for people.

The file loads nothing: no script, no font, nothing from the network, and its content
security policy forbids it.  It follows the reader's light or dark mode, and has other
plots for phones. Its size is bounded: it shows only the first topics, and bins of time
that are long enough.

    Report ──► content ──► Content, plain rows ──► document ──► text
                                 plots · formats ──────┘
                                 page.html.j2 · style.css

The template escapes all text from the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter.spark.page.content import collect
from skipfilter.spark.page.document import render

if TYPE_CHECKING:
    from skipfilter.spark.report import Report

__all__ = ["page"]


def page(report: Report, title: str = "What the hub did") -> str:
    """Return the whole file as text, which must be written in UTF-8."""
    return render(collect(report), title)
