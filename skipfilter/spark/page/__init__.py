"""The page: a report as one HTML file with figures, plots and tables.

    Report ──► content ──► Content, plain rows ──► document ──► text
                                 plots · formats ──────┘
                                 page.html.j2 · style.css

The file has no script and loads nothing from the network, and its content security
policy forbids both.  It follows the reader's light or dark mode, and has plots of their
own for phones.  Its size has a limit: it shows only the first topics, and a limited
number of bins of time.

The template escapes all text from the data.

Belongs here: what is shown of a report, and how.
Does not belong here: what is computed for it (`jobs.report`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter.spark.page.content import collect
from skipfilter.spark.page.document import render

if TYPE_CHECKING:
    from skipfilter.spark.jobs.report import Report

__all__ = ["page"]


def page(report: Report, title: str = "What the hub did") -> str:
    """Return the HTML file of `report` as text, to be written in UTF-8.

    Runs jobs to fetch the rows that it shows.
    """
    return render(collect(report), title)
